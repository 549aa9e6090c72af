"""The one place where payloads are measured for the offload decision. It counts, so that tests can prove who pays.

A scheduler process never calls it; on other roles it is called for payloads only, never for control messages.
"""

from __future__ import annotations

from typing import Any

from dask.sizeof import sizeof

from distributed.protocol.utils import nbytes


class SizingCounters:
    """How many payloads were sized since the process started."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0


counters = SizingCounters()


def payload_nbytes(obj: Any) -> int:
    """About how many bytes serialising the object will touch.

    Buffers and frames by their length, other objects by one call of ``dask.sizeof``. An object whose size cannot be found counts as 0:
    the decision only moves work between threads.
    """
    counters.calls += 1
    if isinstance(obj, (bytes, bytearray, memoryview)):
        return nbytes(obj)
    try:
        return int(sizeof(obj))
    except Exception:  # user code: any error there must not lose the message
        return 0


def frames_nbytes(frames: Any) -> int:
    """Length of frames that are serialised already; costs no look at any object, hence not counted."""
    return sum(map(nbytes, frames))
