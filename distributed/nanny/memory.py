"""A nanny's watch over the memory of its worker: the last resort, from outside, when the worker can do nothing any more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import psutil
from dask.utils import format_bytes

from distributed.worker_memory import MemorySettings

logger = logging.getLogger("distributed.nanny.memory")


class NannyMemoryManager:
    """Ends a worker's process that takes too much.

    Parameters
    ----------
    limit
        Bytes; None: there is nothing to watch.
    pid
        Gives the process, or None while there is none.
    end
        Ends the process; called with the bytes that it took.
    """

    def __init__(
        self,
        settings: MemorySettings,
        limit: int | None,
        pid: Callable[[], int | None],
        end: Callable[[int], None],
    ) -> None:
        self.settings = settings
        self.memory_limit = limit
        self._pid = pid
        self._end = end
        #: the process that is being ended
        self._ending: int | None = None

    async def run(self) -> None:
        """Check until cancelled."""
        if not self.memory_limit or self.settings.terminate is None:
            return
        while True:
            await asyncio.sleep(self.settings.monitor_interval_s)
            self.check()

    def check(self) -> None:
        """One measurement and what follows."""
        pid = self._pid()
        if pid is None or pid == self._ending:
            return
        try:
            memory = psutil.Process(pid).memory_info().rss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return  # it has just ended: others see to that
        limit, share = self.memory_limit, self.settings.terminate
        assert limit and share, "there is something to watch"
        if memory > share * limit:
            logger.warning(
                "Worker process %d exceeded %d%% of its memory budget, it takes %s of %s. It is ended, and started again",
                pid,
                100 * share,
                format_bytes(memory),
                format_bytes(limit),
            )
            self._ending = pid
            self._end(memory)
