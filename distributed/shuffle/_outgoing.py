"""Shards on their way out: a queue per destination, and a limit on their bytes over all runs of a worker.

Threads put shards in and wait while the limit is exceeded; the loop takes them out in messages of a bounded size.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any


class SendBudget:
    """Bytes that may wait to be sent."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._condition = threading.Condition()

    def take(self, nbytes: int, raise_if_ended: Callable[[], None]) -> None:
        """Wait until there is room. An amount above the limit gets it once nothing else is waiting."""
        with self._condition:
            raise_if_ended()
            while self.used and self.used + nbytes > self.limit:
                self._condition.wait()
                raise_if_ended()
            self.used += nbytes

    def give_back(self, nbytes: int) -> None:
        with self._condition:
            self.used -= nbytes
            assert self.used >= 0, "no more is given back than was taken"
            self._condition.notify_all()

    def wake(self) -> None:
        """A run has ended: those who wait for its sake look again."""
        with self._condition:
            self._condition.notify_all()


class Outgoing:
    """Shards by destination, in the order in which they were put."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[str, deque[tuple[Any, int]]] = {}
        self.nbytes = 0

    def put(self, worker: str, shard: Any, nbytes: int) -> None:
        with self._lock:
            self._queues.setdefault(worker, deque()).append((shard, nbytes))
            self.nbytes += nbytes

    def take(self, worker: str, limit: int) -> tuple[list[Any], int]:
        """At least one shard if there is one, and as many more as fit: (shards, bytes)."""
        shards: list[Any] = []
        total = 0
        with self._lock:
            queue = self._queues.get(worker)
            while queue and (not shards or total + queue[0][1] <= limit):
                shard, nbytes = queue.popleft()
                shards.append(shard)
                total += nbytes
            self.nbytes -= total
        return shards, total

    def clear(self) -> int:
        """Drop everything; returns its bytes."""
        with self._lock:
            self._queues.clear()
            dropped, self.nbytes = self.nbytes, 0
        return dropped
