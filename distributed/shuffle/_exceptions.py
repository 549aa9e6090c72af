"""What can go wrong in a shuffle. All of them travel between processes."""

from __future__ import annotations


class P2PIllegalStateError(RuntimeError):
    """The scheduler was asked for something that its state does not allow."""


class P2PConsistencyError(RuntimeError):
    """Two parties do not speak of the same run of a shuffle."""


class ShuffleClosedError(P2PConsistencyError):
    """The run has ended here; a task that meets this is run again."""


class DataUnavailable(Exception):
    """There is no data for this output partition."""


class P2POutOfDiskError(OSError):
    """Shards could not be written to disk because it is full."""
