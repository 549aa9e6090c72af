"""Requests: `send_recv` on one comm, `rpc` to one address, `ConnectionPool` to all of them.

One request is outstanding per connection. A request that was cancelled or timed out after it was sent closes its
connection, since a late response would be taken for the next one.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

from distributed.comm import Comm, CommClosedError, connect, normalize_address
from distributed.core.errors import clean_exception
from distributed.core.status import Status


class RPCClosed(OSError):
    """The rpc or pool was closed by this side; it cannot be used any more."""


async def send_recv(
    comm: Comm, *, reply: bool = True, serializers: Any = None, deserializers: Any = None, **kwargs: Any
) -> Any:
    """Send one request (``op=...`` and its fields) and return the response.

    Raises
    ------
    Exception
        What the remote handler raised, with its remote traceback.
    CommClosedError
        The connection broke; it is closed.
    """
    msg = kwargs
    msg["reply"] = reply
    if serializers is not None:
        msg["serializers"] = serializers
    done = False
    try:
        await comm.write(msg, serializers=serializers, on_error="raise")
        response = await comm.read(deserializers=deserializers) if reply else None
        done = True
    except TypeError:
        # nothing was sent: the request could not be serialised and the connection is as good as before
        done = True
        raise
    finally:
        if not done:
            comm.abort()
        elif msg.get("close"):
            await comm.close()
    if type(response) is dict and response.get("status") == "uncaught-error":
        if comm.deserialize:
            _, exc, tb = clean_exception(**response)
            raise exc.with_traceback(tb)
        raise Exception(response["exception_text"])
    return response


class _RemoteCalls:
    """Attribute access gives a coroutine function that calls the op of that name."""

    def __getattr__(self, op: str) -> Callable[..., Awaitable[Any]]:
        if op.startswith("__"):
            raise AttributeError(op)

        async def call(**kwargs: Any) -> Any:
            return await self._call(op, kwargs)

        call.__name__ = op
        return call

    async def _call(self, op: str, kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError


class rpc(_RemoteCalls):
    """Remote calls to one server: ``await rpc(address).identity()``.

    Opens as many connections as there are calls at the same time and keeps them. Use as an asynchronous context manager or call
    `close_rpc`.

    Parameters
    ----------
    arg
        An address; or pass an open `comm`.
    timeout
        For connecting: seconds or a duration string; default ``distributed.comm.timeouts.connect``.
    """

    def __init__(
        self,
        arg: str | None = None,
        comm: Comm | None = None,
        deserialize: bool = True,
        timeout: float | str | None = None,
        connection_args: dict[str, Any] | None = None,
        serializers: Any = None,
        deserializers: Any = None,
        allow_offload: bool = True,
    ) -> None:
        if arg is None and comm is None:
            raise ValueError("rpc needs an address or an open comm")
        self._address = normalize_address(arg) if arg is not None else comm.peer_address  # type: ignore[union-attr]
        self.status = Status.running
        self.deserialize = deserialize
        self.timeout = timeout
        self.connection_args = dict(connection_args or {})
        self.serializers = serializers
        self.deserializers = deserializers if deserializers is not None else serializers
        self.allow_offload = allow_offload
        self._idle: list[Comm] = [comm] if comm is not None else []
        self._comms: set[Comm] = set(self._idle)

    @property
    def address(self) -> str:
        """The server's address."""
        return self._address

    async def live_comm(self) -> Comm:
        """A connection to use for one request; give it back with `_release` or keep it."""
        if self.status == Status.closed:
            raise RPCClosed(f"rpc to {self._address} is closed")
        while self._idle:
            comm = self._idle.pop()
            if not comm.closed():
                return comm
            self._comms.discard(comm)
        comm = await connect(
            self._address,
            self.timeout,
            deserialize=self.deserialize,
            allow_offload=self.allow_offload,
            **self.connection_args,
        )
        comm.name = "rpc"
        self._comms.add(comm)
        return comm

    async def _call(self, op: str, kwargs: dict[str, Any]) -> Any:
        if self.serializers is not None:
            kwargs.setdefault("serializers", self.serializers)
        if self.deserializers is not None:
            kwargs.setdefault("deserializers", self.deserializers)
        comm = await self.live_comm()
        try:
            return await send_recv(comm, op=op, **kwargs)
        except CommClosedError as exc:
            if self.status == Status.closed:
                raise RPCClosed(f"rpc to {self._address} was closed during {op!r}") from exc
            raise CommClosedError(f"{exc}; while calling {op!r} of {self._address}") from exc
        finally:
            if comm.closed() or self.status == Status.closed:
                self._comms.discard(comm)
                comm.abort()
            else:
                self._idle.append(comm)

    async def close_rpc(self) -> None:
        """Close all connections; calls under way fail with RPCClosed."""
        if self.status == Status.closed:
            return
        self.status = Status.closed
        self._idle.clear()
        comms, self._comms = self._comms, set()
        for comm in comms:
            await close_politely(comm)

    async def __aenter__(self) -> rpc:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close_rpc()

    def __repr__(self) -> str:
        return f"<rpc to {self._address!r}, {len(self._comms)} comms>"


