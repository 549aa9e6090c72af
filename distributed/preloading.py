"""Preloads: user code that runs in a server or client at start and end.

A preload is a module name, a file, a URL or source text with ``dask_setup(server)`` (plain, async, or a click command that is fed the preload
arguments) and ``dask_teardown(server)``.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import sys
import types
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import click

logger = logging.getLogger(__name__)


def validate_preload_argv(ctx: Any, param: Any, value: tuple[str, ...]) -> tuple[str, ...]:
    """Click callback: unknown options are preload arguments only when there is a preload."""
    if value and not ctx.params.get("preload"):
        raise click.UsageError(f"Got unexpected extra argument(s): {' '.join(value)}", ctx=ctx)
    return value


def _load_text(name: str, text: str) -> types.ModuleType:
    module = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
    return module


def _load(name: str) -> types.ModuleType:
    if name.startswith(("http://", "https://")):
        with urllib.request.urlopen(name) as response:
            return _load_text(name, response.read().decode())
    if "\n" in name or "def dask_setup" in name:
        return _load_text(f"preload-{uuid.uuid4().hex[:8]}", name)
    if name.endswith(".py"):
        path = Path(name).resolve()
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.exists():
            raise ImportError(f"cannot load the preload file {name!r}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module
    return importlib.import_module(name)


class Preload:
    """One preload of one object."""

    def __init__(self, dask_object: Any, name: str, argv: list[str]) -> None:
        self.dask_object = dask_object
        self.name = name
        self.argv = argv
        self.module = _load(name)

    async def start(self) -> None:
        """Run ``dask_setup``."""
        setup = getattr(self.module, "dask_setup", None)
        if setup is None:
            return
        if isinstance(setup, click.Command):
            context = click.Context(setup, allow_extra_args=False)
            setup.parse_args(context, list(self.argv))
            result = (
                setup.callback(self.dask_object, *context.args, **context.params) if setup.callback else None
            )
        else:
            result = setup(self.dask_object)
        if inspect.isawaitable(result):
            await result
        logger.info("Run preload setup: %s", self.name[:100])

    async def teardown(self) -> None:
        """Run ``dask_teardown``."""
        teardown = getattr(self.module, "dask_teardown", None)
        if teardown is None:
            return
        result = teardown(self.dask_object)
        if inspect.isawaitable(result):
            await result
        logger.info("Run preload teardown: %s", self.name[:100])


def process_preloads(dask_server: Any, preload: Any, preload_argv: Any = ()) -> list[Preload]:
    """Load preloads; one set of arguments for all, or one for each."""
    names = [preload] if isinstance(preload, str) else list(preload or ())
    argv = list(preload_argv or ())
    if argv and all(isinstance(arg, str) for arg in argv):
        argv = [argv] * len(names)
    elif not argv:
        argv = [[] for _ in names]
    if len(argv) != len(names):
        raise ValueError(f"preload and preload_argv have mismatched lengths {len(names)} != {len(argv)}")
    return [Preload(dask_server, name, list(args)) for name, args in zip(names, argv, strict=True)]
