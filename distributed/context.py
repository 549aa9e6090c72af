"""Who is running: the worker and the client of the code that asks, whichever thread or coroutine it is in."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import Any

#: the Worker whose task (or handler) is running
current_worker: ContextVar[Any] = ContextVar("current_worker", default=None)
#: the client made current by ``with client.as_current()``
current_client: ContextVar[Any] = ContextVar("current_client", default=None)
#: key of the running task; tasks in threads have ``dask.context.thread_state.key`` as well
current_key: ContextVar[Any] = ContextVar("current_key", default=None)

#: set on a worker's own threads: the pool that the thread belongs to
thread_pool_state = threading.local()
