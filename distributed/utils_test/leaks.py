"""What a test must not leave behind: threads, processes, servers and clients."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import threading
import time
from collections.abc import Iterator

from distributed.client import Client
from distributed.client.client import _global_clients
from distributed.core import Status
from distributed.nanny import Nanny
from distributed.scheduler import Scheduler
from distributed.worker import Worker

#: how long what is ending may take, seconds
GRACE_S = 5.0

#: threads that live as long as the process
_PERMANENT = (
    "Dask-Offload",
    "Dask-Expressions",
    "Profile",
    "asyncio_",
    "ThreadPoolExecutor",
    "pydevd",
    "IO loop shared",
    "Dask-Parent-Watch",
)


def _poll(problem: object, what: str) -> None:
    deadline = time.monotonic() + GRACE_S
    while True:
        found = problem()  # type: ignore[operator]
        if not found:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} left behind: {found}")
        time.sleep(0.01)


@contextlib.contextmanager
def check_thread_leak() -> Iterator[None]:
    """AssertionError if threads are still there that were not there before."""
    before = set(threading.enumerate())
    yield

    def leaked() -> list[threading.Thread]:
        return [
            thread
            for thread in threading.enumerate()
            if thread not in before and thread.is_alive() and not thread.name.startswith(_PERMANENT)
        ]

    _poll(leaked, "threads")


@contextlib.contextmanager
def check_process_leak(check: bool = True) -> Iterator[None]:
    """AssertionError if child processes are still there that were not there before."""
    before = set(multiprocessing.active_children())
    yield
    if check:
        _poll(lambda: [p for p in multiprocessing.active_children() if p not in before], "processes")


@contextlib.contextmanager
def check_instances() -> Iterator[None]:
    """AssertionError if servers or clients were not closed."""
    _global_clients.clear()
    known = {id(x) for cls in (Client, Worker, Scheduler, Nanny) for x in cls._instances}
    yield
    gc.collect()

    def open_servers() -> list[object]:
        servers: list[object] = []
        for cls in (Worker, Scheduler, Nanny):
            for x in list(cls._instances):
                if id(x) not in known and x.status not in (Status.closed, Status.failed, Status.init):
                    servers.append(x)
        servers.extend(
            c
            for c in list(Client._instances)
            if id(c) not in known and c.status not in ("closed", "newly-created")
        )
        return servers

    _poll(open_servers, "servers and clients")


@contextlib.contextmanager
def clean(threads: bool = True, instances: bool = True, processes: bool = True) -> Iterator[None]:
    """All checks."""
    with contextlib.ExitStack() as stack:
        if threads:
            stack.enter_context(check_thread_leak())
        if processes:
            stack.enter_context(check_process_leak())
        if instances:
            stack.enter_context(check_instances())
        yield
