"""`ClientExecutor`: a cluster seen as a `concurrent.futures.Executor`, for code that knows nothing of dask.

Made by `Client.get_executor`. It must not import the client: the client imports this module and passes itself.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from typing import Any

from distributed.metrics import monotonic

#: keywords of `Client.submit` that make sense for all calls of an executor
_ALLOWED = frozenset(("allow_other_workers", "pure", "resources", "retries", "workers"))


class ClientExecutor(concurrent.futures.Executor):
    """Runs calls on the cluster of a client.

    Parameters
    ----------
    kwargs
        For `Client.submit` of each call: pure (default False), workers, resources, allow_other_workers, retries.

    Raises
    ------
    TypeError
        Another keyword.
    """

    def __init__(self, client: Any, **kwargs: Any) -> None:
        unknown = sorted(set(kwargs) - _ALLOWED)
        if unknown:
            raise TypeError(
                f"unsupported arguments to ClientExecutor: {unknown}; supported: {sorted(_ALLOWED)}"
            )
        self._client = client
        self._kwargs = {"pure": False, **kwargs}
        #: what was given out and may not be done
        self._futures: weakref.WeakSet[concurrent.futures.Future[Any]] = weakref.WeakSet()
        self._shut_down = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        """Run ``fn(*args, **kwargs)`` on the cluster. RuntimeError after `shutdown`."""
        if self._shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = self._client.submit(fn, *args, **kwargs, **self._kwargs)
        return self._follow(future)

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[Any]:
        """Results of ``fn`` for the items of iterables in step, in order. `chunksize` is ignored: small tasks are batched anyway.

        TimeoutError if a result is not there `timeout` seconds after this call. Calls that nobody waits for any more are cancelled.
        """
        if self._shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        deadline = None if timeout is None else monotonic() + timeout
        futures = [
            self._follow(future) for future in self._client.map(fn, *map(list, iterables), **self._kwargs)
        ]
        futures.reverse()

        def results() -> Iterator[Any]:
            try:
                while futures:
                    yield futures[-1].result(None if deadline is None else max(deadline - monotonic(), 0))
                    futures.pop()
            finally:
                for future in futures:
                    future.cancel()

        return results()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; wait for those there are, or cancel them. The client stays open."""
        self._shut_down = True
        futures = list(self._futures)
        if cancel_futures:
            for future in futures:
                future.cancel()
        if wait:
            concurrent.futures.wait(futures)

    def _follow(self, future: Any) -> concurrent.futures.Future[Any]:
        """A standard future that becomes what a future on the cluster becomes; cancelling it cancels that one."""
        client = self._client
        local: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._futures.add(local)

        def settle(task: asyncio.Task[Any]) -> None:
            # a task that is cancelled: the client closes
            error = CancelledError() if task.cancelled() else task.exception()
            if isinstance(error, CancelledError):
                local.cancel()
            if not local.set_running_or_notify_cancel():
                return
            if error is None:
                local.set_result(task.result())
            else:
                local.set_exception(error)

        def start() -> None:
            client._spawn(future._result()).add_done_callback(settle)

        def passes_on_cancellation(local: concurrent.futures.Future[Any]) -> None:
            if local.cancelled() and not future.done():
                client.loop.add_callback(client._cancel, [future], False, None, None)

        local.add_done_callback(passes_on_cancellation)
        client.loop.add_callback(start)
        return local

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._client!r}>"
