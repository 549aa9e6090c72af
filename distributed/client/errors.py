"""Exceptions of clients."""

from __future__ import annotations

from concurrent.futures import CancelledError
from typing import Any


class FutureCancelledError(CancelledError):
    """The future was cancelled; says which, and why if that is known."""

    def __init__(self, key: Any, reason: str | None = None, msg: str | None = None) -> None:
        super().__init__(key, reason, msg)
        self.key = key
        self.reason = reason or "unknown"
        self.msg = msg

    def __str__(self) -> str:
        text = f"{self.key} cancelled for reason: {self.reason}."
        return f"{text}\n{self.msg}" if self.msg else text

    def __reduce__(self) -> Any:
        return (type(self), (self.key, self.reason, self.msg))


class FuturesCancelledError(CancelledError):
    """Some of several futures were cancelled."""

    def __init__(self, error_groups: list[FutureCancelledError]) -> None:
        super().__init__(error_groups)
        self.error_groups = error_groups

    def __str__(self) -> str:
        return f"{len(self.error_groups)} Future(s) were cancelled:\n" + "\n".join(
            map(str, self.error_groups)
        )


class ClosedClientError(Exception):
    """The client is closed; make a new one."""


for _cls in (FutureCancelledError, FuturesCancelledError, ClosedClientError):
    _cls.__module__ = "distributed.client"
del _cls
