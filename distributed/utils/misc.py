"""Small functions that did not find a better home: imports by name, sizes of buffers, command-line keywords."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import dask.config


def import_term(name: str) -> Any:
    """The object behind a dotted name: ``"package.module.attribute"`` or ``"package.module:attribute"``."""
    if ":" in name:
        module, _, attribute = name.partition(":")
        return getattr(importlib.import_module(module), attribute)
    module, _, attribute = name.rpartition(".")
    if not module:
        return importlib.import_module(attribute)
    return getattr(importlib.import_module(module), attribute)


def iscoroutinefunction(f: Any) -> bool:
    """Whether calling `f` gives a coroutine, also through partial objects."""
    return inspect.iscoroutinefunction(f)


def nbytes(frame: Any, _bytes_like: tuple[type, ...] = (bytes, bytearray)) -> int:
    """Length of a buffer in bytes."""
    if isinstance(frame, _bytes_like):
        return len(frame)  # type: ignore[arg-type]
    try:
        return int(frame.nbytes)
    except AttributeError:
        return len(frame)


def format_dashboard_link(host: str, port: Any) -> str:
    """URL of a dashboard by the template in ``distributed.dashboard.link``."""
    template = dask.config.get("distributed.dashboard.link")
    scheme = "https" if dask.config.get("distributed.scheduler.dashboard.tls.cert", None) else "http"
    values = {**os.environ, "scheme": scheme, "host": host, "port": port}
    return str(template).format(**values)


@contextmanager
def tmpfile(extension: str = "") -> Iterator[str]:
    """A path that does not exist; what is there at the end is removed."""
    extension = extension.lstrip(".")
    handle, path = tempfile.mkstemp("." + extension if extension else "")
    os.close(handle)
    os.remove(path)
    try:
        yield path
    finally:
        with suppress(OSError):
            os.remove(path)


ignoring = suppress


def cli_keywords(d: dict[str, Any], cls: Any = None, cmd: Any = None) -> list[str]:
    """Keyword arguments as command-line options.

    >>> cli_keywords({"x": 123, "save_file": "foo.txt"})
    ['--x', '123', '--save-file', 'foo.txt']

    Raises
    ------
    ValueError
        `cls` takes no such keyword, or `cmd` (a module with a click command ``main``) no such option.
    """
    if isinstance(cls, str):
        cls = import_term(cls)
    if isinstance(cmd, str):
        cmd = importlib.import_module(cmd)
    options = set()
    if cmd is not None:
        options = {param.name for param in cmd.main.params}
    if cls is not None:
        accepted = inspect.signature(cls).parameters
        for key in d:
            if key not in accepted and key not in options:
                raise ValueError(f"Class {getattr(cls, '__name__', cls)} does not support keyword {key}")
    out: list[str] = []
    for key, value in d.items():
        option = "--" + key.replace("_", "-")
        if value is True:
            out.append(option)
        elif value is False:
            out.append("--no-" + key.replace("_", "-"))
        else:
            text = str(value)
            if " " in text and not isinstance(value, str):
                raise ValueError(f"the value of {key!r} cannot be written on a command line: {value!r}")
            out.extend((option, text))
    return out


async def read_scheduler_file(path: str, timeout_s: float) -> str:
    """The scheduler's address in a file that it writes, which it may be about to do. OSError if there is none in time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        try:
            return str(json.loads(Path(path).read_text())["address"])
        except (OSError, json.JSONDecodeError, KeyError, TypeError) as exc:
            if loop.time() > deadline:
                raise OSError(
                    f"no scheduler address in the file {path!r} within {timeout_s:g} s: {exc!r}"
                ) from exc
        await asyncio.sleep(0.05)
