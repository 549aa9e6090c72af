"""inproc:// - messages passed by reference within one process.

No bytes, hence no frames and nothing to offload. The two ends may live on different event loops (a client's loop thread
and a cluster's), so delivery goes through `call_soon_threadsafe` when they differ. Containers are copied shallowly on
receipt: a receiver that changes its message must not change the sender's.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from distributed.comm.base import Comm, CommClosedError, Connector, Listener
from distributed.comm.registry import Backend, backends
from distributed.protocol import Pickled, Serialize, Serialized, ToPickle, deserialize, pickle
from distributed.utils import get_ip


def _copy(obj: Any, deserialize_payloads: bool) -> Any:
    """What a receiver gets: containers copied, payload wrappers undone as its `deserialize` says."""
    typ = type(obj)
    if typ is dict:
        return {key: _copy(value, deserialize_payloads) for key, value in obj.items()}
    if typ is list:
        return [_copy(item, deserialize_payloads) for item in obj]
    if typ is tuple:
        return tuple(_copy(item, deserialize_payloads) for item in obj)
    if typ is set:
        return set(obj)
    if typ is ToPickle:
        return obj.data
    if typ is Pickled:
        return pickle.loads(obj.header["pickled-obj"], buffers=obj.frames)
    if deserialize_payloads:
        if typ is Serialize:
            return obj.data
        if typ is Serialized:
            return deserialize(obj.header, obj.frames)
    return obj


class _Pipe:
    """One direction: a queue owned by the reader's loop."""

    __slots__ = ("closed", "loop", "messages", "waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self.loop = loop
        self.messages: deque[Any] = deque()
        self.waiter: asyncio.Future[None] | None = None
        self.closed = False

    def put(self, msg: Any) -> None:
        self.messages.append(msg)
        self.wake()

    def wake(self) -> None:
        """Let the reader look; from any thread."""
        loop = self.loop
        if loop is None or loop.is_closed():
            return
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is loop:
            self._wake_here()
        else:
            loop.call_soon_threadsafe(self._wake_here)

    def _wake_here(self) -> None:
        waiter = self.waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class InProc(Comm):
    """One end of a pair of pipes."""

    transport = "InProc"

    def __init__(
        self, local: str, peer: str, incoming: _Pipe, outgoing: _Pipe, deserialize: bool = True
    ) -> None:
        super().__init__(deserialize)
        self._local = local
        self._peer = peer
        self._in = incoming
        self._out = outgoing
        self._closed = False
        incoming.loop = asyncio.get_running_loop()
        if incoming.messages:
            incoming.wake()
        # an end that is dropped without being closed must not leave its peer waiting
        self._finalizer = weakref.finalize(self, _close_pipes, incoming, outgoing)
        self._finalizer.atexit = False

    @property
    def local_address(self) -> str:
        return self._local

    @property
    def peer_address(self) -> str:
        return self._peer

    def closed(self) -> bool:
        return self._closed

    def _closed_error(self, action: str) -> CommClosedError:
        return CommClosedError(f"cannot {action} InProc comm {self._local} -> {self._peer}: it is closed")

    async def read(self, deserializers: Any = None) -> Any:
        pipe = self._in
        while not pipe.messages:
            if self._closed or pipe.closed:
                self._closed = True
                raise self._closed_error("read from")
            pipe.waiter = asyncio.get_running_loop().create_future()
            try:
                if not pipe.messages and not pipe.closed:
                    await pipe.waiter
            finally:
                pipe.waiter = None
        return _copy(pipe.messages.popleft(), self.deserialize)

    async def write(self, msg: Any, serializers: Any = None, on_error: str = "message") -> int:
        self.write_nowait(msg)
        return 1

    def write_nowait(self, msg: Any, serializers: Any = None, on_error: str = "message") -> bool:
        if self._closed or self._out.closed:
            raise self._closed_error("write to")
        self._out.put(msg)
        return True

    async def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self._closed:
            self._closed = True
            self._finalizer()
            self._in.messages.clear()
            self._in.wake()


def _close_pipes(incoming: _Pipe, outgoing: _Pipe) -> None:
    incoming.closed = True
    outgoing.closed = True
    outgoing.wake()


class _Registry:
    """The listeners of this process, by location."""

    def __init__(self) -> None:
        self._listeners: weakref.WeakValueDictionary[str, InProcListener] = weakref.WeakValueDictionary()
        self._suffixes = itertools.count(1)
        self._lock = threading.Lock()
        self._ip: str | None = None

    def new_location(self) -> str:
        with self._lock:
            if self._ip is None:
                try:
                    self._ip = get_ip()
                except OSError:
                    self._ip = "127.0.0.1"
            return f"{self._ip}/{os.getpid()}/{next(self._suffixes)}"

    def add(self, loc: str, listener: InProcListener) -> None:
        with self._lock:
            if loc in self._listeners:
                raise OSError(f"already listening on inproc://{loc}")
            self._listeners[loc] = listener

    def remove(self, loc: str) -> None:
        with self._lock:
            self._listeners.pop(loc, None)

    def get(self, loc: str) -> InProcListener:
        _, _, rest = loc.partition("/")
        pid = rest.partition("/")[0]
        if pid and pid != str(os.getpid()):
            raise OSError(
                f"inproc://{loc} belongs to process {pid}; inproc addresses work within one process only"
            )
        listener = self._listeners.get(loc)
        if listener is None:
            raise OSError(f"nobody listens on inproc://{loc}")
        return listener


registry = _Registry()


class InProcListener(Listener):
    """Accepts inproc comms; `handle_comm` runs on the loop that started the listener."""

    def __init__(
        self, loc: str, handle_comm: Callable[[Comm], Any], deserialize: bool = True, **_: Any
    ) -> None:
        self.loc = loc or registry.new_location()
        self.handle_comm = handle_comm
        self.deserialize = deserialize
        self.loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        registry.add(self.loc, self)

    def stop(self) -> None:
        registry.remove(self.loc)
        self.loop = None

    def accept(self, peer: str, incoming: _Pipe, outgoing: _Pipe) -> None:
        """Called by a connector, from any thread."""
        loop = self.loop
        if loop is None or loop.is_closed():
            raise OSError(f"nobody listens on inproc://{self.loc}")

        def start_serving() -> None:
            comm = InProc(f"inproc://{self.loc}", peer, incoming, outgoing, self.deserialize)
            task = asyncio.get_running_loop().create_task(self._serve(comm), name=f"serve {peer}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        loop.call_soon_threadsafe(start_serving)

    async def _serve(self, comm: InProc) -> None:
        try:
            await self.on_connection(comm)
        except CommClosedError:
            return  # the dialling side gave up; it knows why
        await self.handle_comm(comm)

    @property
    def listen_address(self) -> str:
        return f"inproc://{self.loc}"

    @property
    def contact_address(self) -> str:
        return f"inproc://{self.loc}"


class InProcConnector(Connector):
    """Dials listeners of this process."""

    async def connect(self, address: str, deserialize: bool = True, **connection_args: Any) -> Comm:
        listener = registry.get(address)
        local = f"inproc://{registry.new_location()}"
        to_listener, to_connector = _Pipe(None), _Pipe(None)
        comm = InProc(local, f"inproc://{address}", to_connector, to_listener, deserialize)
        try:
            listener.accept(local, to_listener, to_connector)
        except OSError:
            comm.abort()
            raise
        return comm


class InProcBackend(Backend):
    """inproc://"""

    def get_connector(self) -> Connector:
        return InProcConnector()

    def get_listener(
        self, loc: str, handle_comm: Callable[..., Any], deserialize: bool, **connection_args: Any
    ) -> Listener:
        return InProcListener(loc, handle_comm, deserialize)

    def get_address_host(self, loc: str) -> str:
        return loc.partition("/")[0]

    def resolve_address(self, loc: str) -> str:
        return loc

    def get_local_address_for(self, loc: str) -> str:
        return registry.new_location()


backends["inproc"] = InProcBackend()
