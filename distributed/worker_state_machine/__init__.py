"""The worker's brain, pure: events in, instructions out. Knows keys and sizes, never values.

Reading order: `events`, `instructions`, `state`, `machine`, `invariants`.
"""

from __future__ import annotations

from distributed.worker_state_machine.machine import InvalidTransition, WorkerMachine
from distributed.worker_state_machine.settings import WorkerSettings
from distributed.worker_state_machine.state import TaskState

__all__ = ["InvalidTransition", "TaskState", "WorkerMachine", "WorkerSettings"]