async def close_politely(comm: Comm) -> None:
    """Tell the server that no request will follow, then close."""
    if not comm.closed():
        try:
            await comm.write({"op": "close", "reply": False})
        except OSError:
            pass  # the peer went first
        await comm.close()


class PooledRPCCall(_RemoteCalls):
    """Remote calls to one address through a pool."""

    def __init__(
        self, addr: str, pool: ConnectionPool, serializers: Any = None, deserializers: Any = None
    ) -> None:
        self.addr = addr
        self.pool = pool
        self.serializers = serializers
        self.deserializers = deserializers

    @property
    def address(self) -> str:
        """The server's address."""
        return self.addr

    async def _call(self, op: str, kwargs: dict[str, Any]) -> Any:
        if self.serializers is not None:
            kwargs.setdefault("serializers", self.serializers)
        if self.deserializers is not None:
            kwargs.setdefault("deserializers", self.deserializers)
        comm = await self.pool.connect(self.addr)
        try:
            return await send_recv(comm, op=op, **kwargs)
        except CommClosedError as exc:
            raise CommClosedError(f"{exc}; while calling {op!r} of {self.addr}") from exc
        finally:
            self.pool.reuse(self.addr, comm)

    async def close_rpc(self) -> None:
        """Nothing to do: the connections belong to the pool."""

    def __repr__(self) -> str:
        return f"<pooled rpc to {self.addr!r}>"


