"""Memory limits of workers."""

from __future__ import annotations

from typing import Any

from dask.utils import parse_bytes

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
