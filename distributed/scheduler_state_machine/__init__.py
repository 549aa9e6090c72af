"""The scheduler's brain, pure: events in, instructions out. No I/O, no clock, no configuration, no threads.

Reading order: `events`, `instructions`, `state` (passive objects), `transitions` (the table), `placement` (who runs it), `machine` (what each
event does), `invariants` (what always holds).
"""

from __future__ import annotations

from distributed.scheduler_state_machine.errors import KilledWorker, NoValidWorkerError, NoWorkerError
from distributed.scheduler_state_machine.machine import SchedulerMachine
from distributed.scheduler_state_machine.memory import MemoryState
from distributed.scheduler_state_machine.settings import SchedulerSettings
from distributed.scheduler_state_machine.state import (
    ClientState,
    TaskGroup,
    TaskPrefix,
    TaskState,
    WorkerState,
)

__all__ = [
    "ClientState",
    "KilledWorker",
    "MemoryState",
    "NoValidWorkerError",
    "NoWorkerError",
    "SchedulerMachine",
    "SchedulerSettings",
    "TaskGroup",
    "TaskPrefix",
    "TaskState",
    "WorkerState",
]
