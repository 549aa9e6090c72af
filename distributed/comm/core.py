"""`connect` and `listen`: how comms come to be, on whatever transport an address names.

Retries and their back-off live here; one attempt is the transport's `Connector`. The classes of `comm.base` are re-exported, since
this module is their public home.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from dask.utils import parse_timedelta

from distributed.comm.addressing import parse_address
from distributed.comm.base import (
    ACCEPT_HANDSHAKE_TIMEOUT_S,
    Comm,
    CommClosedError,
    Connector,
    FatalCommClosedError,
    Listener,
)
from distributed.comm.registry import get_backend
from distributed.settings import connect_timeout

__all__ = [
    "ACCEPT_HANDSHAKE_TIMEOUT_S",
    "Comm",
    "CommClosedError",
    "Connector",
    "FatalCommClosedError",
    "Listener",
    "connect",
    "listen",
]

#: first pause between connection attempts, seconds; doubles with jitter. As the released package does.
BACKOFF_BASE_S = 0.01
#: longest pause between attempts: a server that comes up is noticed within this time
BACKOFF_MAX_S = 1.0


async def connect(
    addr: str,
    timeout: float | str | None = None,
    deserialize: bool = True,
    handshake_overrides: dict[str, Any] | None = None,
    *,
    allow_offload: bool = True,
    **connection_args: Any,
) -> Comm:
    """Open a comm to an address, trying again with jittered back-off until `timeout`.

    Parameters
    ----------
    timeout
        Seconds or a duration string; default ``distributed.comm.timeouts.connect``.
    allow_offload
        Set on the comm before its first message.

    Raises
    ------
    OSError
        The peer could not be reached in time; names the address, the time-out and the last reason.
    FatalCommClosedError
        Refused for a reason that another attempt cannot cure.
    ValueError
        Unknown scheme.
    """
    limit = connect_timeout() if timeout is None else parse_timedelta(timeout, default="s")
    scheme, loc = parse_address(addr)
    connector = get_backend(scheme).get_connector()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit
    attempt = 0
    reason: BaseException | None = None
    # The first attempt gets a fifth of the time, so that a lost SYN does not use up all of it.
    attempt_limit = limit / 5
    while True:
        remaining = deadline - loop.time()
        if remaining <= 0 and attempt:
            break
        comm: Comm | None = None
        try:
            async with asyncio.timeout(max(min(attempt_limit, remaining), 1e-3)):
                comm = await connector.connect(loc, deserialize=deserialize, **connection_args)
                comm.allow_offload = allow_offload
                await comm.perform_handshake(handshake_overrides)
                return comm
        except FatalCommClosedError:
            if comm is not None:
                comm.abort()
            raise
        except OSError as exc:  # TimeoutError is one
            if comm is not None:
                comm.abort()
            reason = exc
        except BaseException:
            if comm is not None:
                comm.abort()
            raise
        attempt += 1
        attempt_limit = limit
        pause = min(BACKOFF_BASE_S * 2 ** min(attempt, 16), BACKOFF_MAX_S) * random.uniform(0.5, 1.0)
        pause = min(pause, max(deadline - loop.time(), 0))
        await asyncio.sleep(pause)
    detail = str(reason) or type(reason).__name__
    raise OSError(
        f"Timed out trying to connect to {addr} after {limit:g} s ({attempt} attempts; last error: {detail})"
    ) from reason


async def listen(
    addr: str,
    handle_comm: Callable[[Comm], Awaitable[None]],
    deserialize: bool = True,
    *,
    allow_offload: bool = True,
    **listen_args: Any,
) -> Listener:
    """Listen on an address; `handle_comm` is called with each comm after its handshake.

    Returns a started listener.

    Raises
    ------
    OSError
        The address cannot be bound; names it.
    ValueError
        Unknown scheme.
    """
    scheme, loc = parse_address(addr)
    listener = get_backend(scheme).get_listener(loc, handle_comm, deserialize, **listen_args)
    listener.allow_offload = allow_offload
    await listener.start()
    return listener
