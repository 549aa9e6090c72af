"""`Future`, and the state that all futures of one key on one client share.

States change on the client's loop only; they are read from any thread. A future holds a reference to its key while it lives; the last one that goes
lets the scheduler forget the result.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any

from dask._task_spec import TaskRef

from distributed.client.errors import ClosedClientError, FutureCancelledError
from distributed.core import clean_exception
from distributed.metrics import monotonic
from distributed.protocol import pickle
from distributed.utils import parse_timedelta
from distributed.widgets import render

Key = Any

_ids = itertools.count()

_waiters_lock = threading.Lock()


class FutureState:
    """What is known of one key."""

    __slots__ = (
        "_type",
        "exception",
        "inline",
        "msg",
        "reason",
        "refs",
        "status",
        "traceback",
        "type_pickle",
        "waiters",
    )

    def __init__(self) -> None:
        #: pending, finished, error, cancelled or lost
        self.status = "pending"
        #: futures that refer to the key
        self.refs = 0
        self.type_pickle: bytes | None = None
        self._type: type | None = None
        #: as it came: pickled, inside a payload or not
        self.exception: Any = None
        self.traceback: Any = None
        self.reason: str | None = None
        self.msg: str | None = None
        #: a very small value itself, in a tuple, if it came with the news that it exists
        self.inline: tuple[Any] | None = None
        #: called once, on the loop, when the state is no longer pending
        self.waiters: list[Callable[[], None]] | None = None

    @property
    def done(self) -> bool:
        return self.status not in ("pending", "lost")

    def _settle(self) -> None:
        # the status is set before: whoever registers from now on sees it
        with _waiters_lock:
            waiters, self.waiters = self.waiters, None
        if waiters:
            for waiter in waiters:
                waiter()

    def wait(self, waiter: Callable[[], None]) -> None:
        """Call something, on the loop, when the state is no longer pending. From any thread: look at `done` again afterwards."""
        with _waiters_lock:
            if self.waiters is None:
                self.waiters = []
            self.waiters.append(waiter)

    def stop_waiting(self, waiter: Callable[[], None]) -> None:
        """Take back `wait`; from any thread."""
        with _waiters_lock:
            if self.waiters and waiter in self.waiters:
                self.waiters.remove(waiter)

    def wait_in_thread(self, timeout: float | None) -> None:
        """Block a thread other than the loop's until the state is done. TimeoutError after `timeout` seconds."""
        deadline = None if timeout is None else monotonic() + timeout
        while not self.done:
            event = threading.Event()
            waiter = event.set
            self.wait(waiter)
            if self.done:
                return
            remaining = None if deadline is None else max(deadline - monotonic(), 0)
            try:
                if not event.wait(remaining):
                    raise TimeoutError(f"timed out after {timeout} s.")
            finally:
                self.stop_waiting(waiter)

    def finish(self, type_pickle: bytes | None) -> None:
        self.status = "finished"
        if type_pickle:
            self.type_pickle = type_pickle
        if self.waiters:
            self._settle()

    def lose(self) -> None:
        """The data is gone; it is being computed again."""
        self.status = "lost"

    def retry(self) -> None:
        self.status = "pending"
        self.inline = None
        self.exception = self.traceback = None

    def err(self, exception: Any, traceback: Any) -> None:
        self.status = "error"
        self.exception = exception
        self.traceback = traceback
        self._settle()

    def cancel(self, reason: str | None = None, msg: str | None = None) -> None:
        if self.status == "cancelled":
            return
        self.status = "cancelled"
        self.reason = reason
        self.msg = msg
        self._settle()

    @property
    def type(self) -> type | None:
        """Type of the result, if it is known and can be unpickled here."""
        if self._type is None and self.type_pickle:
            try:
                loaded = pickle.loads(self.type_pickle)
            except Exception:  # a type that does not exist here; nothing depends on it
                loaded = None
            self.type_pickle = None
            self._type = loaded
        return self._type

    def error(self) -> tuple[BaseException, TracebackType | None]:
        """Exception and traceback of a failed task."""
        _, exc, tb = clean_exception(self.exception, self.traceback)
        return exc, tb


