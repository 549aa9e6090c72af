"""The one door through which work leaves an event loop: the executor named "offload".

(De)serialising a large payload would block the loop, so it is handed to this single thread. Small
messages must never come here: a hand-over costs about 60 us. Whether a message may be offloaded is
decided in `comm.utils`; this module only carries it out and counts, so that tests can prove that a
scheduler process never does it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class OffloadCounters:
    """How often work was handed over, since the process started."""

    __slots__ = ("handoffs",)

    def __init__(self) -> None:
        self.handoffs = 0


counters = OffloadCounters()

_executor: ThreadPoolExecutor | None = None


def get_offload_executor() -> ThreadPoolExecutor:
    """The process-wide executor, one thread, made on first use.

    One thread only: users rely on "executor='offload'" as *the single task thread*.
    """
    global _executor
    if _executor is None:
        _executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="Dask-Offload")
    return _executor


async def offload(fn: Callable[..., T], *args: object) -> T:
    """Run ``fn(*args)`` in the offload thread and return its result."""
    counters.handoffs += 1
    return await asyncio.get_running_loop().run_in_executor(get_offload_executor(), fn, *args)
