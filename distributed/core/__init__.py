"""The server kit: `Server`, remote calls, error replies.

Reading order: `status`, `rpc` (requests), `server` (their dispatch), `errors`.
"""

from __future__ import annotations

from distributed.comm import CommClosedError, connect
from distributed.core.errors import (
    ErrorMessage,
    clean_exception,
    error_message,
    pickle_exception,
    truncate_exception,
)
from distributed.core.rpc import ConnectionPool, PooledRPCCall, RPCClosed, rpc, send_recv
from distributed.core.server import Server, maybe_await
from distributed.core.status import Status

__all__ = [
    "CommClosedError",
    "ConnectionPool",
    "ErrorMessage",
    "PooledRPCCall",
    "RPCClosed",
    "Server",
    "Status",
    "clean_exception",
    "connect",
    "error_message",
    "maybe_await",
    "pickle_exception",
    "rpc",
    "send_recv",
    "truncate_exception",
]
