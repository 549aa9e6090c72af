"""What a comm is: the abstract `Comm`, `Connector` and `Listener`.

A comm carries whole messages, one at a time in each direction. Transports subclass `Comm`; everything above
this module sees only these classes. Nothing here knows what a message means.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Literal

from distributed.comm.handshake import HandshakeError, local_handshake, negotiate

#: how long an accepted connection may take to finish the handshake, seconds. A peer that is slower is
#: a port scanner or dead; without this limit it would hold a descriptor for ever.
ACCEPT_HANDSHAKE_TIMEOUT_S = 30.0


class CommClosedError(OSError):
    """The connection is closed, by either side; the message names both addresses where known."""


class FatalCommClosedError(CommClosedError):
    """Closed for a reason that trying again cannot cure (certificates, an incompatible handshake)."""


class Comm(ABC):
    """A connection that carries messages.

    Not thread safe: use it from the loop that made it.
    """

    #: transport name for people, for example "TCP"
    transport: ClassVar[str] = ""

    def __init__(self, deserialize: bool = True) -> None:
        #: whether `read` turns payloads into objects; False leaves `Serialized` wrappers
        self.deserialize = deserialize
        #: what becomes of pickled payloads on arrival: "load", or "opaque" to leave them `Pickled`
        self.pickled: Literal["load", "opaque"] = "load"
        #: whether large payloads may be sized and handed to the offload thread; never on for a scheduler
        self.allow_offload = True
        #: a label for people, for logs
        self.name: str | None = None
        #: what we announced
        self.local_info: dict[str, Any] = {}
        #: what the peer announced
        self.remote_info: dict[str, Any] = {}
        #: the negotiated options: ``compression`` and ``pickle-protocol``
        self.handshake_options: dict[str, Any] = {}
        #: extensions that both sides understand (docs/protocol.md)
        self.extensions: frozenset[str] = frozenset()

    @property
    @abstractmethod
    def local_address(self) -> str:
        """Address of this end."""

    @property
    @abstractmethod
    def peer_address(self) -> str:
        """Address of the other end; for a client socket not one that can be dialled."""

    @abstractmethod
    async def read(self, deserializers: Any = None) -> Any:
        """The next message. CommClosedError when there is none to come."""

    async def follow(self, handle: Callable[[Any], Awaitable[Any] | None], deserializers: Any = None) -> None:
        """Hand every message to `handle`, in order; returns when the connection has ended.

        What `handle` returns is awaited, if it is not None, before it is called again; what it raises ends the following. A transport may call it
        straight from the event of the loop that brought the message: waking a task for it would cost an iteration of the loop more.
        """
        while True:
            try:
                msg = await self.read(deserializers)
            except CommClosedError:
                return
            more = handle(msg)
            if more is not None:
                await more

    @abstractmethod
    async def write(self, msg: Any, serializers: Any = None, on_error: str = "message") -> Any:
        """Send one message; returns when the kernel has taken it. Returns its size in bytes if known."""

    @abstractmethod
    async def close(self) -> None:
        """Flush and close."""

    @abstractmethod
    def abort(self) -> None:
        """Close at once, dropping what was not sent. Never raises."""

    @abstractmethod
    def closed(self) -> bool:
        """Whether this end is closed."""

    def write_nowait(self, msg: Any, serializers: Any = None, on_error: str = "message") -> bool:
        """Send without waiting if the transport can.

        False means "use `write`": the transport has no such path, earlier bytes are still waiting, or the
        payload has to be serialised in the offload thread. True means that the message was taken; what the kernel
        did not accept at once is flushed by the loop, see `drain`.
        """
        return False

    async def drain(self) -> None:
        """Wait until everything that `write_nowait` took has been handed to the kernel."""
        return None

    @property
    def same_host(self) -> bool:
        """Whether both ends are on one machine."""
        return True

    @property
    def extra_info(self) -> dict[str, Any]:
        """Transport-specific facts about the peer, for example its certificate."""
        return {}

    def handshake_info(self) -> dict[str, Any]:
        """What this end announces; transports and servers may override parts of it."""
        return local_handshake(same_host=self.same_host)

    async def perform_handshake(self, overrides: dict[str, Any] | None = None) -> None:
        """Exchange hellos and settle the options. Both sides write first, then read."""
        self.local_info = {**self.handshake_info(), **(overrides or {})}
        await self.write(self.local_info)
        remote = await self.read()
        try:
            self.handshake_options, self.extensions = negotiate(self.local_info, remote)
        except HandshakeError as exc:
            self.abort()
            raise FatalCommClosedError(f"handshake with {self.peer_address} failed: {exc}") from exc
        self.remote_info = dict(remote)

    def __repr__(self) -> str:
        state = " (closed)" if self.closed() else ""
        name = self.name or ""
        return f"<{self.transport or type(self).__name__}{state} {name} local={self.local_address} remote={self.peer_address}>"


class Connector(ABC):
    """Dials one transport."""

    #: set on every comm it makes
    allow_offload: bool = True

    @abstractmethod
    async def connect(self, address: str, deserialize: bool = True, **connection_args: Any) -> Comm:
        """Open a comm to a location (without scheme). OSError when it fails; one attempt only."""


class Listener(ABC):
    """Accepts comms; an awaitable and an asynchronous context manager that starts and stops it."""

    #: set on every comm it accepts, before the handshake
    allow_offload: bool = True

    @abstractmethod
    async def start(self) -> None:
        """Bind and begin to accept."""

    @abstractmethod
    def stop(self) -> Any:
        """Stop accepting; comms that were accepted live on."""

    @property
    @abstractmethod
    def listen_address(self) -> str:
        """What it is bound to, possibly a wildcard."""

    @property
    @abstractmethod
    def contact_address(self) -> str:
        """An address that others can dial."""

    async def __aenter__(self) -> Listener:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        result = self.stop()
        if inspect.isawaitable(result):
            await result

    def __await__(self) -> Any:
        async def started() -> Listener:
            await self.start()
            return self

        return started().__await__()

    async def on_connection(self, comm: Comm, handshake_overrides: dict[str, Any] | None = None) -> None:
        """Set the offload rule on an accepted comm and shake hands; CommClosedError if that fails."""
        comm.allow_offload = self.allow_offload
        try:
            await asyncio.wait_for(
                comm.perform_handshake(handshake_overrides), timeout=ACCEPT_HANDSHAKE_TIMEOUT_S
            )
        except TimeoutError:
            comm.abort()
            raise CommClosedError(
                f"{comm!r} did not finish the handshake within {ACCEPT_HANDSHAKE_TIMEOUT_S} s"
            ) from None
        except Exception as exc:
            comm.abort()
            raise CommClosedError(f"{comm!r} sent no valid handshake: {exc}") from exc


#: the public home of these names is `distributed.comm.core`; exceptions travel pickled under that path
for _cls in (CommClosedError, FatalCommClosedError, Comm, Connector, Listener):
    _cls.__module__ = "distributed.comm.core"
del _cls