class Future(TaskRef):
    """A result that is, or will be, on the cluster.

    Made by `Client.submit`, `Client.map`, `Client.scatter`, `Client.compute`; do not make one by hand. Safe to use from any thread.
    Can be an argument of further tasks, also inside lists, tuples, sets and dicts, and can be pickled: it binds to the client that is
    current where it is unpickled.
    """

    # defaults of the class: what is not assigned costs nothing, and there may be a million of these
    _client: Any = None
    _state: FutureState | None = None
    #: whether the reference was given back
    _cleared = False
    _id: Any = None

    def __init__(
        self, key: Key, client: Any = None, state: FutureState | None = None, _id: Any = None
    ) -> None:
        self.key = key
        if _id is not None:
            self._id = _id
        if client is None:
            client = _find_client()
        if client is not None:
            self._client = client
            self._state = client._hold(key, state)

    def bind_client(self, client: Any, state: FutureState | None = None) -> None:
        """Belong to a client; done by itself where there is one."""
        self._client = client
        self._state = client._hold(self.key, state)

    def _bound(self) -> FutureState:
        if self._state is None:
            client = _find_client()
            if client is None:
                raise RuntimeError(
                    f"{self!r} is not bound to a client: there was none where it was unpickled. Create a Client, or call bind_client"
                )
            self.bind_client(client)
        assert self._state is not None, "binding sets the state"
        return self._state

    @property
    def client(self) -> Any:
        """The client that it belongs to."""
        self._bound()
        return self._client

    @property
    def executor(self) -> Any:
        """Same as `client`."""
        return self.client

    @property
    def status(self) -> str | None:
        """pending, finished, error, cancelled or lost; None if there is no client."""
        return None if self._state is None else self._state.status

    @property
    def type(self) -> type | None:
        """Type of the result, once it is finished."""
        return None if self._state is None else self._state.type

    def done(self) -> bool:
        """Whether it is finished, failed or cancelled."""
        return self._bound().done

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._bound().status == "cancelled"

    def result(self, timeout: Any = None) -> Any:
        """Wait for the result and fetch it.

        Raises
        ------
        Exception
            What the task raised.
        FutureCancelledError
            It was cancelled.
        TimeoutError
            `timeout` (seconds or duration string) has passed.
        """
        state = self._bound()
        client = self._client
        if not client.asynchronous:
            # no detour through the loop: waiting costs one event, and a very small value is here already
            seconds = parse_timedelta(timeout, "s")
            deadline = None if seconds is None else monotonic() + seconds
            if not state.done:
                state.wait_in_thread(seconds)
            if state.status == "finished" and state.inline is not None:
                return state.inline[0]
            if state.status == "error":
                exc, tb = state.error()
                raise exc.with_traceback(tb)
            if state.status == "cancelled":
                raise FutureCancelledError(self.key, state.reason, state.msg)
            if client.status == "closed":
                raise ClosedClientError(
                    f"The client of {self!r} is closed: the result cannot be fetched any more"
                )
            timeout = None if deadline is None else max(deadline - monotonic(), 0.001)
        return client.sync(self._result, callback_timeout=timeout)

    async def _result(self, raiseit: bool = True) -> Any:
        state = self._bound()
        client = self._client
        while True:
            if not state.done:
                await client._wait_for_states([state])
            if state.status == "error":
                exc, tb = state.error()
                if raiseit:
                    raise exc.with_traceback(tb)
                return exc
            if state.status == "cancelled":
                error = FutureCancelledError(self.key, state.reason, state.msg)
                if raiseit:
                    raise error
                return error
            if state.inline is not None:
                return state.inline[0]
            values = await client._fetch([self.key])
            if self.key in values:
                return values[self.key]

    async def _exception(self) -> BaseException | None:
        state = self._bound()
        if not state.done:
            await self._client._wait_for_states([state])
        if state.status == "error":
            return state.error()[0]
        if state.status == "cancelled":
            raise FutureCancelledError(self.key, state.reason, state.msg)
        return None

    def exception(self, timeout: Any = None) -> Any:
        """Wait; the exception that the task raised, or None. Raises if it was cancelled."""
        self._bound()
        return self.client.sync(self._exception, callback_timeout=timeout)

    async def _traceback(self) -> TracebackType | None:
        await self._exception()
        state = self._bound()
        return state.error()[1] if state.status == "error" else None

    def traceback(self, timeout: Any = None) -> Any:
        """Wait; the traceback of the exception, or None."""
        self._bound()
        return self.client.sync(self._traceback, callback_timeout=timeout)

    def add_done_callback(self, fn: Callable[[Future], Any]) -> None:
        """Call ``fn(future)`` when it is done, in a thread that serves callbacks only."""
        self._bound()
        client = self._client
        client._add_done_callback(self, fn)

    def cancel(self, reason: str | None = None, msg: str | None = None, **kwargs: Any) -> Any:
        """Cancel the task; results that depend on it are cancelled too."""
        return self.client.cancel([self], reason=reason, msg=msg, **kwargs)

    def retry(self, **kwargs: Any) -> Any:
        """Run a failed task again."""
        return self.client.retry([self], **kwargs)

    def release(self) -> None:
        """Let go of the result; happens by itself when the future is garbage collected."""
        state = self._state
        if state is not None and not self._cleared:
            self._cleared = True
            self._client._let_go(self.key, state)

    def __del__(self) -> None:
        state = self._state
        if state is not None and not self._cleared:
            try:
                self._client._let_go(self.key, state)
            except AttributeError:
                pass  # the interpreter ends

    def __await__(self) -> Generator[Any, None, Any]:
        return self._awaited().__await__()

    async def _awaited(self) -> Any:
        return await self._result()

    # a reference to a key of its own, unlike other TaskRefs: two futures of one key are not the same
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def __reduce__(self) -> Any:
        return (Future, (self.key,))

    def __dask_tokenize__(self) -> Any:
        if self._id is None:
            self._id = next(_ids)
        return (type(self).__name__, self.key, self._id)

    def __str__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        typ = self.type
        if typ is not None:
            return f"<Future: {self.status}, type: {typ.__module__}.{typ.__qualname__}, key: {self.key}>".replace(
                "builtins.", ""
            )
        return f"<Future: {self.status}, key: {self.key}>"

    def _repr_html_(self) -> str:
        return render("future.html.j2", key=str(self.key), status=str(self.status), type=str(self.type))


#: set by `client.client`: finds the client that futures bind to
_client_finders: list[Callable[[], Any]] = []


def _find_client() -> Any:
    for finder in _client_finders:
        client = finder()
        if client is not None:
            return client
    return None


Future.__module__ = "distributed.client"
