"""What the code of a task can ask of its worker."""

from __future__ import annotations

from typing import Any

from dask.utils import parse_timedelta

from distributed.client import Client, default_client
from distributed.comm import resolve_address
from distributed.context import current_client, current_worker, thread_pool_state
from distributed.metrics import time
from distributed.settings import connect_timeout
from distributed.utils import thread_state


def get_worker() -> Any:
    """The worker that runs the current task. ValueError outside tasks."""
    worker = current_worker.get()
    if worker is None:
        raise ValueError("No worker found: get_worker() works inside tasks only")
    return worker


def get_client(
    address: str | None = None, timeout: Any = None, resolve: bool = True, **kwargs: Any
) -> Client:
    """A client for use inside a task; outside tasks, the current one.

    Parameters
    ----------
    address
        Of the scheduler; a new client is made if it is another one than the worker's.
    timeout
        For connecting: seconds or a duration string.

    Raises
    ------
    ValueError
        Outside tasks, and there is no client.
    """
    seconds = connect_timeout() if timeout is None else parse_timedelta(timeout, "s")
    resolve = kwargs.pop("resolve_address", resolve)
    if address and resolve:
        address = resolve_address(address)
    worker = current_worker.get()
    if worker is not None and (not address or worker.scheduler_address == address):
        if current_client.get() is not None and getattr(thread_state, "key", None) is None:
            return current_client.get()  # type: ignore[no-any-return]
        return worker_client_of(worker, seconds)
    try:
        client = default_client()
    except ValueError:
        client = None
    if client is not None and (not address or client.scheduler.address == address):
        return client
    if address:
        return Client(address, timeout=seconds)
    raise ValueError("No global client found and no address provided")


def worker_client_of(worker: Any, timeout: float) -> Client:
    """The client that tasks of a worker share; made on first use. From any thread."""
    with worker._client_lock:
        client = worker._client
        if client is not None and client.status not in ("closing", "closed"):
            return client  # type: ignore[no-any-return]
        on_loop = worker._on_loop()
        client = worker._client = Client(
            worker.scheduler_address,
            loop=worker.loop,
            security=worker.security,
            set_as_default=False,
            asynchronous=on_loop,
            direct_to_workers=True,
            name="worker",
            timeout=timeout,
        )
    return client


def secede() -> None:
    """Have the running task leave its thread slot, so that the worker can run others while it waits.

    ValueError outside a task that runs in a thread of a worker.
    """
    worker = get_worker()
    pool = getattr(thread_pool_state, "pool", None)
    key = getattr(thread_state, "key", None)
    if pool is None or key is None:
        raise ValueError("secede() works only inside a task that runs in one of the worker's own threads")
    if thread_pool_state.seceded:
        return
    pool.secede()
    duration = time() - thread_state.start_time
    worker.loop.add_callback(worker.seceded, key, duration)


def rejoin() -> None:
    """Take a thread slot again after `secede`."""
    pool = getattr(thread_pool_state, "pool", None)
    if pool is None:
        raise ValueError("rejoin() works only inside a task that runs in one of the worker's own threads")
    pool.rejoin()
