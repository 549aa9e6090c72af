"""Wires: addresses, transports, the handshake and the offload rule.

Importing this package registers the built-in transports. Start reading at `base.py` (what a comm is), then
`core.py` (connect and listen), `tcp.py` (the transport that matters).
"""

from __future__ import annotations

from distributed.comm import inproc, tcp  # register the built-in transports
from distributed.comm.addressing import (
    address_from_user_args,
    addresses_from_user_args,
    get_address_host,
    get_address_host_port,
    get_local_address_for,
    normalize_address,
    parse_address,
    parse_host_port,
    resolve_address,
    unparse_address,
    unparse_host_port,
    uri_from_host_port,
)
from distributed.comm.core import (
    Comm,
    CommClosedError,
    Connector,
    FatalCommClosedError,
    Listener,
    connect,
    listen,
)
from distributed.comm.registry import Backend, backends, get_backend
from distributed.comm.utils import ensure_concrete_host, from_frames, to_frames

__all__ = [
    "Backend",
    "Comm",
    "CommClosedError",
    "Connector",
    "FatalCommClosedError",
    "Listener",
    "address_from_user_args",
    "addresses_from_user_args",
    "backends",
    "connect",
    "ensure_concrete_host",
    "from_frames",
    "get_address_host",
    "get_address_host_port",
    "get_backend",
    "get_local_address_for",
    "inproc",
    "listen",
    "normalize_address",
    "parse_address",
    "parse_host_port",
    "resolve_address",
    "tcp",
    "to_frames",
    "unparse_address",
    "unparse_host_port",
    "uri_from_host_port",
]
