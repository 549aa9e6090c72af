"""`AdaptiveCore`: when to add and when to remove workers, given how many are wanted. Knows no cluster.

A worker is removed only after it has been found superfluous several times in a row, so that a pause between two computations costs nothing.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Collection
from typing import Any, Literal

from dask.utils import parse_timedelta
from tornado.ioloop import IOLoop, PeriodicCallback

from distributed.metrics import time

logger = logging.getLogger(__name__)

Name = Any

#: decisions remembered in `AdaptiveCore.log`
LOG_LENGTH = 1000


class AdaptiveCore(ABC):
    """Keeps the number of workers between two bounds at what is wanted.

    Subclasses say what is there (`plan`, `requested`, `observed`), how many are wanted (`target`), who can go (`workers_to_close`), and how to add and remove.

    Parameters
    ----------
    minimum, maximum
        Workers.
    wait_count
        How often in a row a worker must be superfluous before it goes.
    interval
        Between two decisions; None or 0: only when `adapt` is called.
    """

    def __init__(
        self,
        minimum: int = 0,
        maximum: float = math.inf,
        wait_count: int = 3,
        interval: Any = "1s",
        loop: IOLoop | None = None,
    ) -> None:
        if not isinstance(maximum, int) and not math.isinf(maximum):
            raise ValueError(f"maximum must be an integer or infinity, got {maximum!r}")
        if minimum < 0 or minimum > maximum:
            raise ValueError(f"minimum must be between 0 and maximum ({maximum}), got {minimum}")
        self.minimum = minimum
        self.maximum = maximum
        self.wait_count = wait_count
        self.interval = parse_timedelta(interval, "s") if interval else None
        #: how often in a row each worker was superfluous
        self.close_counts: defaultdict[Name, int] = defaultdict(int)
        #: (time, decision) of the latest ones that changed something
        self.log: deque[tuple[float, dict[str, Any]]] = deque(maxlen=LOG_LENGTH)
        self.state: Literal["starting", "running", "stopped", "inactive"] = "inactive"
        self.periodic_callback: PeriodicCallback | None = None
        self._adapting = False
        if self.interval:
            self.state = "starting"
            self.periodic_callback = PeriodicCallback(self.adapt, self.interval * 1000)
            (loop or IOLoop.current()).add_callback(self._start)

    def _start(self) -> None:
        if self.state == "starting" and self.periodic_callback is not None:
            self.state = "running"
            self.periodic_callback.start()

    def stop(self, reason: str = "unknown") -> None:
        """Decide nothing more; workers stay as they are."""
        if self.state in ("stopped", "inactive"):
            return
        logger.debug("Adaptive stops: %s", reason)
        self.state = "stopped"
        if self.periodic_callback is not None:
            self.periodic_callback.stop()
            self.periodic_callback = None

    # --- what subclasses know ------------------------------------------------------------------------------

    @property
    @abstractmethod
    def plan(self) -> set[Name]:
        """Workers that are to be."""

    @property
    @abstractmethod
    def requested(self) -> set[Name]:
        """Workers that were asked for."""

    @property
    @abstractmethod
    def observed(self) -> set[Name]:
        """Workers that are there."""

    @abstractmethod
    async def target(self) -> int:
        """How many are wanted."""

    @abstractmethod
    async def workers_to_close(self, target: int) -> Collection[Name]:
        """Who can go so that `target` remain."""

    @abstractmethod
    async def scale_up(self, n: int) -> None:
        """Have `n` workers."""

    @abstractmethod
    async def scale_down(self, workers: Collection[Name]) -> None:
        """Remove these."""

    # --- deciding ------------------------------------------------------------------------------------------

    async def safe_target(self) -> int:
        """`target` within the bounds."""
        n = await self.target()
        return int(min(max(n, self.minimum), self.maximum))

    async def recommendations(self, target: int) -> dict[str, Any]:
        """What to do: ``{"status": "up", "n": ...}``, ``{"status": "down", "workers": [...]}`` or ``{"status": "same"}``."""
        plan = self.plan
        if target == len(plan):
            self.close_counts.clear()
            return {"status": "same"}
        if target > len(plan):
            self.close_counts.clear()
            return {"status": "up", "n": target}
        # those that have not come yet cost least
        to_close = set(sorted(self.requested - self.observed, key=str)[: len(plan) - target])
        if target < len(plan) - len(to_close):
            to_close.update(await self.workers_to_close(target=target))
        ripe = []
        for name in to_close:
            self.close_counts[name] += 1
            if self.close_counts[name] >= self.wait_count:
                ripe.append(name)
        for name in list(self.close_counts):
            if name in ripe or name not in to_close:
                del self.close_counts[name]
        return {"status": "down", "workers": ripe} if ripe else {"status": "same"}

    async def adapt(self) -> None:
        """Decide once, and do it."""
        if self._adapting:
            return
        self._adapting = True
        try:
            decision = await self.recommendations(await self.safe_target())
            if decision["status"] == "same":
                return
            self.log.append((time(), dict(decision)))
            status = decision.pop("status")
            if status == "up":
                await self.scale_up(**decision)
            else:
                await self.scale_down(**decision)
        except OSError as exc:
            # the scheduler is gone
            self.stop(reason=f"connection lost: {exc}")
        finally:
            self._adapting = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.minimum} to {self.maximum} workers, {self.state}>"