class ConnectionPool:
    """Connections to many servers, reused, at most `limit` of them open.

    Calling it with an address gives an object for remote calls. When the limit is reached the connections that have been idle for
    longest are closed; if none is idle, further requests wait.

    Not thread safe.

    Parameters
    ----------
    allow_offload
        Set on every comm that the pool opens.
    """

    def __init__(
        self,
        limit: int = 512,
        deserialize: bool = True,
        serializers: Any = None,
        deserializers: Any = None,
        connection_args: dict[str, Any] | None = None,
        timeout: float | str | None = None,
        server: Any = None,
        allow_offload: bool = True,
    ) -> None:
        if limit < 1:
            raise ValueError(f"a connection pool needs a limit of at least 1, got {limit}")
        self.limit = limit
        self.deserialize = deserialize
        self.serializers = serializers
        self.deserializers = deserializers if deserializers is not None else serializers
        self.connection_args = dict(connection_args or {})
        self.timeout = timeout
        self.server = server
        self.allow_offload = allow_offload
        self.status = Status.init
        #: idle comms per address, with the time at which they became idle; the last one is reused first
        self.available: defaultdict[str, list[tuple[float, Comm]]] = defaultdict(list)
        #: comms in use, per address
        self.occupied: defaultdict[str, set[Comm]] = defaultdict(set)
        self._connecting: dict[asyncio.Task[Comm], str] = {}
        self._waiters: list[asyncio.Future[None]] = []
        self._n_idle = 0
        self._n_active = 0

    @property
    def open(self) -> int:
        """Connections that are open or being opened."""
        return self._n_idle + self._n_active

    @property
    def active(self) -> int:
        """Connections in use or being opened."""
        return self._n_active

    async def start(self) -> None:
        """Allow connections."""
        self.status = Status.running

    def __await__(self) -> Any:
        async def started() -> ConnectionPool:
            await self.start()
            return self

        return started().__await__()

    def __call__(
        self, addr: str | None = None, ip: str | None = None, port: int | None = None
    ) -> PooledRPCCall:
        if addr is None:
            if ip is None or port is None:
                raise ValueError("give an address, or ip and port")
            addr = f"{ip}:{port}"
        return PooledRPCCall(normalize_address(addr), self, self.serializers, self.deserializers)

    def _take_idle(self, addr: str) -> Comm | None:
        idle = self.available.get(addr)
        while idle:
            _, comm = idle.pop()
            self._n_idle -= 1
            if not idle:
                del self.available[addr]
            if not comm.closed():
                return comm
        return None

    async def connect(self, addr: str, timeout: float | str | None = None) -> Comm:
        """A connection for the caller's exclusive use until `reuse`.

        Raises
        ------
        RPCClosed
            The pool is closed, or was closed meanwhile.
        OSError
            The peer cannot be reached.
        """
        while True:
            if self.status in (Status.closed, Status.closing):
                raise RPCClosed(f"the connection pool is closed; cannot connect to {addr}")
            comm = self._take_idle(addr)
            if comm is not None:
                self.occupied[addr].add(comm)
                self._n_active += 1
                return comm
            if self.open < self.limit:
                break
            if not self._evict_one():
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiters.append(waiter)
                try:
                    await waiter
                finally:
                    if waiter in self._waiters:
                        self._waiters.remove(waiter)
        self._n_active += 1
        task = asyncio.ensure_future(
            connect(
                addr,
                timeout if timeout is not None else self.timeout,
                deserialize=self.deserialize,
                allow_offload=self.allow_offload,
                **self.connection_args,
            )
        )
        self._connecting[task] = addr
        try:
            comm = await task
        except asyncio.CancelledError:
            self._n_active -= 1
            self._wake_waiter()
            current = asyncio.current_task()
            if task.cancelled() and current is not None and not current.cancelling():
                raise CommClosedError(f"gave up connecting to {addr}: it was removed from the pool") from None
            task.cancel()
            raise
        except BaseException:
            self._n_active -= 1
            self._wake_waiter()
            raise
        finally:
            del self._connecting[task]
        if self.status in (Status.closed, Status.closing):
            self._n_active -= 1
            comm.abort()
            raise RPCClosed(f"the connection pool was closed while connecting to {addr}")
        comm.name = "ConnectionPool"
        self.occupied[addr].add(comm)
        return comm

    def reuse(self, addr: str, comm: Comm) -> None:
        """Give a connection back; a closed one is forgotten."""
        in_use = self.occupied.get(addr)
        if in_use is None or comm not in in_use:
            # removed from the pool meanwhile
            comm.abort()
            return
        in_use.discard(comm)
        if not in_use:
            del self.occupied[addr]
        self._n_active -= 1
        if comm.closed() or self.status in (Status.closed, Status.closing):
            comm.abort()
        else:
            self.available[addr].append((time.monotonic(), comm))
            self._n_idle += 1
        self._wake_waiter()

    def _wake_waiter(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
                return

    def _evict_one(self) -> bool:
        """Close the connection that has been idle for longest; False if none is idle."""
        if not self.available:
            return False
        addr = min(self.available, key=lambda a: self.available[a][0][0])
        _, comm = self.available[addr].pop(0)
        if not self.available[addr]:
            del self.available[addr]
        self._n_idle -= 1
        comm.abort()
        return True

    def collect(self, idle_s: float = 0.0) -> int:
        """Close connections that have been idle for at least `idle_s` seconds; returns how many."""
        limit = time.monotonic() - idle_s
        closed = 0
        for addr in list(self.available):
            kept = [(since, comm) for since, comm in self.available[addr] if since > limit]
            for since, comm in self.available[addr]:
                if since <= limit:
                    comm.abort()
                    closed += 1
            if kept:
                self.available[addr] = kept
            else:
                del self.available[addr]
        self._n_idle -= closed
        return closed

    def remove(self, addr: str, *, reason: str = "address removed") -> None:
        """Drop every connection to an address; requests under way fail with CommClosedError."""
        for _, comm in self.available.pop(addr, ()):
            self._n_idle -= 1
            comm.abort()
        for comm in self.occupied.pop(addr, ()):
            self._n_active -= 1
            comm.abort()
        for task, target in list(self._connecting.items()):
            if target == addr:
                task.cancel(reason)
        self._wake_waiter()

    async def close(self) -> None:
        """Close all connections; requests under way fail."""
        self.status = Status.closed
        for task in list(self._connecting):
            task.cancel()
        idle = [comm for comms in self.available.values() for _, comm in comms]
        busy = [comm for comms in self.occupied.values() for comm in comms]
        self.available.clear()
        self.occupied.clear()
        self._n_idle = 0
        self._n_active = len(self._connecting)
        for comm in busy:
            comm.abort()
        for comm in idle:
            await close_politely(comm)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def __repr__(self) -> str:
        return f"<ConnectionPool: open={self.open}, active={self.active}, connecting={len(self._connecting)}>"


rpc.__module__ = ConnectionPool.__module__ = PooledRPCCall.__module__ = RPCClosed.__module__ = (
    "distributed.core"
)
