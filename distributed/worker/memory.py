"""What a worker does about its memory: measures the process, spills results, pauses, says what it cannot help.

`MemoryManager.check` is one measurement and what follows from it; the shell calls it again and again. Values are written in a thread (`spill`), so a check
may take its time; the next one waits for it.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import sys
from collections.abc import Callable
from typing import Any

from dask.utils import format_bytes

from distributed.metrics import monotonic
from distributed.spill import SpillBuffer
from distributed.worker_memory import MemorySettings

logger = logging.getLogger("distributed.worker.memory")

#: what costs much (a full collection, giving memory back) or says the same again is not done more often than this, seconds
SELDOM_S = 10.0
#: memory beyond results and what the process had at its start is given back to the system when it is more than this share of the limit
TRIM_SHARE = 0.1


class MemoryManager:
    """Watches the memory of one worker.

    Parameters
    ----------
    limit
        Bytes; None: there is nothing to watch, results are never spilled.
    measure
        Bytes that the process takes.
    pause, resume
        Called when the worker is to stop starting tasks, and when it may go on.
    """

    def __init__(
        self,
        settings: MemorySettings,
        limit: int | None,
        *,
        measure: Callable[[], int],
        pause: Callable[[], None],
        resume: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.memory_limit = limit
        self.measure = measure
        self._pause = pause
        self._resume = resume
        #: whether the worker is paused for its memory
        self.paused = False
        #: None as long as results cannot be spilled
        self.data: SpillBuffer | None = None
        self._logged_at = self._trimmed_at = self._collected_at = float("-inf")
        self._base = measure()

    @property
    def spills(self) -> bool:
        """Whether results may go to disk."""
        return bool(self.memory_limit) and (
            self.settings.target is not None or self.settings.spill is not None
        )

    def make_data(self, directory: str) -> SpillBuffer:
        """The mapping for results."""
        assert self.memory_limit is not None, "results are spilled where there is a limit"
        settings = self.settings
        target = float("inf") if settings.target is None else settings.target * self.memory_limit
        self.data = SpillBuffer(directory, target, settings.max_spill, settings.spill_compression)
        return self.data

    async def run(self) -> None:
        """Check until cancelled."""
        if not self.memory_limit:
            return
        while True:
            await asyncio.sleep(self.settings.monitor_interval_s)
            await self.check()

    async def check(self) -> None:
        """One measurement and what follows."""
        limit = self.memory_limit
        assert limit, "there is something to watch"
        memory = self.measure()
        self._pause_or_resume(memory, limit)
        spill = self.settings.spill
        if spill is not None and memory > spill * limit:
            await self._relieve(memory, limit)
            self._pause_or_resume(self.measure(), limit)
        elif monotonic() - self._trimmed_at > SELDOM_S and (
            memory - self._managed() - self._base > TRIM_SHARE * limit
        ):
            self._trimmed_at = monotonic()
            await asyncio.to_thread(trim)

    def _managed(self) -> int:
        """Bytes of results in memory."""
        return 0 if self.data is None else self.data.memory_bytes

    def _pause_or_resume(self, memory: int, limit: int) -> None:
        share = self.settings.pause
        if share is None:
            return
        if memory > share * limit:
            if not self.paused:
                self.paused = True
                logger.warning(
                    "Worker is at %d%% memory usage. Pausing worker.  Process memory: %s -- Worker memory limit: %s",
                    100 * memory / limit,
                    format_bytes(memory),
                    format_bytes(limit),
                )
                self._pause()
        elif self.paused:
            self.paused = False
            logger.warning(
                "Worker is at %d%% memory usage. Resuming worker. Process memory: %s -- Worker memory limit: %s",
                100 * memory / limit,
                format_bytes(memory),
                format_bytes(limit),
            )
            self._resume()

    async def _relieve(self, memory: int, limit: int) -> None:
        """Bring the process below the target by spilling; say so if that does not help."""
        settings = self.settings
        goal = (settings.target or settings.spill or 0.0) * limit
        freed = 0.0 if self.data is None else await self.data.evict(memory - goal)
        now = monotonic()
        if not freed and now - self._collected_at > SELDOM_S:
            self._collected_at = now
            # what a task has left behind in cycles
            gc.collect()
        if freed or now - self._trimmed_at > SELDOM_S:
            self._trimmed_at = now
            await asyncio.to_thread(trim)
        if not freed and now - self._logged_at > SELDOM_S and self.measure() > (settings.spill or 0) * limit:
            self._logged_at = now
            logger.warning(
                "Unmanaged memory use is high: the process takes %s of %s, and there are no results left that could go to disk. Perhaps tasks leak memory, "
                "or need more at once than the worker has.",
                format_bytes(self.measure()),
                format_bytes(limit),
            )


def _find_malloc_trim() -> Any:
    if sys.platform != "linux":
        return None
    try:
        return ctypes.CDLL("libc.so.6").malloc_trim
    except (OSError, AttributeError):
        return None  # another C library


_malloc_trim = _find_malloc_trim()


def trim() -> None:
    """Have the C library give free memory back to the system, where it can."""
    if _malloc_trim is not None:
        _malloc_trim(0)
