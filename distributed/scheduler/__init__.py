"""The scheduler: a shell (`scheduler.py`) around a pure machine (`distributed.scheduler_state_machine`).

Reading order: `scheduler` (life, registration), `inbox`, `outbox`, `data`, `admin`.
"""

from __future__ import annotations

from distributed.scheduler.scheduler import Scheduler, heartbeat_interval, logger
from distributed.scheduler_state_machine import (
    ClientState,
    KilledWorker,
    MemoryState,
    NoValidWorkerError,
    NoWorkerError,
    TaskGroup,
    TaskPrefix,
    TaskState,
    WorkerState,
)

for _cls in (Scheduler, ClientState, MemoryState, TaskGroup, TaskPrefix, TaskState, WorkerState):
    _cls.__module__ = "distributed.scheduler"
del _cls

__all__ = [
    "ClientState",
    "KilledWorker",
    "MemoryState",
    "NoValidWorkerError",
    "NoWorkerError",
    "Scheduler",
    "TaskGroup",
    "TaskPrefix",
    "TaskState",
    "WorkerState",
    "heartbeat_interval",
    "logger",
]
