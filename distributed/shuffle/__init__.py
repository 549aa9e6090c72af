"""Peer-to-peer shuffles: workers send each other the pieces of partitions directly, instead of a graph with a task per piece.

Names load on first use: the scheduler imports this package and must not pay for arrays or dataframes.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES: dict[str, str] = {
    "ShuffleSchedulerPlugin": "distributed.shuffle._scheduler_plugin",
    "ShuffleWorkerPlugin": "distributed.shuffle._worker_plugin",
    "check_minimal_arrow_version": "distributed.shuffle._arrow",
    "rechunk_p2p": "distributed.shuffle._rechunk",
}

__all__ = ["ShuffleSchedulerPlugin", "ShuffleWorkerPlugin", "check_minimal_arrow_version", "rechunk_p2p"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
