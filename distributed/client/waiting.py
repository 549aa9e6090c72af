"""Waiting for futures: `wait`, `as_completed`, `futures_of`, `fire_and_forget`."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from numbers import Number
from typing import Any, NamedTuple

import dask
from dask.utils import is_namedtuple_instance, parse_timedelta

from distributed.client.errors import FutureCancelledError, FuturesCancelledError
from distributed.client.future import Future
from distributed.metrics import monotonic

ALL_COMPLETED = "ALL_COMPLETED"
FIRST_COMPLETED = "FIRST_COMPLETED"


class DoneAndNotDoneFutures(NamedTuple):
    """What `wait` returns."""

    done: set[Future]
    not_done: set[Future]


def futures_of(o: Any, client: Any = None) -> list[Future]:
    """The futures in an object: in lists, tuples, sets, dicts and dask collections.

    With `client`, FuturesCancelledError if any of them is cancelled.
    """
    found: dict[Future, None] = {}
    stack = [o]
    while stack:
        x = stack.pop()
        if isinstance(x, Future):
            found[x] = None
        elif type(x) in (tuple, set, list, frozenset) or is_namedtuple_instance(x):
            stack.extend(x)
        elif type(x) is dict:
            stack.extend(x.values())
        elif dask.is_dask_collection(x):
            graph = x.__dask_graph__()
            stack.extend(graph.values() if hasattr(graph, "values") else ())
        else:
            # a node of a graph may carry a future as its value
            value = getattr(x, "value", None)
            if isinstance(value, Future):
                found[value] = None
    futures = list(reversed(found))
    if client is not None:
        _raise_if_cancelled(futures)
    return futures


def _raise_if_cancelled(futures: Iterable[Future]) -> None:
    """FuturesCancelledError names those of the futures that are cancelled."""
    errors = [
        FutureCancelledError(f.key, f._bound().reason, f._bound().msg) for f in futures if f.cancelled()
    ]
    if errors:
        raise FuturesCancelledError(errors)


async def _wait(fs: Any, timeout: Any = None, return_when: str = ALL_COMPLETED) -> DoneAndNotDoneFutures:
    try:
        if timeout is not None and not isinstance(timeout, (Number, str)):
            raise TypeError
        seconds = parse_timedelta(timeout, "s")
    except (TypeError, KeyError, ValueError):
        raise TypeError(
            f"timeout= keyword received a non-numeric value {timeout!r}.\nBeware that wait expects a list of values\n  Bad:  wait(x, y, z)\n  Good: wait([x, y, z])"
        ) from None
    if return_when not in (ALL_COMPLETED, FIRST_COMPLETED):
        raise NotImplementedError(
            f"Only return_when='{ALL_COMPLETED}' and '{FIRST_COMPLETED}' are supported, got {return_when!r}"
        )
    futures = set(futures_of(fs))
    by_client: dict[Any, list[Future]] = defaultdict(list)
    for future in futures:
        by_client[future.client].append(future)

    async def all_done() -> None:
        for client, some in by_client.items():
            await client._wait_for_states([f._bound() for f in some], first=return_when == FIRST_COMPLETED)

    await asyncio.wait_for(all_done(), seconds)
    done = {f for f in futures if f.done()}
    _raise_if_cancelled(done)
    return DoneAndNotDoneFutures(done, futures - done)


class as_completed:
    """Iterate over futures in the order in which they complete; synchronously or with ``async for``.

    Parameters
    ----------
    with_results
        Yield ``(future, result)``; results of what has completed meanwhile are fetched together.
    raise_errors
        With results: raise what a task raised; else yield its ``(type, exception, traceback)`` as result.
    timeout
        Seconds from now until which all must be yielded; then TimeoutError.
    """

    def __init__(
        self,
        futures: Iterable[Any] | None = None,
        loop: Any = None,
        with_results: bool = False,
        raise_errors: bool = True,
        *,
        timeout: Any = None,
    ) -> None:
        self.with_results = with_results
        self.raise_errors = raise_errors
        self._waiting: dict[Future, int] = defaultdict(int)
        self._ready: queue.SimpleQueue[Future] = queue.SimpleQueue()
        self._async_ready = asyncio.Event()
        self._lock = threading.Lock()
        seconds = parse_timedelta(timeout, "s")
        self._loop = loop
        self._deadline = None if seconds is None else monotonic() + seconds
        self._results: list[tuple[Future, Any]] = []
        if futures:
            self.update(futures)

    def update(self, futures: Iterable[Any]) -> None:
        """Watch further futures."""
        new = list(futures)
        for future in new:
            if not isinstance(future, Future):
                raise TypeError(f"Input must be a future, got {future!r}")
        with self._lock:
            for future in new:
                self._waiting[future] += 1
        for future in new:
            client = future.client
            client._when_done(future, self._completed)

    def add(self, future: Any) -> None:
        """Watch one more future."""
        self.update((future,))

    def _completed(self, future: Future) -> None:
        """On the client's loop."""
        self._ready.put(future)
        self._async_ready.set()

    def count(self) -> int:
        """Futures that have not been yielded."""
        with self._lock:
            return sum(self._waiting.values()) + len(self._results)

    def is_empty(self) -> bool:
        """Whether all have been yielded."""
        return self.count() == 0

    def has_ready(self) -> bool:
        """Whether one can be had without waiting."""
        return not self._ready.empty() or bool(self._results)

    def clear(self) -> None:
        """Forget all futures."""
        with self._lock:
            self._waiting.clear()
            self._results.clear()
            while not self._ready.empty():
                self._ready.get_nowait()

    def _claim(self, future: Future) -> bool:
        with self._lock:
            if not self._waiting.get(future):
                return False
            self._waiting[future] -= 1
            if not self._waiting[future]:
                del self._waiting[future]
            return True

    def _remaining(self) -> float | None:
        if self._deadline is None:
            return None
        left: float = self._deadline - monotonic()
        if left <= 0:
            raise TimeoutError("as_completed: not all futures completed in time")
        return left

    def _next_sync(self) -> Future:
        while True:
            if self.is_empty():
                raise StopIteration
            try:
                future = self._ready.get(timeout=self._remaining())
            except queue.Empty:
                raise TimeoutError("as_completed: not all futures completed in time") from None
            if self._claim(future):
                return future

    def _more_ready(self) -> list[Future]:
        out = []
        while not self._ready.empty():
            future = self._ready.get_nowait()
            if self._claim(future):
                out.append(future)
        return out

    def _pair(self, future: Future, result: Any) -> Any:
        if isinstance(result, _Failure):
            if self.raise_errors:
                raise result.exc.with_traceback(result.tb)
            return future, (type(result.exc), result.exc, result.tb)
        return future, result

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self.with_results:
            return self._next_sync()
        if not self._results:
            batch = [self._next_sync(), *self._more_ready()]
            client = batch[0].client
            self._results = client.sync(_results_of, batch)
        return self._pair(*self._results.pop(0))

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def _next_async(self) -> Future:
        while True:
            if self.is_empty():
                raise StopAsyncIteration
            while not self._ready.empty():
                future = self._ready.get_nowait()
                if self._claim(future):
                    return future
            self._async_ready.clear()
            if self._ready.empty():
                try:
                    await asyncio.wait_for(self._async_ready.wait(), self._remaining())
                except TimeoutError:
                    raise TimeoutError("as_completed: not all futures completed in time") from None

    async def __anext__(self) -> Any:
        if not self.with_results:
            return await self._next_async()
        if not self._results:
            batch = [await self._next_async(), *self._more_ready()]
            self._results = await _results_of(batch)
        return self._pair(*self._results.pop(0))

    next = __next__

    def next_batch(self, block: bool = True) -> list[Any]:
        """What has completed; with `block` at least one."""
        batch = [next(self)] if block and not self.is_empty() else []
        while self.has_ready() and not self.is_empty():
            batch.append(next(self))
        return batch

    def batches(self) -> Iterator[list[Any]]:
        """All futures, in batches of what has completed meanwhile."""
        while not self.is_empty():
            yield self.next_batch()


class _Failure(NamedTuple):
    exc: BaseException
    tb: Any


async def _results_of(futures: list[Future]) -> list[tuple[Future, Any]]:
    """Results of futures that are done, fetched together."""
    client = futures[0]._client
    values: dict[Any, Any] = {}
    wanted = []
    for future in futures:
        state = future._bound()
        if state.status == "finished":
            if state.inline is not None:
                values[future.key] = state.inline[0]
            else:
                wanted.append(future.key)
    if wanted:
        values.update(await client._fetch(wanted))
    out: list[tuple[Future, Any]] = []
    for future in futures:
        if future.key in values:
            out.append((future, values[future.key]))
            continue
        try:
            out.append((future, await future._result()))
        except Exception as exc:  # the task's own
            out.append((future, _Failure(exc, exc.__traceback__)))
        except FutureCancelledError as exc:
            out.append((future, _Failure(exc, None)))
    return out


as_completed.__module__ = "distributed.client"
