"""`Server`: what scheduler, worker and nanny have in common.

It listens, dispatches requests to `handlers` and stream messages to `stream_handlers`, owns a `ConnectionPool` and takes care of the life
cycle. It must not know what any op means.

A handler gets the comm as its first argument only if its first parameter is called ``comm``; otherwise just the fields
of the request. Third parties add handlers by writing into the dict, at any time.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ClassVar

import dask.config
from dask.utils import parse_timedelta
from tornado.ioloop import IOLoop, PeriodicCallback

from distributed.batched import begin_batch, end_batch
from distributed.comm import Comm, CommClosedError, Listener, get_address_host_port, listen, unparse_host_port
from distributed.core.errors import error_message
from distributed.core.rpc import ConnectionPool, RPCClosed
from distributed.core.status import Status
from distributed.metrics import time

logger = logging.getLogger("distributed.core")

Handler = Callable[..., Any]

#: functions -> whether they want the comm; bounded by the number of handlers that exist
_comm_wanted: dict[Any, bool] = {}


def wants_comm(handler: Handler) -> bool:
    """Whether the first parameter of a handler is named ``comm``."""
    key = getattr(handler, "__func__", handler)
    known = _comm_wanted.get(key)
    if known is None:
        try:
            parameters = list(inspect.signature(handler).parameters)
        except (TypeError, ValueError):
            parameters = []
        known = _comm_wanted[key] = bool(parameters) and parameters[0] == "comm"
    return known


class Server:
    """A process that answers requests.

    ``await server`` starts it; `close` stops it; `finished` waits for the end. Everything runs on the loop that started
    it; nothing here is thread safe.

    Parameters
    ----------
    handlers, stream_handlers
        op -> function, for requests and for messages on streams.
    blocked_handlers
        Ops that are refused; default from the config key ``distributed.<type>.blocked-handlers``.
    deserialize
        Whether payloads in requests become objects.
    timeout
        Seconds within which `start` must finish.
    allow_offload
        Whether comms of this server, accepted or opened by its pool, may size payloads and use the offload thread.
    """

    default_ip: ClassVar[str] = ""
    default_port: ClassVar[int] = 0

    def __init__(
        self,
        handlers: Mapping[str, Handler] | None = None,
        *,
        blocked_handlers: Collection[str] | None = None,
        stream_handlers: Mapping[str, Handler] | None = None,
        connection_limit: int = 512,
        deserialize: bool = True,
        serializers: Any = None,
        deserializers: Any = None,
        connection_args: dict[str, Any] | None = None,
        timeout: float | str | None = None,
        loop: IOLoop | None = None,
        allow_offload: bool = True,
    ) -> None:
        if blocked_handlers is None:
            key = f"distributed.{type(self).__name__.lower()}.blocked-handlers"
            blocked_handlers = dask.config.get(key, [])
        self.blocked_handlers = list(blocked_handlers)
        self.handlers: dict[str, Handler] = {
            "identity": self.identity,
            "echo": self.echo,
            "connection_stream": self.handle_stream_request,
            "dump_state": self.dump_state,
        }
        self.handlers.update(handlers or {})
        self.stream_handlers: dict[str, Handler] = dict(stream_handlers or {})
        self.id = f"{type(self).__name__}-{uuid.uuid4()}"
        self.deserialize = deserialize
        self.allow_offload = allow_offload
        self.serializers = serializers
        self.deserializers = deserializers
        self.connection_args = dict(connection_args or {})
        self.timeout = None if timeout is None else parse_timedelta(timeout, default="s")
        self._loop = loop
        self._status = Status.undefined
        self._address: str | None = None
        self.listeners: list[Listener] = []
        self.periodic_callbacks: dict[str, PeriodicCallback] = {}
        #: comm -> op that it is busy with, for accepted comms
        self._comms: dict[Comm, str | None] = {}
        self._handler_tasks: set[asyncio.Task[Any]] = set()
        self._background: set[asyncio.Task[Any]] = set()
        self._event_finished = asyncio.Event()
        self._startup_lock = asyncio.Lock()
        self._startup_error: BaseException | None = None
        #: seconds since the epoch
        self.time_started = time()
        self.rpc = ConnectionPool(
            limit=connection_limit,
            deserialize=deserialize,
            serializers=serializers,
            deserializers=deserializers,
            connection_args=self.connection_args,
            timeout=self.timeout,
            server=self,
            allow_offload=allow_offload,
        )
        self._status = Status.init

    # --- facts ---------------------------------------------------------------------------------------------

    @property
    def status(self) -> Status:
        """Where in its life the server is."""
        return self._status

    @status.setter
    def status(self, value: Status) -> None:
        if not isinstance(value, Status):
            raise TypeError(f"expected a Status, got {value!r}")
        self._status = value

    @property
    def loop(self) -> IOLoop:
        """The tornado view of the event loop that runs the server. RuntimeError before it is started."""
        if self._loop is None:
            raise RuntimeError(f"{self!r} has no loop yet: it has not been started")
        return self._loop

    @property
    def address(self) -> str:
        """By which others reach this server.

        Raises
        ------
        ValueError
            It does not listen yet.
        """
        if self._address is None:
            if not self.listeners:
                raise ValueError(f"{type(self).__name__} has no address yet: it has not been started")
            self._address = self.listeners[0].contact_address
        return self._address

    @property
    def address_safe(self) -> str:
        """The address, or a text that says there is none; never raises."""
        try:
            return self.address
        except ValueError:
            return "not-running"

    @property
    def listen_address(self) -> str:
        """What the first listener is bound to."""
        if not self.listeners:
            raise ValueError(f"{type(self).__name__} does not listen: it has not been started")
        return self.listeners[0].listen_address

    @property
    def port(self) -> int:
        """Port of the first listener."""
        return get_address_host_port(self.listen_address)[1]

    def identity(self) -> dict[str, Any]:
        """Who this is."""
        return {"type": type(self).__name__, "id": self.id}

    def echo(self, data: Any = None) -> Any:
        """The argument itself."""
        return data

    def dump_state(self, exclude: Collection[str] = ()) -> dict[str, Any]:
        """Facts for debugging, without the named ones."""
        state = {
            "type": type(self).__name__,
            "id": self.id,
            "address": self.address_safe,
            "status": self.status.name,
        }
        return {key: value for key, value in state.items() if key not in exclude}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address_safe!r}, status: {self.status.name}>"

    # --- life ----------------------------------------------------------------------------------------------

    def __await__(self) -> Any:
        return self.start().__await__()

    async def __aenter__(self) -> Any:
        await self
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start_unsafe(self) -> Any:
        """What a subclass does to start. `start` adds locking, the time-out and the clean-up after errors."""
        await self.rpc.start()
        return self

    async def start(self) -> Any:
        """Start; a second call returns when the first has finished.

        Raises
        ------
        RuntimeError
            The server failed to start; the cause is chained.
        TimeoutError
            It did not start in time.
        """
        async with self._startup_lock:
            if self.status == Status.failed:
                assert self._startup_error is not None, "a failed start leaves its error"
                raise self._startup_error
            if self.status != Status.init:
                return self
            # here, and not when it is first asked for, which may be in a thread of a task
            self._loop = IOLoop.current()
            try:
                await asyncio.wait_for(self.start_unsafe(), timeout=self.timeout)
            except TimeoutError as exc:
                await self._close_after_failure(exc)
                raise TimeoutError(f"{type(self).__name__} did not start within {self.timeout:g} s") from exc
            except Exception as exc:
                await self._close_after_failure(exc)
                raise RuntimeError(f"{type(self).__name__} failed to start.") from exc
            if self.status == Status.init:
                self.status = Status.running
        return self

    async def _close_after_failure(self, exc: BaseException) -> None:
        self._startup_error = exc
        await self.close(reason=f"failure-to-start-{type(exc).__name__}")
        self.status = Status.failed

    async def listen(
        self, port_or_addr: int | str | None = None, *, allow_offload: bool | None = None, **listen_args: Any
    ) -> None:
        """Accept connections on an address, or on a port of the default interface.

        Parameters
        ----------
        allow_offload
            Set on every comm that this listener accepts; default: the server's own setting.
        """
        if port_or_addr is None:
            port_or_addr = self.default_port
        if isinstance(port_or_addr, int):
            addr = unparse_host_port(self.default_ip, port_or_addr)
        else:
            addr = port_or_addr
        listener = await listen(
            addr,
            self.handle_comm,
            deserialize=self.deserialize,
            allow_offload=self.allow_offload if allow_offload is None else allow_offload,
            **listen_args,
        )
        self.listeners.append(listener)

    async def finished(self) -> None:
        """Wait until the server is closed."""
        await self._event_finished.wait()

    def start_periodic_callbacks(self) -> None:
        """Start all periodic callbacks that are not running."""
        for callback in self.periodic_callbacks.values():
            if not callback.is_running():
                callback.start()

    def run_in_background(self, coro: Any, name: str | None = None) -> asyncio.Task[Any]:
        """Run a coroutine until it ends or the server closes; a failure is logged."""
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(coro, name=name)
        self._background.add(task)
        task.add_done_callback(self._background_done)
        return task

    def _background_done(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:
            logger.error("Background task %s of %r failed", task.get_name(), self, exc_info=exc)

    async def close(self, timeout: float | None = None, *, reason: str = "") -> Any:
        """Stop listening, close all connections, wait for nothing else. Closing twice is harmless."""
        for callback in self.periodic_callbacks.values():
            callback.stop()
        listeners, self.listeners = self.listeners, []
        if listeners and self._address is None:
            self._address = listeners[0].contact_address
        for listener in listeners:
            result = listener.stop()
            if inspect.isawaitable(result):
                await result
        current = asyncio.current_task()
        pending = [task for task in self._background if task is not current]
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.gather(*pending, return_exceptions=True)
        await self.rpc.close()
        for comm in list(self._comms):
            await comm.close()
        # a handler may be what called us: it ends by itself
        handlers = [task for task in self._handler_tasks if task is not current]
        if handlers:
            _, still_running = await asyncio.wait(handlers, timeout=0.5)
            for task in still_running:
                task.cancel()
        self._status = Status.closed
        self._event_finished.set()

    # --- requests ------------------------------------------------------------------------------------------

    async def handle_comm(self, comm: Comm) -> None:
        """Serve the requests of one connection, one after the other, until either side closes it."""
        if self._event_finished.is_set():
            comm.abort()
            return
        task = asyncio.current_task()
        assert task is not None, "listeners serve each comm in a task"
        self._handler_tasks.add(task)
        self._comms[comm] = None
        try:
            while not comm.closed():
                try:
                    msg = await comm.read(deserializers=self.deserializers)
                except CommClosedError:
                    break
                except Exception as exc:  # the payload cannot be decoded: only this request fails
                    logger.debug("Undecodable request from %s: %r", comm.peer_address, exc)
                    await comm.write(error_message(exc, "uncaught-error"))
                    continue
                if type(msg) is not dict or "op" not in msg:
                    logger.debug("Closing %r: a request must be a map with an 'op', got %.200r", comm, msg)
                    comm.abort()
                    break
                if not await self._serve_request(comm, msg):
                    break
        except CommClosedError as exc:
            logger.debug("Connection to %s lost: %s", comm.peer_address, exc)
        finally:
            self._handler_tasks.discard(task)
            self._comms.pop(comm, None)
            if not comm.closed():
                await comm.close()

    async def _serve_request(self, comm: Comm, msg: dict[str, Any]) -> bool:
        """Carry out one request and answer it. False: the connection has been closed or is to be."""
        op = msg.pop("op")
        reply = msg.pop("reply", True)
        close_after = msg.pop("close", False)
        if op == "close":
            if reply:
                await comm.write("OK")
            return False
        serializers = msg.get("serializers")
        handler = self.handlers.get(op)
        if serializers is not None and (handler is None or not _accepts(handler, "serializers")):
            del msg["serializers"]
        self._comms[comm] = op
        result: Any
        try:
            if op in self.blocked_handlers:
                raise ValueError(
                    f"The {op!r} handler has been explicitly disallowed in {type(self).__name__}; "
                    f"see the configuration key distributed.{type(self).__name__.lower()}.blocked-handlers"
                )
            if handler is None:
                logger.debug("No handler for op %r of %s", op, comm.peer_address)
                result = None
            else:
                result = handler(comm, **msg) if wants_comm(handler) else handler(**msg)
                if inspect.isawaitable(result):
                    result = await result
        except CommClosedError as exc:
            if comm.closed():
                return False
            result = error_message(exc, "uncaught-error")
        except (RPCClosed, asyncio.CancelledError):
            if self.status in (Status.running, Status.paused) and not self._event_finished.is_set():
                raise
            return False
        except Exception as exc:
            logger.debug("Exception while handling op %r of %s", op, comm.peer_address, exc_info=True)
            result = error_message(exc, "uncaught-error")
        finally:
            self._comms[comm] = None
        if reply and result is not Status.dont_reply:
            try:
                await comm.write(result, serializers=serializers)
            except CommClosedError:
                return False
            except Exception as exc:  # the result cannot be serialised: the caller must learn that
                await comm.write(error_message(exc, "uncaught-error"))
        return not close_after and not comm.closed()

    async def handle_stream_request(self, comm: Comm) -> None:
        """The op ``connection_stream``: the connection becomes a stream."""
        await self.handle_stream(comm)

    async def handle_stream(self, comm: Comm, extra: dict[str, Any] | None = None) -> None:
        """Read batches and call ``stream_handlers[op](**extra, **fields)`` for each message, in order.

        Plain functions are called inline; coroutine functions are awaited before the next message. Returns when the connection
        ends; it is closed then. An unknown op or wrong fields raise: a peer that speaks another language must not be half understood.
        """
        handlers = self.stream_handlers

        def handle(msgs: Any) -> Any:
            rest = iter((msgs,) if type(msgs) is dict else msgs)
            pending = self._handle_messages(comm, handlers, extra, rest)
            return None if pending is None else finish(rest, pending)

        async def finish(rest: Iterator[dict[str, Any]], pending: Any) -> None:
            while pending is not None:
                await pending
                pending = self._handle_messages(comm, handlers, extra, rest)

        try:
            await comm.follow(handle, self.deserializers)
        except _StreamClosed:
            pass
        finally:
            await comm.close()

    def _handle_messages(
        self,
        comm: Comm,
        handlers: Mapping[str, Handler],
        extra: dict[str, Any] | None,
        msgs: Iterator[Any],
    ) -> Any:
        """Call the handlers of messages, up to one that has to be awaited before the next: returns what it returned."""
        mine = begin_batch()
        try:
            for msg in msgs:
                if msg == "OK":
                    break
                op = msg.pop("op", None)
                handler = handlers.get(op)
                if handler is None:
                    if op == "close-stream":
                        raise _StreamClosed
                    raise ValueError(f"unknown op {op!r} on the stream of {comm.peer_address}")
                if extra:
                    result = (
                        handler(**extra, **msg)
                        if extra.keys().isdisjoint(msg)
                        else handler(**{**extra, **msg})
                    )
                else:
                    result = handler(**msg)
                if result is not None and inspect.isawaitable(result):
                    return result
        finally:
            if mine:
                end_batch()
        return None


class _StreamClosed(Exception):
    """The peer has said that it closes its stream."""


_keyword_accepted: dict[tuple[Any, str], bool] = {}


def _accepts(handler: Handler, keyword: str) -> bool:
    """Whether a handler takes a keyword argument."""
    key = (getattr(handler, "__func__", handler), keyword)
    known = _keyword_accepted.get(key)
    if known is None:
        try:
            parameters = inspect.signature(handler).parameters
        except (TypeError, ValueError):
            return False
        known = _keyword_accepted[key] = keyword in parameters
    return known


async def maybe_await(value: Any) -> Any:
    """The value, awaited if it is awaitable."""
    if inspect.isawaitable(value):
        return await value
    return value


Server.__module__ = "distributed.core"
