"""Exceptions as messages and back.

`error_message` turns an exception into the documented map, with everything pickled that can be and texts for
everything else; `clean_exception` is its inverse. Neither ever raises because of a strange exception.
"""

from __future__ import annotations

import traceback as traceback_module
from types import TracebackType
from typing import Any, Literal, TypedDict

import dask.config

from distributed.protocol import Serialize, Serialized, ToPickle, deserialize, pickle, to_serialize


class ErrorMessage(TypedDict):
    """The reply that stands for a failed operation."""

    status: str
    exception: Any
    traceback: Any
    exception_text: str
    traceback_text: str


def max_error_length() -> int:
    """Configured limit of pickled tracebacks and exception texts, bytes."""
    return int(dask.config.get("distributed.admin.max-error-length", 10_000))


def truncate_exception(exc: BaseException, limit: int = 10_000) -> BaseException:
    """The exception, or one of the same type with a shorter text where the text is longer than `limit`."""
    if len(str(exc)) <= limit:
        return exc
    text = str(exc)[:limit]
    try:
        return type(exc)("Long error message", text)
    except Exception:  # a constructor with another signature: the text is what matters
        return Exception("Long error message", type(exc).__name__, text)


def pickle_exception(exc: BaseException) -> bytes:
    """Pickle an exception; one that cannot make the round trip becomes ``Exception(repr)``."""
    try:
        data = pickle.dumps(exc)
        pickle.loads(data)
        return data
    except Exception:  # user exceptions fail in every way there is; their text must still arrive
        return pickle.dumps(Exception(repr(exc)))


def pickle_traceback(tb: TracebackType | None, limit: int) -> bytes | None:
    """Pickle a traceback, or its text where it cannot be pickled; None when larger than `limit`."""
    if tb is None:
        return None
    try:
        data = pickle.dumps(tb)
    except Exception:  # a traceback is a courtesy: its text will do
        data = pickle.dumps("".join(traceback_module.format_tb(tb)))
    return None if len(data) > limit else data


def error_message(exc: BaseException, status: Literal["error", "uncaught-error"] = "error") -> ErrorMessage:
    """The error reply for an exception."""
    limit = max_error_length()
    tb = exc.__traceback__
    pickled_tb = pickle_traceback(tb, limit)
    text = "".join(traceback_module.format_tb(tb))
    short = truncate_exception(exc, limit)
    return {
        "status": status,
        "exception": to_serialize(pickle_exception(short)),
        "traceback": None if pickled_tb is None else to_serialize(pickled_tb),
        "exception_text": repr(short),
        "traceback_text": text[:limit],
    }


def _unwrap(obj: Any) -> Any:
    """Undo payload wrappers and pickling, as far as they go."""
    if isinstance(obj, (Serialize, ToPickle)):
        obj = obj.data
    elif isinstance(obj, Serialized):
        obj = deserialize(obj.header, obj.frames)
    if isinstance(obj, (bytes, bytearray, memoryview)):
        obj = pickle.loads(obj)
    return obj


def clean_exception(
    exception: Any, traceback: Any = None, **_: Any
) -> tuple[type[BaseException] | None, BaseException, TracebackType | None]:
    """Type, exception and traceback of an error reply; undecodable parts become texts."""
    try:
        exc = _unwrap(exception)
    except Exception as failure:  # the user's exception class may do anything in its constructor
        exc = Exception(f"the remote exception could not be unpickled here: {failure!r}")
    if isinstance(exc, str):
        exc = Exception(exc)
    elif not isinstance(exc, BaseException):
        exc = Exception(repr(exc))
    try:
        tb = _unwrap(traceback)
    except Exception:  # documented: ignore tracebacks that cannot be decoded
        tb = None
    if not isinstance(tb, TracebackType):
        tb = None
    return type(exc), exc, tb
