"""Registers our defaults with dask's configuration and sets up logging.

The only module that does anything at import time beyond definitions: defaults must exist before anybody reads them. Nothing else reads
configuration at import.
"""

from __future__ import annotations

import asyncio
import logging
import logging.config
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.config
import yaml

config = dask.config.config

#: former names -> present names
DEPRECATIONS = {
    "allowed-failures": "distributed.scheduler.allowed-failures",
    "bandwidth": "distributed.scheduler.bandwidth",
    "default-data-size": "distributed.scheduler.default-data-size",
    "worker-ttl": "distributed.scheduler.worker-ttl",
    "multiprocessing-method": "distributed.worker.multiprocessing-method",
    "compression": "distributed.comm.compression",
    "connect-timeout": "distributed.comm.timeouts.connect",
    "tcp-timeout": "distributed.comm.timeouts.tcp",
    "default-scheme": "distributed.comm.default-scheme",
    "socket-backlog": "distributed.comm.socket-backlog",
    "diagnostics-link": "distributed.dashboard.link",
    "log-length": "distributed.admin.log-length",
    "log-format": "distributed.admin.log-format",
    "transition-log-length": "distributed.admin.low-level-log-length",
    "distributed.scheduler.transition-log-length": "distributed.admin.low-level-log-length",
    "distributed.scheduler.events-log-length": "distributed.admin.low-level-log-length",
}

#: levels of the loggers that users see, unless they say otherwise
DEFAULT_LEVELS = {
    "distributed": "info",
    "distributed.client": "warning",
    "tornado": "critical",
    "tornado.application": "error",
}


def _register_defaults() -> None:
    path = Path(__file__).with_name("distributed.yaml")
    dask.config.update_defaults(yaml.safe_load(path.read_text()))
    dask.config.deprecations.update(DEPRECATIONS)
    dask.config.rename(DEPRECATIONS)


def _find_logging_config(cfg: dict[str, Any]) -> tuple[Any, Any]:
    section = cfg.get("distributed", {})
    return section.get("logging", cfg.get("logging")), section.get(
        "logging-file-config", cfg.get("logging-file-config")
    )


def initialize_logging(cfg: dict[str, Any]) -> None:
    """Set up logging as configured: levels per logger, a ``dictConfig`` (with ``version``) or a file for ``fileConfig``.

    Raises
    ------
    RuntimeError
        Both a file and a section are given.
    """
    section, file = _find_logging_config(cfg)
    if file is not None:
        if section is not None:
            raise RuntimeError("Config options 'logging-file-config' and 'logging' are mutually exclusive.")
        logging.config.fileConfig(file, disable_existing_loggers=False)
    elif isinstance(section, dict) and "version" in section:
        logging.config.dictConfig(section)
    else:
        _initialize_levels(section or {})


def _initialize_levels(levels: dict[str, Any]) -> None:
    fmt = dask.config.get("distributed.admin.log-format")
    for name, level in {**DEFAULT_LEVELS, **levels}.items():
        if isinstance(level, str):
            level = logging.getLevelName(level.upper())
        logger = logging.getLogger(name)
        logger.setLevel(level)
        # somebody above has handlers: ours would show each record twice
        ancestor = logger.parent
        has_handlers = bool(logger.handlers)
        while ancestor is not None and not has_handlers:
            has_handlers = bool(ancestor.handlers)
            ancestor = ancestor.parent
        if not has_handlers:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter(fmt))
            logger.addHandler(handler)
            logger.propagate = False


def get_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes event loops, by ``distributed.admin.event-loop``: None for the standard one.

    Raises
    ------
    ValueError
        Unknown setting.
    ImportError
        uvloop is asked for and not installed.
    """
    setting = dask.config.get("distributed.admin.event-loop")
    if setting in ("asyncio", "tornado"):
        return None
    if setting == "uvloop":
        import uvloop

        return uvloop.new_event_loop  # type: ignore[no-any-return]
    raise ValueError(f"distributed.admin.event-loop must be asyncio, tornado or uvloop; got {setting!r}")


_register_defaults()
initialize_logging(dask.config.config)
