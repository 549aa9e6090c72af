"""The client. Reading order: `client` (life), `base` (connection, future states), `future`, `sending`, `submitting`,
`computing`, `data`, `requests`, `waiting`."""

from __future__ import annotations

from typing import Any

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
from distributed.utils import import_term

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
    "get_client",
    "temp_default_client",
    "wait",
]


def __getattr__(name: str) -> Any:
    # worker code of a higher layer, which is expected here too: resolved by its dotted name when it is asked for
    if name == "get_client":
        return import_term("distributed.worker.get_client")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
