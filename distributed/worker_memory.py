"""Memory limits of workers, and the shares of them at which something is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dask.config
from dask.utils import parse_bytes, parse_timedelta

from distributed.system import CPU_COUNT, MEMORY_LIMIT


def parse_memory_limit(memory_limit: Any, nthreads: int, total_cores: int = CPU_COUNT) -> int | None:
    """Bytes that a worker may use; None: no limit.

    Parameters
    ----------
    memory_limit
        Bytes, a size string, a fraction of the machine up to 1, ``"auto"`` (a share by threads), None or 0 (no limit).

    Raises
    ------
    ValueError
        Anything else.
    """
    if memory_limit is None or memory_limit == 0:
        return None
    if memory_limit == "auto":
        return int(min(MEMORY_LIMIT, MEMORY_LIMIT * min(1, nthreads / max(total_cores, 1))))
    try:
        value = float(memory_limit)
    except (TypeError, ValueError):
        try:
            value = float(parse_bytes(memory_limit))
        except (TypeError, ValueError):
            raise ValueError(
                f"memory_limit must be bytes, a size such as '4 GiB', a fraction up to 1, 'auto', 0 or None; got {memory_limit!r}"
            ) from None
    if value < 0:
        raise ValueError(f"memory_limit must not be negative, got {memory_limit!r}")
    if value == 0:
        return None
    size = int(value * MEMORY_LIMIT) if 0 < value <= 1 else int(value)
    return min(size, MEMORY_LIMIT)


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """Configuration under ``distributed.worker.memory``. Shares are of the memory limit; None: off."""

    #: share that the results of tasks may take before the oldest go to disk
    target: float | None
    #: share that the process may take before results go to disk
    spill: float | None
    #: share that the process may take before no further task is started
    pause: float | None
    #: share that the process may take before the nanny ends it
    terminate: float | None
    #: bytes of spilled results on disk; None: no limit
    max_spill: int | None
    #: codec for them, or None
    spill_compression: str | None
    #: seconds between two measurements
    monitor_interval_s: float

    @classmethod
    def from_config(cls) -> MemorySettings:
        """From the current configuration. ValueError names the key that is wrong."""
        get = dask.config.get
        root = "distributed.worker.memory"
        max_spill = get(f"{root}.max-spill")
        compression = get(f"{root}.spill-compression")
        return cls(
            **{name: _share(f"{root}.{name}") for name in ("target", "spill", "pause", "terminate")},
            max_spill=None if max_spill in (False, None) else int(parse_bytes(max_spill)),
            spill_compression=compression or None,
            monitor_interval_s=parse_timedelta(get(f"{root}.monitor-interval"), default="ms"),
        )


def _share(name: str) -> float | None:
    value = dask.config.get(name)
    if value is False or value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise ValueError(
            f"{name} must be a share of the memory limit, above 0 and up to 1, or false; got {value!r}"
        )
    return float(value)
