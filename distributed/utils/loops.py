"""Synchronous code and event loops: run a coroutine on a loop from another thread, own a loop thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from dask.utils import parse_timedelta
from tornado.ioloop import IOLoop

from distributed.config import get_loop_factory


class Deadline:
    """A point in time until which something must be done."""

    def __init__(self, expires_at_mono: float | None = None) -> None:
        self.expires_at_mono = expires_at_mono

    @classmethod
    def after(cls, duration: float | None = None) -> Deadline:
        """A deadline `duration` seconds from now; None: never."""
        return cls(None if duration is None else time.monotonic() + duration)

    @property
    def remaining(self) -> float | None:
        """Seconds left, at least 0; None if it never expires."""
        return None if self.expires_at_mono is None else max(0.0, self.expires_at_mono - time.monotonic())

    @property
    def expired(self) -> bool:
        """Whether it has passed."""
        return self.remaining == 0


async def wait_for(fut: Awaitable[Any], timeout: float | None) -> Any:
    """`asyncio.wait_for`."""
    return await asyncio.wait_for(fut, timeout)


def sync(
    loop: Any, func: Callable[..., Awaitable[Any]], *args: Any, callback_timeout: Any = None, **kwargs: Any
) -> Any:
    """Run ``func(*args, **kwargs)`` on a loop that runs in another thread; wait for its result.

    Raises
    ------
    RuntimeError
        Called from the loop's own thread, or the loop is closed.
    TimeoutError
        `callback_timeout` (seconds or duration string) has passed; the coroutine is cancelled.
    """
    timeout = parse_timedelta(callback_timeout, "s")
    asyncio_loop = getattr(loop, "asyncio_loop", loop)
    if asyncio_loop.is_closed():
        raise RuntimeError("IOLoop is closed")
    try:
        running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is asyncio_loop:
        raise RuntimeError("Cannot run sync() from the loop's own thread: the loop would wait for itself")

    async def run() -> Any:
        return await func(*args, **kwargs)

    future = asyncio.run_coroutine_threadsafe(run(), asyncio_loop)
    try:
        return future.result(timeout)
    except concurrent.futures.TimeoutError:
        if future.done():
            raise
        future.cancel()
        raise TimeoutError(f"timed out after {timeout} s.") from None
    except concurrent.futures.CancelledError as exc:
        if not future.cancelled():
            raise  # what the coroutine raised, for example that a future on the cluster was cancelled
        raise asyncio.CancelledError(str(exc)) from exc
    except BaseException:
        future.cancel()
        raise
    finally:
        # results and exceptions with their frames must not be kept alive by a local variable
        del future


class LoopRunner:
    """Gives an object a running loop: the given or current one, or one in a thread of its own that is shared by its users.

    Parameters
    ----------
    loop
        An IOLoop; None: the current one when `asynchronous`, else a new one in a thread.
    """

    def __init__(self, loop: IOLoop | None = None, asynchronous: bool = False) -> None:
        if loop is None and asynchronous:
            try:
                asyncio.get_running_loop()
            except RuntimeError as exc:
                raise RuntimeError("An asynchronous object must be made inside a running event loop") from exc
            loop = IOLoop.current()
        self._loop: IOLoop | None = loop
        self._asynchronous = asynchronous
        self._thread: threading.Thread | None = None
        self._started = False

    @property
    def loop(self) -> Any:
        """The IOLoop; None until a loop of our own has been started."""
        return self._loop

    def start(self) -> None:
        """Make sure the loop runs."""
        if self._asynchronous or self._started:
            return
        self._started = True
        if self._loop is not None:
            return
        ready = threading.Event()
        holder: list[Any] = []

        def run() -> None:
            async def main() -> None:
                stop = asyncio.Event()
                holder.extend((IOLoop.current(), stop))
                ready.set()
                await stop.wait()

            with asyncio.Runner(loop_factory=get_loop_factory()) as runner:
                runner.run(main())

        self._thread = threading.Thread(target=run, name="IO loop", daemon=True)
        self._thread.start()
        ready.wait()
        self._loop, self._stop_event = holder

    def stop(self, timeout: float = 10) -> None:
        """Stop the loop if this object started it."""
        thread, self._thread = self._thread, None
        if thread is None or self._loop is None:
            self._started = False
            return
        with suppress(RuntimeError):  # closed meanwhile
            self._loop.asyncio_loop.call_soon_threadsafe(self._stop_event.set)  # type: ignore[attr-defined]
        if thread is not threading.current_thread():
            thread.join(timeout)
        self._started = False

    def is_started(self) -> bool:
        """Whether the loop is known to run."""
        return self._started or self._asynchronous

    def run_sync(self, func: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        """Run a coroutine function on the loop and wait for it."""
        if not self.is_started():
            self.start()
        return sync(self._loop, func, *args, **kwargs)


class SyncMethodMixin:
    """For objects with ``loop`` and an opinion about being asynchronous: `sync`, which does the right thing either way."""

    loop: Any

    @property
    def asynchronous(self) -> bool:
        """Whether methods return awaitables."""
        try:
            return asyncio.get_running_loop() is self.loop.asyncio_loop
        except RuntimeError:
            return False

    def sync(
        self,
        func: Callable[..., Awaitable[Any]],
        *args: Any,
        asynchronous: bool | None = None,
        callback_timeout: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Run a coroutine function on our loop; return its result, or when asynchronous an awaitable."""
        timeout = parse_timedelta(callback_timeout, "s")
        if asynchronous is None:
            asynchronous = self.asynchronous
        if asynchronous:
            coro = func(*args, **kwargs)
            return coro if timeout is None else wait_for(coro, timeout)
        return sync(self.loop, func, *args, callback_timeout=timeout, **kwargs)


def in_async_call(loop: Any, default: bool = False) -> bool:
    """Whether the caller runs inside that loop."""
    try:
        return asyncio.get_running_loop() is loop.asyncio_loop
    except RuntimeError:
        return default
