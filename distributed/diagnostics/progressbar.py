"""A progress bar in the terminal."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, TextIO

from dask.utils import format_time

from distributed.client import Future, default_client, futures_of
from distributed.metrics import monotonic

#: how often the bar is drawn, seconds
INTERVAL_S = 0.1
#: states of tasks that are still to be done
OPEN_STATES = ("waiting", "queued", "no-worker", "processing")


class TextProgressBar:
    """Draws how many of the cluster's tasks are done, until the given futures are.

    Subclasses may override `_draw_bar` and `_draw_stop`.
    """

    def __init__(self, futures: list[Future], width: int = 40, file: TextIO | None = None) -> None:
        self.futures = futures
        self.client = futures[0].client
        self.width = width
        self.file = file or sys.stdout
        self.start = monotonic()

    async def run(self) -> None:
        """Draw until the futures are done."""
        waiting = asyncio.ensure_future(self.client._wait_for_states([f._bound() for f in self.futures]))
        try:
            while not waiting.done():
                states = await self.client.scheduler.get_task_prefix_states()
                total = sum(sum(counts.values()) for counts in states.values())
                open_tasks = sum(counts.get(state, 0) for counts in states.values() for state in OPEN_STATES)
                self._draw_bar(remaining=open_tasks, all=max(total, 1))
                await asyncio.wait([waiting], timeout=INTERVAL_S)
        finally:
            waiting.cancel()
        self._draw_stop()

    def _draw_bar(self, remaining: int, all: int, **kwargs: Any) -> None:
        fraction = 1 - remaining / all if all else 1.0
        bar = "#" * int(self.width * fraction)
        elapsed = format_time(monotonic() - self.start)
        self.file.write(f"\r[{bar:<{self.width}}] | {fraction:4.0%} of {all} tasks | {elapsed:>9}")
        self.file.flush()

    def _draw_stop(self, **kwargs: Any) -> None:
        elapsed = format_time(monotonic() - self.start)
        self.file.write(f"\r[{'#' * self.width}] | 100% Completed | {elapsed:>9}{' ' * 12}\n")
        self.file.flush()


def progress(
    *futures: Any,
    notebook: bool | None = None,
    multi: bool = True,
    complete: bool = True,
    group_by: Any = "prefix",
    **kwargs: Any,
) -> None:
    """Show a progress bar in the terminal and wait for futures. The notebook widget and the grouping come in a later release."""
    found = futures_of(list(futures))
    if not found:
        raise ValueError("progress needs futures, or collections that were persisted")
    default_client().sync(TextProgressBar(found, **kwargs).run)
