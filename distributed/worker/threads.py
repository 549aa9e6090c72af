"""The worker's own threads. They take offered tasks from a queue; results go back to the loop, one wake-up per burst.

Measured: a queue that the thread itself reads costs 5 us per task, `run_in_executor` 59. A claim is atomic: whoever pops an offer's token, the
thread that wants to run it or the loop that wants it back, has it.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from time import time
from typing import Any

from distributed.context import thread_pool_state

Key = Any


class Offer:
    """A task that a thread may start."""

    __slots__ = ("key", "run_id", "spec", "token", "values")

    def __init__(self, key: Key, run_id: int, spec: Any, values: dict[Key, Any] | None, token: int) -> None:
        self.key = key
        self.run_id = run_id
        self.spec = spec
        self.values = values
        self.token = token


class TaskThreads:
    """Threads that run offers.

    Parameters
    ----------
    run
        Called in a thread with an offer; must not raise. What it returns is given to `finish` on the loop.
    finish
        Called on the loop with the results of a burst.
    start_thread
        Called first in each thread.
    """

    def __init__(
        self,
        nthreads: int,
        run: Callable[[Offer], Any],
        finish: Callable[[list[Any]], None],
        start_thread: Callable[[], None],
        name: str,
    ) -> None:
        self.nthreads = nthreads
        self._run = run
        self._finish = finish
        self._start_thread = start_thread
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Offer | None] = SimpleQueue()
        #: tokens of offers that nobody has claimed
        self._unclaimed: dict[int, Offer] = {}
        #: key -> token of its offer; loop only
        self._tokens: dict[Key, int] = {}
        self._counter = itertools.count()
        self._done: deque[Any] = deque()
        self._woken = False
        self._closed = False
        self._thread_numbers = itertools.count()
        self._threads: set[threading.Thread] = set()
        #: key -> thread id and start (seconds since the epoch) of what runs
        self.active: dict[Key, tuple[int, float]] = {}

    # --- loop side -----------------------------------------------------------------------------------------

    def offer(self, key: Key, run_id: int, spec: Any, values: dict[Key, Any] | None) -> None:
        """Let a thread run this."""
        token = next(self._counter)
        offer = Offer(key, run_id, spec, values, token)
        self._unclaimed[token] = offer
        self._tokens[key] = token
        self._queue.put(offer)
        if len(self._threads) < self.nthreads:
            self._add_thread()

    def withdraw(self, key: Key) -> bool:
        """Take an offer back; False if a thread has started it."""
        token = self._tokens.get(key)
        if token is None or self._unclaimed.pop(token, None) is None:
            return False
        del self._tokens[key]
        return True

    def _add_thread(self) -> None:
        thread = threading.Thread(
            target=self._work, name=f"{self._name}-{next(self._thread_numbers)}", daemon=True
        )
        self._threads.add(thread)
        thread.start()

    def _collect(self) -> None:
        # cleared first: what is appended from now on wakes the loop again
        self._woken = False
        done = self._done
        results = []
        while done:
            key, result = done.popleft()
            self._tokens.pop(key, None)
            results.append(result)
        if results:
            self._finish(results)

    def post(self, key: Key, result: Any) -> None:
        """Hand a result to the loop; from any thread."""
        self._done.append((key, result))
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._collect)
            except RuntimeError:
                if not self._loop.is_closed():
                    raise

    def close(self) -> None:
        """Start nothing more; threads end when they have finished what they run."""
        self._closed = True
        self._unclaimed.clear()
        for _ in range(len(self._threads)):
            self._queue.put(None)

    # --- thread side ---------------------------------------------------------------------------------------

    def _work(self) -> None:
        thread_pool_state.pool = self
        thread_pool_state.seceded = False
        self._start_thread()
        get, unclaimed, run, post, active = (
            self._queue.get,
            self._unclaimed,
            self._run,
            self.post,
            self.active,
        )
        ident = threading.get_ident()
        try:
            while not self._closed:
                offer = get()
                if offer is None:
                    break
                if unclaimed.pop(offer.token, None) is None:
                    continue
                key = offer.key
                active[key] = (ident, time())
                result = run(offer)
                active.pop(key, None)
                # the thread must not keep the last task's inputs alive while it waits for the next
                del offer
                post(key, result)
                del result, key
                if thread_pool_state.seceded:
                    break
        finally:
            self._threads.discard(threading.current_thread())

    def secede(self) -> None:
        """The calling thread leaves the pool; another takes its place."""
        if thread_pool_state.seceded:
            return
        thread_pool_state.seceded = True
        self._threads.discard(threading.current_thread())
        self._add_thread()

    def rejoin(self) -> None:
        """The calling thread becomes one of the pool again; one of the others ends as soon as it is idle."""
        if not thread_pool_state.seceded:
            return
        self._queue.put(None)
        thread_pool_state.seceded = False
        self._threads.add(threading.current_thread())
