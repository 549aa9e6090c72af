"""Sizes of results. Never raises: an object that cannot be measured has a default size."""

from __future__ import annotations

import logging
import sys
from typing import Any

from dask.sizeof import sizeof

logger = logging.getLogger(__name__)

#: assumed for an object whose size cannot be found, bytes
DEFAULT_SIZE = 1_000_000

_FLAT = frozenset((int, float, bool, complex, str, bytes, bytearray, type(None)))


def safe_sizeof(obj: Any, default_size: float = DEFAULT_SIZE) -> int:
    """``dask.sizeof.sizeof``, or `default_size` when that fails."""
    if type(obj) in _FLAT:
        return sys.getsizeof(obj)
    try:
        return int(sizeof(obj))
    except Exception as exc:  # user code
        logger.warning(
            "Sizeof calculation for object of type '%s' failed. Defaulting to %d B: %r",
            type(obj).__name__,
            default_size,
            exc,
        )
        return int(default_size)


__all__ = ["DEFAULT_SIZE", "safe_sizeof", "sizeof"]
