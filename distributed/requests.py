"""Requests that every role answers alike: running a user's function, showing the log."""

from __future__ import annotations

import inspect
import logging
from collections import deque
from typing import Any

from distributed.core import error_message, maybe_await
from distributed.protocol import pickle, to_serialize

logger = logging.getLogger(__name__)


class LogBuffer(logging.Handler):
    """Keeps the latest records of a logger for whoever asks."""

    def __init__(self, length: int) -> None:
        super().__init__(logging.DEBUG)
        self.records: deque[tuple[float, str, str]] = deque(maxlen=length)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append((record.created, record.levelname, self.format(record)))

    def latest(self, start: float = 0, n: int | None = None, timestamps: bool = False) -> list[Any]:
        """(level, text), newest first; with timestamps (time, level, text)."""
        chosen = [record for record in reversed(self.records) if record[0] >= start]
        if n is not None:
            chosen = chosen[:n]
        return chosen if timestamps else [record[1:] for record in chosen]


async def run_user_function(
    server: Any, argument: str, function: Any, args: Any = (), kwargs: Any = None, wait: bool = True
) -> Any:
    """Run a pickled function with the server passed as `argument` if it takes that; errors become error messages."""
    try:
        func = pickle.loads(function)
        arguments = pickle.loads(args) if isinstance(args, bytes) else tuple(args or ())
        keywords = pickle.loads(kwargs) if isinstance(kwargs, bytes) else dict(kwargs or {})
        try:
            if argument in inspect.signature(func).parameters:
                keywords[argument] = server
        except (TypeError, ValueError):
            pass  # builtins without a signature take no server
        result = func(*arguments, **keywords)
        if inspect.isawaitable(result):
            if not wait:
                server.run_in_background(maybe_await(result), name=f"run {func!r}")
                return {"status": "OK", "result": to_serialize(None)}
            result = await result
        return {"status": "OK", "result": to_serialize(result)}
    except Exception as exc:  # user code
        logger.debug("A function run on request failed", exc_info=True)
        return error_message(exc)
