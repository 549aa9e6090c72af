"""Cores and memory that this process may use, control groups and resource limits included."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
from dask.system import CPU_COUNT

__all__ = ["CPU_COUNT", "MEMORY_LIMIT", "memory_limit"]


def memory_limit() -> int:
    """Bytes of memory available to this process: the least of the machine, its control group and its resource limit."""
    limit = int(psutil.virtual_memory().total)
    if sys.platform == "linux":
        for path in ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max"):
            try:
                text = Path(path).read_text().strip()
            except OSError:
                continue
            if text.isdigit() and int(text) > 0:
                limit = min(limit, int(text))
    if sys.platform != "win32":
        import resource

        hard = resource.getrlimit(resource.RLIMIT_RSS)[1]
        if hard > 0:
            limit = min(limit, hard)
    return limit


MEMORY_LIMIT = memory_limit()
