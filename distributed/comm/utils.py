"""Messages to frames and back, with the offload rule; helpers that several transports share.

The rule (who may leave the event loop, and who pays for knowing): the control part of a message is packed inline, always,
and never sized. Only payloads are sized, only when offloading is allowed, and only until the threshold is
crossed. On the way in, the decision uses frame lengths that the transport already knows.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import dask.config

from distributed import protocol
from distributed.comm.offload import offload
from distributed.settings import OFFLOAD_KEY, parse_offload_threshold
from distributed.utils import get_ip, get_ipv6

#: "use the configured threshold", for callers that do not hold `CommSettings`, such as third-party transports
CONFIGURED = -1


def _threshold(value: int | None) -> int | None:
    if value == CONFIGURED:
        return parse_offload_threshold(dask.config.get(OFFLOAD_KEY))
    return value


async def to_frames(
    msg: Any,
    allow_offload: bool = True,
    serializers: Any = None,
    on_error: str = "message",
    context: dict[str, Any] | None = None,
    frame_split_size: int | None = None,
    offload_threshold: int | None = CONFIGURED,
) -> list[Any]:
    """Encode a message; payloads above the threshold are serialised in the offload thread.

    Parameters
    ----------
    offload_threshold
        Bytes; None: never offload. By default the configured value.

    Returns
    -------
    Frames: bytes-like objects, frame 0 is the control part.
    """
    budget = _threshold(offload_threshold) if allow_offload else None
    if budget is None:
        return protocol.dumps(
            msg,
            serializers=serializers,
            on_error=on_error,
            context=context,
            frame_split_size=frame_split_size,
        )
    try:
        return protocol.dumps(
            msg,
            serializers=serializers,
            on_error=on_error,
            context=context,
            frame_split_size=frame_split_size,
            payload_budget=budget,
        )
    except protocol.PayloadBudgetExceeded as exc:
        return await offload_dumps(msg, serializers, on_error, context, frame_split_size, exc.finished)


async def offload_dumps(
    msg: Any,
    serializers: Any,
    on_error: str,
    context: dict[str, Any] | None,
    frame_split_size: int | None,
    finished: Any,
) -> list[Any]:
    """Second pass over a message whose payloads crossed the budget, in the offload thread."""

    def encode() -> list[Any]:
        return protocol.dumps(
            msg,
            serializers=serializers,
            on_error=on_error,
            context=context,
            frame_split_size=frame_split_size,
            finished=finished,
        )

    return await offload(encode)


async def from_frames(
    frames: Sequence[Any],
    deserialize: bool = True,
    deserializers: Any = None,
    allow_offload: bool = True,
    payload_bytes: int | None = None,
    offload_threshold: int | None = CONFIGURED,
) -> Any:
    """Decode a message; payloads above the threshold are deserialised in the offload thread.

    Parameters
    ----------
    payload_bytes
        Length of all frames but the first, if the transport knows it already.
    """
    if allow_offload and deserialize and len(frames) > 1:
        threshold = _threshold(offload_threshold)
        if threshold is not None:
            if payload_bytes is None:
                payload_bytes = sum(memoryview(frame).nbytes for frame in frames[1:])
            if payload_bytes > threshold:

                def decode() -> Any:
                    return protocol.loads(frames, deserialize=True, deserializers=deserializers)

                return await offload(decode)
    return protocol.loads(frames, deserialize=deserialize, deserializers=deserializers)


def ensure_concrete_host(host: str, default_host: str | None = None) -> str:
    """The host itself, or for a wildcard one by which other machines reach us."""
    if host in ("0.0.0.0", ""):
        return default_host or get_ip()
    if host == "::":
        return default_host or get_ipv6()
    return host


def resolve_host(host: str) -> str:
    """The IP number of a host name; itself if it is one already. OSError names the host."""
    if not host or host in ("0.0.0.0", "::"):
        return host
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except socket.gaierror as exc:
        raise OSError(f"cannot resolve host name {host!r}: {exc}") from exc
    # IPv4 first: names such as "localhost" usually have both, and released peers listen on IPv4
    infos.sort(key=lambda info: info[0] != socket.AF_INET)
    return str(infos[0][4][0])
