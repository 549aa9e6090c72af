"""Logs as values, and logging that is silenced for a while."""

from __future__ import annotations

import functools
import html
import inspect
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dask.utils import format_time, parse_timedelta

_logger = logging.getLogger("distributed.utils")


class Log(str):
    """Log text that shows itself in notebooks."""

    def _repr_html_(self) -> str:
        return f"<pre><code>{html.escape(str(self))}</code></pre>"


class Logs(dict[str, Log]):
    """Name -> `Log`."""

    def _repr_html_(self) -> str:
        return "\n".join(
            f"<details><summary>{html.escape(str(name))}</summary>{log._repr_html_()}</details>"
            for name, log in self.items()
        )


def set_quietness(level: int | str, root: str = "distributed") -> list[tuple[logging.Handler, int]]:
    """Let the handlers of a logger pass only records of at least `level`; returns what they passed before."""
    if isinstance(level, str):
        level = int(getattr(logging, level.upper()))
    changed = []
    for handler in logging.getLogger(root).handlers:
        changed.append((handler, handler.level))
        handler.setLevel(max(level, handler.level))
    return changed


@contextmanager
def silence_logging_cmgr(level: int | str, root: str = "distributed") -> Iterator[None]:
    """Inside, the handlers of a logger let only records of at least `level` through."""
    changed = set_quietness(level, root)
    try:
        yield
    finally:
        for handler, old in changed:
            handler.setLevel(old)


class _LogErrors:
    """Log an exception that passes, then let it pass; context manager and decorator."""

    def __init__(self, pdb: bool = False) -> None:
        self.pdb = pdb

    def __enter__(self) -> _LogErrors:
        return self

    def __exit__(self, typ: Any, exc: BaseException | None, tb: Any) -> None:
        if isinstance(exc, Exception):
            _logger.exception("%s", exc)

    def __call__(self, func: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(func):

            @functools.wraps(func)
            async def wrapped_async(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return await func(*args, **kwargs)

            return wrapped_async

        @functools.wraps(func)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self:
                return func(*args, **kwargs)

        return wrapped


def log_errors(func: Callable[..., Any] | None = None, /, *, pdb: bool = False) -> Any:
    """Log exceptions: ``with log_errors():``, ``@log_errors`` or ``@log_errors()``."""
    errors = _LogErrors(pdb)
    return errors if func is None else errors(func)


@contextmanager
def warn_on_duration(duration: Any, msg: str) -> Iterator[None]:
    """Warn if the body takes longer than `duration` (seconds or duration string)."""
    start = time.monotonic()
    yield
    took = time.monotonic() - start
    if took > parse_timedelta(duration, "s"):
        warnings.warn(f"{msg} (took {format_time(took)})", stacklevel=2)
