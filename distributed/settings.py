"""Frozen settings of the comm layer, read from dask's config when an object is made, never at import.

``dask.config.set`` therefore works for every object created afterwards. A value that cannot be
understood raises here, naming the key, and not later in the middle of a connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dask.config
from dask.utils import parse_bytes, parse_timedelta

OFFLOAD_KEY = "distributed.comm.offload"


def parse_offload_threshold(value: Any, key: str = OFFLOAD_KEY) -> int | None:
    """Bytes above which a payload is (de)serialised in a thread; None when offloading is off.

    Accepts a size string (``"10MiB"``), a number of bytes, or ``False``.

    Raises
    ------
    ValueError
        For anything else, naming the key and the value.
    """
    hint = f"{key} must be a size such as '10MiB', a number of bytes, or false; got {value!r}"
    if value is False or value is None:
        return None
    if value is True:
        raise ValueError(hint + ". To turn offloading on, give the size above which it applies")
    if isinstance(value, str) and value.strip().lower() in ("false", "no", "off"):
        return None
    if not isinstance(value, (int, float, str)):
        raise ValueError(hint)
    try:
        size = parse_bytes(value)
    except (ValueError, TypeError) as exc:
        raise ValueError(hint) from exc
    if size < 0:
        raise ValueError(hint)
    return int(size)


def _seconds(key: str) -> float:
    value = dask.config.get(key)
    try:
        parsed = parse_timedelta(value, default="s")
    except (KeyError, ValueError, TypeError, SyntaxError) as exc:
        raise ValueError(f"{key} must be a duration such as '30s'; got {value!r}") from exc
    if parsed is None or parsed < 0:
        raise ValueError(f"{key} must be a non-negative duration; got {value!r}")
    return float(parsed)


def _size(key: str) -> int:
    value = dask.config.get(key)
    try:
        return int(parse_bytes(value))
    except (ValueError, TypeError) as exc:
        raise ValueError(f"{key} must be a size such as '64MiB' or a number of bytes; got {value!r}") from exc


@dataclass(frozen=True, slots=True)
class CommSettings:
    """What one comm, connector or listener needs to know."""

    #: bytes above which payloads are (de)serialised in the offload thread; None: never
    offload_threshold: int | None = 10 * 2**20
    #: largest frame on the wire, bytes; larger payload buffers are cut
    shard_bytes: int = 64 * 2**20
    #: ``False``, ``"auto"`` or the name of a codec
    compression: str | bool | None = False
    connect_timeout_s: float = 30.0
    #: after how long without acknowledgement a peer counts as dead, seconds
    tcp_timeout_s: float = 30.0
    socket_backlog: int = 2048
    #: module roots whose enums a received message may name
    allowed_imports: tuple[str, ...] = ("dask", "distributed")

    @classmethod
    def from_config(cls) -> CommSettings:
        """Read the current configuration; ValueError names the key that is wrong."""
        return cls(
            offload_threshold=parse_offload_threshold(dask.config.get(OFFLOAD_KEY)),
            shard_bytes=_size("distributed.comm.shard"),
            compression=dask.config.get("distributed.comm.compression"),
            connect_timeout_s=_seconds("distributed.comm.timeouts.connect"),
            tcp_timeout_s=_seconds("distributed.comm.timeouts.tcp"),
            socket_backlog=int(dask.config.get("distributed.comm.socket-backlog")),
            allowed_imports=tuple(dask.config.get("distributed.scheduler.allowed-imports")),
        )


def connect_timeout() -> float:
    """The configured connect timeout, seconds."""
    return _seconds("distributed.comm.timeouts.connect")


def default_scheme() -> str:
    """Scheme of addresses that name none."""
    return str(dask.config.get("distributed.comm.default-scheme"))
