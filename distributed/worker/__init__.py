"""The worker: a shell (`worker.py`) around a pure machine (`distributed.worker_state_machine`), and what tasks can ask of it.

Reading order: `worker` (life, driving the machine), `threads`, `execution`, `inbox`, `outbox`, `requests`.
"""

from __future__ import annotations

from distributed.exceptions import Reschedule
from distributed.utils import thread_state
from distributed.worker.tasks import get_client, get_worker, rejoin, secede
from distributed.worker.worker import Worker, logger

# users' functions refer to these; peers must find them where the released package has them
for _obj in (Worker, get_client, get_worker, rejoin, secede):
    _obj.__module__ = "distributed.worker"
del _obj

__all__ = ["Reschedule", "Worker", "get_client", "get_worker", "logger", "rejoin", "secede", "thread_state"]
