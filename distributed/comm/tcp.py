"""tcp:// - non-blocking sockets driven directly by the event loop.

Measured against asyncio transports and tornado streams this costs the least CPU for small messages and copies
nothing for large ones: bytes are received into their final buffers and sent with `sendmsg` from the objects that
own them. One reader callback takes everything that the socket has.

Needs a loop with `add_reader` (asyncio's selector loops, uvloop; on Windows the selector loop that tornado installs).
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import socket
import struct
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from distributed import protocol
from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.base import Comm, CommClosedError, Connector, Listener
from distributed.comm.offload import offload
from distributed.comm.reader import FrameReader
from distributed.comm.registry import Backend, backends
from distributed.comm.utils import ensure_concrete_host, offload_dumps, resolve_host
from distributed.protocol import framing
from distributed.settings import CommSettings
from distributed.utils import get_ip, get_ipv6, has_ipv6

logger = logging.getLogger(__name__)

#: largest single send of the released package; kept for code that imports it
MAX_BUFFER_SIZE = 2**31 - 1

#: messages up to this size are joined and sent with one `send`; above, frames are never copied
JOIN_MAX_BYTES = 32 * 2**10
#: buffers per `sendmsg`: IOV_MAX is 1024 on Linux and the BSDs
MAX_IOVECS = 512
#: stop reading from the socket while this much waits to be consumed (back-pressure to the peer)
INBOX_MAX_BYTES = 64 * 2**20
INBOX_MAX_MESSAGES = 4096
#: bytes taken or given per wake-up, so that one busy peer does not starve the others
READ_ROUND_BYTES = 16 * 2**20
WRITE_ROUND_BYTES = 16 * 2**20
#: how long `close` waits for a peer that does not read, seconds
CLOSE_FLUSH_TIMEOUT_S = 5.0
#: how long a listener pauses when the process is out of file descriptors, seconds
ACCEPT_PAUSE_S = 0.5


def set_tcp_options(sock: socket.socket, timeout_s: float) -> None:
    """No delay for small messages; a dead peer is noticed within about `timeout_s`."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probes = 10
    idle = max(2, int(timeout_s // 4))
    interval = max(1, int((timeout_s - idle) // probes))
    for name, value in (("TCP_KEEPIDLE", idle), ("TCP_KEEPINTVL", interval), ("TCP_KEEPCNT", probes)):
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(timeout_s * 1000))


def _format_sockname(name: Any) -> str:
    return unparse_host_port(str(name[0]).split("%")[0], name[1])


class TCP(Comm):
    """A comm over one connected, non-blocking socket."""

    transport = "TCP"
    scheme = "tcp"

    def __init__(
        self, sock: socket.socket, deserialize: bool = True, settings: CommSettings | None = None
    ) -> None:
        super().__init__(deserialize)
        self.settings = settings or CommSettings.from_config()
        self._sock: socket.socket | None = sock
        self._fd = sock.fileno()
        self._loop = asyncio.get_running_loop()
        self._local = f"{self.scheme}://{_format_sockname(sock.getsockname())}"
        self._peer = f"{self.scheme}://{_format_sockname(sock.getpeername())}"
        self._same_host: bool = sock.getsockname()[0] == sock.getpeername()[0]
        self._reader = FrameReader()
        self._inbox = self._reader.messages
        #: of the task in `read` or in `follow`
        self._read_waiter: asyncio.Future[None] | None = None
        #: what the task in `follow` must await before the next message
        self._owed: Awaitable[Any] | None = None
        #: what `follow` hands messages to, and how they are decoded for it
        self._follower: tuple[Callable[[Any], Awaitable[Any] | None], Any] | None = None
        self._reading = False
        #: what the kernel has not taken yet, in order
        self._outgoing: deque[memoryview] = deque()
        self._drain_waiters: list[asyncio.Future[None]] = []
        self._writing = False
        #: a message that `write_nowait` refused, with the payloads it had already serialised
        self._refused: tuple[Any, Any] | None = None
        #: why the connection ended, for error messages
        self._end_reason: str = ""
        self._resume_reading()

    # --- facts ---------------------------------------------------------------------------------------------

    @property
    def local_address(self) -> str:
        return self._local

    @property
    def peer_address(self) -> str:
        return self._peer

    @property
    def same_host(self) -> bool:
        return self._same_host

    def closed(self) -> bool:
        return self._sock is None and not self._inbox

    def _closed_error(self, action: str) -> CommClosedError:
        return CommClosedError(
            f"cannot {action} {self.transport} comm {self._local} -> {self._peer}: {self._end_reason or 'it is closed'}"
        )

    # --- reading -------------------------------------------------------------------------------------------

    async def read(self, deserializers: Any = None) -> Any:
        inbox = self._inbox
        while not inbox:
            if self._sock is None:
                raise self._closed_error("read from")
            if self._read_waiter is not None:
                raise AssertionError("two tasks read from one comm at the same time")
            if not self._reading:
                self._resume_reading()
            waiter = self._read_waiter = self._loop.create_future()
            try:
                await waiter
            finally:
                self._read_waiter = None
        frames, payload_bytes = inbox.popleft()
        self._reader.queued_bytes -= payload_bytes
        if payload_bytes and self._must_offload(payload_bytes):
            return await offload(self._decode, frames, deserializers)
        return self._decode(frames, deserializers)

    def _must_offload(self, payload_bytes: int) -> bool:
        """Whether the payloads of a message are decoded in the offload thread."""
        threshold = self.settings.offload_threshold
        return self.allow_offload and self.deserialize and threshold is not None and payload_bytes > threshold

    def _decode(self, frames: list[memoryview], deserializers: Any) -> Any:
        return protocol.loads(
            frames, deserialize=self.deserialize, deserializers=deserializers, pickled=self.pickled
        )

    async def follow(self, handle: Callable[[Any], Awaitable[Any] | None], deserializers: Any = None) -> None:
        if self._follower is not None or self._read_waiter is not None:
            raise AssertionError("two tasks read from one comm at the same time")
        self._follower = (handle, deserializers)
        try:
            while True:
                more = self._hand_over()
                while more is None:
                    if self._sock is None:
                        return
                    if not self._reading:
                        self._resume_reading()
                    waiter = self._read_waiter = self._loop.create_future()
                    try:
                        await waiter
                    finally:
                        self._read_waiter = None
                    more, self._owed = self._owed, None
                    if more is None:
                        more = self._hand_over()
                await more
        finally:
            self._follower = None

    def _hand_over(self) -> Awaitable[Any] | None:
        """Give what has arrived to the follower, up to a message that must be awaited first."""
        assert self._follower is not None, "messages are handed over while somebody follows"
        handle, deserializers = self._follower
        inbox, reader = self._inbox, self._reader
        while inbox:
            frames, payload_bytes = inbox[0]
            if payload_bytes and self._must_offload(payload_bytes):
                return self._hand_over_offloaded(handle, deserializers)
            inbox.popleft()
            reader.queued_bytes -= payload_bytes
            more = handle(self._decode(frames, deserializers))
            if more is not None:
                return more
        return None

    async def _hand_over_offloaded(
        self, handle: Callable[[Any], Awaitable[Any] | None], deserializers: Any
    ) -> None:
        more = handle(await self.read(deserializers))
        if more is not None:
            await more

    def _resume_reading(self) -> None:
        if self._sock is not None and not self._reading:
            self._loop.add_reader(self._fd, self._on_readable)
            self._reading = True

    def _pause_reading(self) -> None:
        if self._reading:
            self._loop.remove_reader(self._fd)
            self._reading = False

    def _on_readable(self) -> None:
        sock = self._sock
        if sock is None:
            return
        reader = self._reader
        taken = 0
        try:
            while taken < READ_ROUND_BYTES:
                buffer = reader.get_buffer()
                n = sock.recv_into(buffer)
                if not n:
                    middle = "" if reader.at_boundary else " in the middle of a message"
                    self._end(f"the peer closed the connection{middle}")
                    return
                reader.advance(n)
                taken += n
                if n < buffer.nbytes:
                    break
        except (BlockingIOError, InterruptedError):
            pass
        except framing.FramingError as exc:
            logger.debug("Closing %r: %s", self, exc)
            self._end(f"malformed stream: {exc}")
            return
        except OSError as exc:
            self._end(str(exc))
            return
        if not self._inbox:
            return
        waiter = self._read_waiter
        if waiter is not None and not waiter.done():
            if self._follower is None:
                waiter.set_result(None)
            else:
                # the task that follows has nothing else to do: no need to wake it, unless something has to be awaited
                try:
                    self._owed = self._hand_over()
                except (
                    BaseException
                ) as exc:  # what the follower raised ends the following: its task raises it
                    failed = self._loop.create_future()
                    failed.set_exception(exc)
                    self._owed = failed
                if self._owed is not None and not waiter.done():
                    waiter.set_result(None)
        if reader.queued_bytes > INBOX_MAX_BYTES or len(self._inbox) > INBOX_MAX_MESSAGES:
            self._pause_reading()

    # --- writing -------------------------------------------------------------------------------------------

    async def write(self, msg: Any, serializers: Any = None, on_error: str = "message") -> int:
        if self._sock is None:
            raise self._closed_error("write to")
        if self._writing:
            raise AssertionError("two tasks write to one comm at the same time")
        self._writing = True
        try:
            refused, self._refused = self._refused, None
            frames: list[Any] | None = None
            finished: Any = None
            if refused is not None and refused[0] is msg:
                finished = refused[1]
            else:
                try:
                    frames = self._encode(msg, serializers, on_error)
                except protocol.PayloadBudgetExceeded as exc:
                    finished = exc.finished
            if frames is None:
                frames = await offload_dumps(
                    msg, serializers, on_error, self.handshake_options, self.settings.shard_bytes, finished
                )
            await self.drain()
            nbytes = self._transmit(frames)
            await self.drain()
            return nbytes
        finally:
            self._writing = False

    def write_nowait(self, msg: Any, serializers: Any = None, on_error: str = "message") -> bool:
        if self._sock is None:
            raise self._closed_error("write to")
        if self._outgoing or self._writing:
            return False
        try:
            frames = self._encode(msg, serializers, on_error)
        except protocol.PayloadBudgetExceeded as exc:
            self._refused = (msg, exc.finished)
            return False
        self._transmit(frames)
        return True

    async def drain(self) -> None:
        while self._outgoing:
            waiter = self._loop.create_future()
            self._drain_waiters.append(waiter)
            await waiter
        if self._sock is None:
            raise self._closed_error("write to")

    def _encode(self, msg: Any, serializers: Any, on_error: str) -> list[Any]:
        return protocol.dumps(
            msg,
            serializers=serializers,
            on_error=on_error,
            context=self.handshake_options,
            frame_split_size=self.settings.shard_bytes,
            payload_budget=self.settings.offload_threshold if self.allow_offload else None,
        )

    def _transmit(self, frames: list[Any]) -> int:
        """Hand the frames to the kernel; what it does not take goes to `_outgoing`. Returns bytes in all."""
        sock = self._sock
        if sock is None:
            raise self._closed_error("write to")
        if len(frames) == 1:
            lengths = [len(frames[0])]
        else:
            lengths = [frame.nbytes if type(frame) is memoryview else len(frame) for frame in frames]
        prelude = framing.encode_prelude(lengths)
        total = len(prelude) + sum(lengths)
        try:
            if total <= JOIN_MAX_BYTES:
                data = b"".join((prelude, *frames))
                sent = sock.send(data)
                if sent == total:
                    return total
                self._outgoing.append(memoryview(data)[sent:])
            else:
                buffers = [memoryview(prelude)]
                for frame, length in zip(frames, lengths, strict=True):
                    if length:
                        view = memoryview(frame)
                        buffers.append(view if view.format == "B" and view.ndim == 1 else view.cast("B"))
                self._outgoing.extend(buffers)
                self._send_outgoing(sock)
                if not self._outgoing:
                    return total
        except (BlockingIOError, InterruptedError):
            if total <= JOIN_MAX_BYTES:
                self._outgoing.append(memoryview(data))
        except OSError as exc:
            self._end(str(exc))
            raise self._closed_error("write to") from exc
        self._loop.add_writer(self._fd, self._on_writable)
        return total

    def _send_outgoing(self, sock: socket.socket) -> None:
        """Send from `_outgoing` until it is empty, the round is over or the kernel is full."""
        outgoing = self._outgoing
        given = 0
        while outgoing and given < WRITE_ROUND_BYTES:
            if hasattr(sock, "sendmsg"):
                sent = sock.sendmsg(list(itertools.islice(outgoing, MAX_IOVECS)))
            else:
                sent = sock.send(outgoing[0])
            given += sent
            while sent:
                head = outgoing[0]
                if sent >= head.nbytes:
                    sent -= head.nbytes
                    outgoing.popleft()
                else:
                    outgoing[0] = head[sent:]
                    sent = 0

    def _on_writable(self) -> None:
        sock = self._sock
        if sock is None:
            return
        try:
            self._send_outgoing(sock)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as exc:
            self._end(str(exc))
            return
        if not self._outgoing:
            self._loop.remove_writer(self._fd)
            self._wake_drainers()

    def _wake_drainers(self) -> None:
        waiters, self._drain_waiters = self._drain_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # --- the end -------------------------------------------------------------------------------------------

    def _end(self, reason: str) -> None:
        """Release the socket and wake everybody; messages that have arrived can still be read."""
        sock, self._sock = self._sock, None
        if sock is None:
            return
        self._end_reason = self._end_reason or reason
        if not self._loop.is_closed():
            if self._reading:
                self._loop.remove_reader(self._fd)
                self._reading = False
            self._loop.remove_writer(self._fd)
        sock.close()
        self._outgoing.clear()
        self._wake_drainers()
        waiter = self._read_waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def close(self) -> None:
        if self._sock is not None and self._outgoing:
            try:
                await asyncio.wait_for(self.drain(), CLOSE_FLUSH_TIMEOUT_S)
            except TimeoutError:
                logger.debug("%r: the peer does not read, closing without the last bytes", self)
            except CommClosedError:
                pass  # the peer went first: nothing is left to flush
        sock = self._sock
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # not connected any more: the close below is all there is to do
        self._inbox.clear()
        self._end("closed by this side")

    def abort(self) -> None:
        sock = self._sock
        self._inbox.clear()
        if sock is not None:
            try:
                # a reset instead of an orderly end: the peer must not take a cut stream for a complete one
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            except OSError:
                pass  # already gone
            self._end("aborted by this side")


class TCPConnector(Connector):
    """Dials tcp locations."""

    comm_class: type[TCP] = TCP

    async def connect(self, address: str, deserialize: bool = True, **connection_args: Any) -> Comm:
        host, port = parse_host_port(address)
        loop = asyncio.get_running_loop()
        settings = CommSettings.from_config()
        try:
            infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except socket.gaierror as exc:
            raise OSError(f"cannot resolve host name {host!r}: {exc}") from exc
        error: OSError | None = None
        for family, kind, proto, _, sockaddr in infos:
            sock = socket.socket(family, kind, proto)
            try:
                sock.setblocking(False)
                await loop.sock_connect(sock, sockaddr)
                set_tcp_options(sock, settings.tcp_timeout_s)
                return self.comm_class(sock, deserialize, settings)
            except OSError as exc:
                sock.close()
                error = exc
            except BaseException:
                sock.close()
                raise
        raise error or OSError(f"host name {host!r} resolves to no address")


class TCPListener(Listener):
    """Accepts on one port, on every address that the host stands for."""

    comm_class: type[TCP] = TCP
    scheme = "tcp"

    def __init__(
        self,
        loc: str,
        handle_comm: Callable[[Comm], Any],
        deserialize: bool = True,
        allow_offload: bool = True,
        default_host: str | None = None,
        default_port: int = 0,
        **connection_args: Any,
    ) -> None:
        self.host, self.port = parse_host_port(loc, default_port)
        self.handle_comm = handle_comm
        self.deserialize = deserialize
        self.allow_offload = allow_offload
        self.default_host = default_host
        self.settings = CommSettings.from_config()
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bound: tuple[str, int] | None = None

    async def start(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        hosts = [self.host]
        if not self.host:
            hosts = ["0.0.0.0", "::"] if has_ipv6() else ["0.0.0.0"]
        port = self.port
        try:
            for host in hosts:
                for family, kind, proto, _, sockaddr in await loop.getaddrinfo(
                    host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
                ):
                    sock = socket.socket(family, kind, proto)
                    self._sockets.append(sock)
                    sock.setblocking(False)
                    if sys.platform != "win32":
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    if family == socket.AF_INET6:
                        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                    sock.bind(sockaddr)
                    sock.listen(self.settings.socket_backlog)
                    # the further sockets share the port that the first one was given
                    port = sock.getsockname()[1]
                    if self._bound is None:
                        self._bound = sock.getsockname()[:2]
        except socket.gaierror as exc:
            self.stop()
            raise OSError(f"cannot listen on {self.scheme}://{self.host}:{self.port}: {exc}") from exc
        except OSError as exc:
            self.stop()
            raise OSError(
                exc.errno, f"cannot listen on {self.scheme}://{self.host}:{port}: {exc.strerror or exc}"
            ) from exc
        for sock in self._sockets:
            loop.add_reader(sock.fileno(), self._on_acceptable, sock)

    def _on_acceptable(self, sock: socket.socket) -> None:
        assert self._loop is not None, "accepting starts in start()"
        for _ in range(self.settings.socket_backlog):
            try:
                conn, _addr = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                if exc.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    logger.warning(
                        "Cannot accept connections on %s for now: %s. Raise the limit of open files (ulimit -n) if this persists",
                        self.contact_address,
                        exc.strerror,
                    )
                    self._loop.remove_reader(sock.fileno())
                    self._loop.call_later(ACCEPT_PAUSE_S, self._resume_accepting, sock)
                    return
                raise
            try:
                conn.setblocking(False)
                set_tcp_options(conn, self.settings.tcp_timeout_s)
                comm = self.comm_class(conn, self.deserialize, self.settings)
            except OSError as exc:
                # the peer left between accept and here
                logger.debug("Connection lost while it was accepted: %s", exc)
                conn.close()
                continue
            comm.allow_offload = self.allow_offload
            task = self._loop.create_task(self._serve(comm), name=f"serve {comm.peer_address}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _resume_accepting(self, sock: socket.socket) -> None:
        if sock in self._sockets and self._loop is not None:
            self._loop.add_reader(sock.fileno(), self._on_acceptable, sock)

    async def _serve(self, comm: TCP) -> None:
        try:
            await self.on_connection(comm)
        except CommClosedError as exc:
            logger.debug("Connection from %s refused: %s", comm.peer_address, exc)
            return
        await self.handle_comm(comm)

    def stop(self) -> None:
        sockets, self._sockets = self._sockets, []
        for sock in sockets:
            if self._loop is not None and not self._loop.is_closed() and sock.fileno() != -1:
                self._loop.remove_reader(sock.fileno())
            sock.close()

    def get_host_port(self) -> tuple[str, int]:
        """What the first socket is bound to."""
        if self._bound is None:
            raise ValueError("the listener has not been started")
        return self._bound

    @property
    def listen_address(self) -> str:
        return f"{self.scheme}://{unparse_host_port(*self.get_host_port())}"

    @property
    def contact_address(self) -> str:
        host, port = self.get_host_port()
        return f"{self.scheme}://{unparse_host_port(ensure_concrete_host(host, self.default_host), port)}"


class BaseTCPBackend(Backend):
    """Address handling shared by every scheme whose locations are ``host:port``."""

    def get_address_host(self, loc: str) -> str:
        return parse_host_port(loc, default_port=0)[0]

    def get_address_host_port(self, loc: str) -> tuple[str, int]:
        return parse_host_port(loc)

    def resolve_address(self, loc: str) -> str:
        host, port = parse_host_port(loc)
        return unparse_host_port(resolve_host(host), port)

    def get_local_address_for(self, loc: str) -> str:
        host = resolve_host(parse_host_port(loc, default_port=0)[0])
        return unparse_host_port(get_ipv6(host) if ":" in host else get_ip(host), None)


class TCPBackend(BaseTCPBackend):
    """tcp://"""

    def get_connector(self) -> Connector:
        return TCPConnector()

    def get_listener(
        self, loc: str, handle_comm: Callable[..., Any], deserialize: bool, **connection_args: Any
    ) -> Listener:
        return TCPListener(loc, handle_comm, deserialize, **connection_args)


backends["tcp"] = TCPBackend()

__all__ = [
    "MAX_BUFFER_SIZE",
    "TCP",
    "BaseTCPBackend",
    "TCPBackend",
    "TCPConnector",
    "TCPListener",
]
