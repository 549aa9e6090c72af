"""`ClientBase`: the connection to the scheduler, the states of futures, and the way of messages from any thread into the stream.

User threads append to one queue and wake the loop once per burst; the loop moves the queue into the stream, in order. A release therefore
always follows every message that wanted the key.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask.config

from distributed.batched import Stream, begin_batch, end_batch
from distributed.client.errors import ClosedClientError
from distributed.client.future import Future, FutureState
from distributed.comm import Comm, CommClosedError, connect
from distributed.comm.handshake import GRAPH_TABLE
from distributed.core import ConnectionPool, PooledRPCCall
from distributed.metrics import monotonic
from distributed.objects import SchedulerInfo
from distributed.protocol import pickle
from distributed.utils import LoopRunner, SyncMethodMixin, parse_timedelta
from distributed.versions import get_versions

logger = logging.getLogger("distributed.client")

Key = Any


#: how long a release may wait for company, seconds
RELEASE_INTERVAL_S = 0.01
#: so many cancelled keys are remembered: the scheduler says nothing of those that other clients want
CANCELLED_MAX = 10_000
#: after so many intervals without releases the timer stops
IDLE_TICKS_MAX = 20


class _SchedulerCloses(Exception):
    """The scheduler has said that it closes the stream."""


class ClientBase(SyncMethodMixin):
    """Connection and future states."""

    id: str
    status: str
    rpc: ConnectionPool
    scheduler: PooledRPCCall

    def _init_base(self, loop_runner: LoopRunner, timeout: float, connection_args: dict[str, Any]) -> None:
        self._loop_runner = loop_runner
        self._timeout = timeout
        self.connection_args = connection_args
        #: key -> state, for keys with living futures
        self.futures: dict[Key, FutureState] = {}
        #: keys that were cancelled from here, until the scheduler has said so too; oldest first, bounded
        self._cancelled_here: dict[Key, None] = {}
        self._lock = threading.RLock()
        #: messages (dicts) for the scheduler, and between them dropped references (tuples of key and state), in order
        self._outgoing: deque[dict[str, Any] | tuple[Key, FutureState]] = deque()
        self._woken = False
        #: whether a timer on the loop looks after releases
        self._ticking = False
        self._idle_ticks = 0
        self.scheduler_comm: Stream | None = None
        self._tables = False
        self._handle_task: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self._scheduler_identity = SchedulerInfo({})
        self._event_handlers: dict[str, Any] = {"print": _forwarded_print, "warn": _forwarded_warning}
        self._callback_executor: ThreadPoolExecutor | None = None
        self.generation = 0
        self._heartbeat_s = parse_timedelta(dask.config.get("distributed.client.heartbeat"), "ms")
        self._handlers: dict[str, Callable[..., Any]] = {
            "keys-in-memory": self._on_keys_in_memory,
            "key-in-memory": self._on_key_in_memory,
            "task-erred": self._on_task_erred,
            "lost-data": self._on_lost_data,
            "task-retried": self._on_task_retried,
            "cancelled-keys": self._on_cancelled_keys,
            "adjust-heartbeat-interval": self._on_adjust_heartbeat,
            "restart": self._on_restart,
            "event": self._on_event,
            "error": self._on_error,
        }

    # --- references ----------------------------------------------------------------------------------------

    def _hold(self, key: Key, state: FutureState | None = None) -> FutureState:
        """One more future refers to a key. A key that is new here is wanted from the scheduler. From any thread."""
        with self._lock:
            known = self.futures.get(key)
            if known is None:
                known = self.futures[key] = state if state is not None else FutureState()
                if state is None:
                    self._post({"op": "client-desires-keys", "keys": [key], "client": self.id})
            known.refs += 1
            return known

    def _let_go(self, key: Key, state: FutureState) -> None:
        """One future less refers to a key. From any thread, also from the garbage collector."""
        if self.status in ("closed", "closing"):
            return
        # with its state: after a cancellation or a restart the key may have a new one, which this reference never counted for
        self._outgoing.append((key, state))
        if not self._ticking and not self._woken:
            self._wake(self._start_ticking)

    def _post(self, msg: dict[str, Any]) -> None:
        """Queue a message for the scheduler; from any thread."""
        self._outgoing.append(msg)
        if not self._woken:
            self._wake(self._move_outgoing)

    def _wake(self, callback: Callable[[], None]) -> None:
        self._woken = True
        try:
            self._asyncio_loop.call_soon_threadsafe(callback)
        except RuntimeError:
            if not self._asyncio_loop.is_closed():
                raise

    def _start_ticking(self) -> None:
        """On the loop: releases are collected for `RELEASE_INTERVAL_S`, unless another message takes them along before.

        Waking the loop for each release would cost a client that submits and gathers in turn a sixth of its time.
        """
        self._move_outgoing()
        if not self._ticking:
            self._ticking = True
            self._idle_ticks = 0
            asyncio.get_running_loop().call_later(RELEASE_INTERVAL_S, self._tick)

    def _tick(self) -> None:
        if self._outgoing:
            self._idle_ticks = 0
            self._move_outgoing()
        else:
            self._idle_ticks += 1
        if self._idle_ticks < IDLE_TICKS_MAX and self.status in ("running", "connecting"):
            asyncio.get_running_loop().call_later(RELEASE_INTERVAL_S, self._tick)
            return
        self._ticking = False
        # whoever saw the flag before it was cleared has appended before
        if self._outgoing:
            self._move_outgoing()

    @property
    def _asyncio_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop_runner.loop.asyncio_loop  # type: ignore[no-any-return]

    def _move_outgoing(self) -> None:
        """On the loop: give queued messages to the stream."""
        # cleared first: what is appended from now on wakes the loop again
        self._woken = False
        outgoing, stream = self._outgoing, self.scheduler_comm
        if stream is None:
            return
        mine = begin_batch()
        try:
            self._move_into(stream, outgoing)
        finally:
            if mine:
                end_batch()

    def _move_into(self, stream: Stream, outgoing: deque[Any]) -> None:
        released: list[Key] = []
        futures = self.futures
        while outgoing:
            item = outgoing.popleft()
            if type(item) is tuple:
                key, state = item
                with self._lock:
                    state.refs -= 1
                    if state.refs <= 0 and futures.get(key) is state:
                        del futures[key]
                        released.append(key)
                continue
            if released:
                self._send_release(stream, released)
                released = []
            self._send(stream, item)
        if released:
            self._send_release(stream, released)

    def _send_release(self, stream: Stream, keys: list[Key]) -> None:
        self._send(
            stream,
            {
                "op": "client-releases-keys",
                "keys": keys,
                "client": self.id,
                "stimulus_id": f"client-releases-keys-{monotonic()}",
            },
        )

    def _send(self, stream: Stream, msg: dict[str, Any]) -> None:
        try:
            stream.send(msg)
        except CommClosedError:
            # the reading side reports the loss, and cancels what this was about
            logger.debug("Not sent, the scheduler is gone: %s", msg.get("op"))

    def _send_to_scheduler(self, msg: dict[str, Any]) -> None:
        """Queue a message. ClosedClientError if the client is closed. From any thread."""
        if self.status not in ("running", "closing", "connecting", "newly-created"):
            raise ClosedClientError(f"Client is {self.status}. Can't send {msg['op']} message.")
        self._post(msg)

    # --- waiting -------------------------------------------------------------------------------------------

    async def _wait_for_states(self, states: Collection[FutureState], first: bool = False) -> None:
        """On the loop: until all states (or the first) are done."""
        pending = [state for state in states if not state.done]
        if not pending or (first and len(pending) < len(states)):
            return
        done = asyncio.get_running_loop().create_future()
        left = 1 if first else len(pending)

        def settled() -> None:
            nonlocal left
            left -= 1
            if left <= 0 and not done.done():
                done.set_result(None)

        for state in pending:
            state.wait(settled)
        try:
            await done
        finally:
            if first or left > 0:
                # whoever gives up, or has what it waited for, leaves nothing behind at states that are still pending
                for state in pending:
                    state.stop_waiting(settled)

    def _when_done(self, future: Future, fn: Callable[[Future], Any]) -> None:
        """Call ``fn(future)`` on the loop as soon as it is done; from any thread."""
        state = future._bound()

        def arrange() -> None:
            if state.done:
                fn(future)
            else:
                state.wait(lambda: fn(future))

        self._asyncio_loop.call_soon_threadsafe(arrange)

    def _add_done_callback(self, future: Future, fn: Callable[[Future], Any]) -> None:
        if self._callback_executor is None:
            self._callback_executor = ThreadPoolExecutor(1, thread_name_prefix="Dask-Callback-Thread")
        executor = self._callback_executor

        def run(done: Future) -> None:
            try:
                fn(done)
            except Exception:  # user code, and nobody to tell
                logger.exception("The callback %r of %r failed", fn, done)

        self._when_done(future, lambda done: executor.submit(run, done))

    # --- the stream ----------------------------------------------------------------------------------------

    async def _connect_stream(self, address: str, timeout: float) -> None:
        """Register with the scheduler and follow its stream."""
        comm = await connect(address, timeout, **self.connection_args)
        comm.name = "Client->Scheduler"
        await comm.write(
            {"op": "register-client", "client": self.id, "reply": False, "versions": get_versions()}
        )
        try:
            msgs = await comm.read()
        except CommClosedError as exc:
            raise OSError(
                f"the scheduler {address} closed the connection during registration: {exc}"
            ) from exc
        if len(msgs) != 1 or msgs[0].get("op") != "stream-start":
            raise OSError(f"{address} is not a scheduler: it answered {msgs!r:.200}")
        if msgs[0].get("error"):
            raise ImportError(msgs[0]["error"])
        if msgs[0].get("warning"):
            self._warn_versions(msgs[0]["warning"])
        self._tables = GRAPH_TABLE in comm.extensions
        stream = Stream()
        stream.start(comm)
        self.scheduler_comm = stream
        self._handle_task = asyncio.ensure_future(self._follow_stream(comm, address))

    def _warn_versions(self, text: str) -> None:
        raise NotImplementedError

    async def _follow_stream(self, comm: Comm, address: str) -> None:
        try:
            await comm.follow(self._handle_batch)
        except _SchedulerCloses:
            await self._scheduler_said_goodbye()
            return
        if self.status == "running":
            await self._connection_lost(address)

    def _handle_batch(self, msgs: Any) -> None:
        """Messages of the scheduler."""
        handlers = self._handlers
        for msg in msgs if type(msgs) is not dict else (msgs,):
            op = msg.pop("op", None)
            if op in ("close", "stream-closed"):
                raise _SchedulerCloses
            handler = handlers.get(op)
            if handler is None:
                logger.debug("Ignored message of the scheduler: %r", op)
                continue
            try:
                result = handler(**msg)
                if result is not None:
                    # beside the stream: a handler that waits for a future waits for messages of this stream
                    self._spawn(self._finish_handling(result, msg))
            except Exception:  # an odd message must not cost the others
                logger.exception("Failed to handle %r from the scheduler", op)

    async def _finish_handling(self, result: Any, msg: dict[str, Any]) -> None:
        """Wait for what a user's handler of events has returned, if that can be awaited."""
        if not inspect.isawaitable(result):
            return
        try:
            await result
        except Exception:  # user code, and nobody to tell
            logger.exception("The handler of topic %r failed", msg.get("topic"))

    async def _scheduler_said_goodbye(self) -> None:
        raise NotImplementedError

    async def _connection_lost(self, address: str) -> None:
        raise NotImplementedError

    def _cancel_all(self, reason: str) -> None:
        self._cancelled_here.clear()
        for state in list(self.futures.values()):
            state.cancel(reason)

    # --- messages of the scheduler -------------------------------------------------------------------------

    def _on_keys_in_memory(
        self, keys: Iterable[Key], type: bytes | None, values: Iterable[Any] | None
    ) -> None:
        futures = self.futures
        if values is not None:
            for key, value in zip(keys, values, strict=True):
                state = futures.get(key)
                if state is not None:
                    state.inline = (value,)
                    state.finish(type)
            return
        for key in keys:
            state = futures.get(key)
            if state is not None:
                state.finish(type)

    def _on_key_in_memory(self, key: Key, type: bytes | None = None, workers: Any = None) -> None:
        state = self.futures.get(key)
        if state is not None:
            state.finish(type)

    def _on_task_erred(self, key: Key, exception: Any = None, traceback: Any = None) -> None:
        state = self.futures.get(key)
        if state is not None:
            state.err(exception, traceback)

    def _on_lost_data(self, key: Key) -> None:
        state = self.futures.get(key)
        if state is not None:
            state.lose()

    def _on_task_retried(self, key: Key) -> None:
        state = self.futures.get(key)
        if state is not None:
            state.retry()

    def _on_cancelled_keys(
        self, keys: Iterable[Key], reason: str | None = None, msg: str | None = None
    ) -> None:
        for key in keys:
            state = self.futures.get(key)
            if key in self._cancelled_here:
                # most likely the echo of our own request. If the key has been submitted again meanwhile, the echo does not mean
                # its new state: the scheduler tells how that is, and says so again if it is cancelled after all
                del self._cancelled_here[key]
                if state is not None:
                    self._post({"op": "report-key", "key": key})
            elif state is not None:
                state.cancel(reason, msg)

    def _on_adjust_heartbeat(self, interval: float) -> None:
        self._heartbeat_s = interval

    def _on_restart(self) -> None:
        logger.info("Receive restart signal from scheduler")
        self._cancel_all("scheduler-restart")
        with self._lock:
            self.futures.clear()
        self.generation += 1

    def _on_event(self, topic: str, event: Any) -> Any:
        handler = self._event_handlers.get(topic)
        if handler is None:
            self._post({"op": "unsubscribe-topic", "topic": topic, "client": self.id})
            return None
        return handler(event)

    def _on_error(self, exception: Any = None) -> None:
        logger.warning("Scheduler exception: %r", exception)

    async def _heartbeats(self) -> None:
        while self.status in ("running", "connecting"):
            await asyncio.sleep(self._heartbeat_s)
            if self.status == "running":
                self._post({"op": "heartbeat-client"})

    def _spawn(self, coro: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(coro)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _fetch(self, keys: list[Key], direct: bool | None = None) -> dict[Key, Any]:
        raise NotImplementedError

    def gather(
        self, futures: Any, errors: str = "raise", direct: Any = None, asynchronous: bool | None = None
    ) -> Any:
        """Fetch results; in `data`."""
        raise NotImplementedError

    async def _gather(self, futures: Any, errors: str = "raise", direct: Any = None) -> Any:
        raise NotImplementedError


def _forwarded_print(event: Any) -> None:
    _, msg = event
    if not isinstance(msg, dict) or "args" not in msg:
        return
    file = {1: sys.stdout, 2: sys.stderr}.get(msg.get("file", 1), sys.stdout)
    print(
        *msg["args"],
        sep=msg.get("sep", " "),
        end=msg.get("end", "\n"),
        file=file,
        flush=bool(msg.get("flush")),
    )


def _forwarded_warning(event: Any) -> None:
    _, msg = event
    if isinstance(msg, dict) and "message" in msg:
        category = msg.get("category")
        warnings.warn(
            pickle.loads(msg["message"]), pickle.loads(category) if category else UserWarning, stacklevel=2
        )


def new_id(name: str | None) -> str:
    """Id of a client."""
    return f"Client-{name}-{uuid.uuid1()}" if name else f"Client-{uuid.uuid1()}"
