"""Where the scheduler expands the pickled expressions of clients that know no tables: a thread of its own.

Not the offload executor: expansion runs user code for seconds, and a scheduler must never be seen to use the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class ExpressionExecutor:
    """One thread, made on first use."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None

    async def run(self, fn: Callable[[], T]) -> T:
        """Run a function in the thread."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="Dask-Expressions")
        return await asyncio.get_running_loop().run_in_executor(self._executor, fn)


expression_executor = ExpressionExecutor()
