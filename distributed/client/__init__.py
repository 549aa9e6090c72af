"""The client. Reading order: `client` (life), `base` (connection, future states), `future`, `submitting`, `data`, `requests`, `waiting`."""

from __future__ import annotations

from distributed.client.client import (
    Client,
    _get_global_client,
    default_client,
    ensure_default_client,
    fire_and_forget,
    temp_default_client,
    wait,
)
from distributed.client.errors import ClosedClientError, FutureCancelledError, FuturesCancelledError
from distributed.client.expressions import SourceCode, _MapExpr
from distributed.client.future import Future
from distributed.client.waiting import ALL_COMPLETED, FIRST_COMPLETED, _wait, as_completed, futures_of

# users' functions refer to these; peers must find them where the released package has them
for _obj in (
    wait,
    default_client,
    fire_and_forget,
    temp_default_client,
    ensure_default_client,
    futures_of,
    _wait,
):
    _obj.__module__ = "distributed.client"
del _obj

__all__ = [
    "ALL_COMPLETED",
    "FIRST_COMPLETED",
    "Client",
    "ClosedClientError",
    "Future",
    "FutureCancelledError",
    "FuturesCancelledError",
    "SourceCode",
    "_MapExpr",
    "_get_global_client",
    "_wait",
    "as_completed",
    "default_client",
    "ensure_default_client",
    "fire_and_forget",
    "futures_of",
    "temp_default_client",
    "wait",
]
