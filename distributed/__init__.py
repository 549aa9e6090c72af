"""Distributed computing for dask: an independent implementation of ``distributed``.

Names are loaded on first use (PEP 562), so importing the package is cheap.
"""

from __future__ import annotations

import importlib
from typing import Any

import dask
import dask.config

import distributed.config  # noqa: F401 - registers the defaults
from distributed._version import __version__

# code in the wild expects the attribute to be dask's dictionary; ``from distributed.config import ...`` reaches the module
config = dask.config.config

#: frames of these files are left out of users' tracebacks
_SHORTEN = [r"distributed[\\\/](client|core|scheduler|utils|worker)[\\\/]"]
dask.config.update_defaults(
    {"admin": {"traceback": {"shorten": [*dask.config.get("admin.traceback.shorten", []), *_SHORTEN]}}}
)

#: public name -> module that has it
_NAMES = {
    "CancelledError": "distributed.utils",
    "Client": "distributed.client",
    "Future": "distributed.client",
    "KilledWorker": "distributed.scheduler",
    "Adaptive": "distributed.deploy",
    "LocalCluster": "distributed.deploy",
    "Nanny": "distributed.nanny",
    "Reschedule": "distributed.exceptions",
    "Scheduler": "distributed.scheduler",
    "SchedulerPlugin": "distributed.diagnostics.plugin",
    "Security": "distributed.security",
    "SpecCluster": "distributed.deploy",
    "Status": "distributed.core",
    "TimeoutError": "distributed.utils",
    "Worker": "distributed.worker",
    "WorkerPlugin": "distributed.diagnostics.plugin",
    "NannyPlugin": "distributed.diagnostics.plugin",
    "as_completed": "distributed.client",
    "connect": "distributed.core",
    "default_client": "distributed.client",
    "fire_and_forget": "distributed.client",
    "futures_of": "distributed.client",
    "get_client": "distributed.worker",
    "get_worker": "distributed.worker",
    "progress": "distributed.diagnostics.progressbar",
    "rejoin": "distributed.worker",
    "rpc": "distributed.core",
    "secede": "distributed.worker",
    "sync": "distributed.utils",
    "wait": "distributed.client",
    "worker_client": "distributed.worker_client",
}

__all__ = [*sorted(_NAMES), "__version__", "config", "dask"]


def __getattr__(name: str) -> Any:
    module = _NAMES.get(name)
    if module is not None:
        value = getattr(importlib.import_module(module), name)
    else:
        if name.startswith("_"):
            raise AttributeError(f"module 'distributed' has no attribute {name!r}")
        try:
            value = importlib.import_module(f"distributed.{name}")
        except ModuleNotFoundError as exc:
            if exc.name != f"distributed.{name}":
                raise
            raise AttributeError(f"module 'distributed' has no attribute {name!r}") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
