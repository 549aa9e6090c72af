"""What a worker's memory is made of, as far as the scheduler knows.

Bytes in results (*managed*) are known from the tasks, the rest of the process (*unmanaged*) is the difference to what the worker measures. Unmanaged memory
that stays for a while is taken for granted (*old*); the rest may be gone as soon as the running tasks have finished (*recent*).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryState:
    """Memory of one worker, or of several together; all in bytes.

    Attributes
    ----------
    process
        What the process takes.
    unmanaged_old
        Part of it that is not in results, since more than ``distributed.worker.memory.recent-to-old-time``.
    managed
        Part of it that is in results.
    spilled
        Results on disk, as they were in memory.
    """

    process: int
    unmanaged_old: int
    managed: int
    spilled: int

    @classmethod
    def sum(cls, *states: MemoryState) -> MemoryState:
        """Of several workers together."""
        return cls(
            sum(state.process for state in states),
            sum(state.unmanaged_old for state in states),
            sum(state.managed for state in states),
            sum(state.spilled for state in states),
        )

    @property
    def managed_total(self) -> int:
        """Results in memory and on disk."""
        return self.managed + self.spilled

    @property
    def unmanaged(self) -> int:
        """What the process takes besides results."""
        return self.process - self.managed

    @property
    def unmanaged_recent(self) -> int:
        """Part of `unmanaged` that may be gone soon."""
        return self.unmanaged - self.unmanaged_old

    @property
    def optimistic(self) -> int:
        """What the process will take when all that may be gone soon is gone."""
        return self.managed + self.unmanaged_old

    def __repr__(self) -> str:
        fields = (
            "process",
            "managed_total",
            "managed",
            "spilled",
            "unmanaged",
            "unmanaged_old",
            "unmanaged_recent",
        )
        return f"<MemoryState {', '.join(f'{name}: {getattr(self, name)}' for name in fields)}>"
