"""`Adaptive`: scales a cluster with its load. The scheduler says how many workers its tasks could use (`Scheduler.adaptive_target`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

import dask.config
from dask.utils import parse_timedelta

from distributed.deploy.adaptive_core import AdaptiveCore
from distributed.protocol import pickle

if TYPE_CHECKING:
    from distributed.deploy.cluster import Cluster

logger = logging.getLogger(__name__)


class Adaptive(AdaptiveCore):
    """Made by `Cluster.adapt`.

    Override `target` for another idea of how many workers are wanted, and `workers_to_close` for who goes first.

    Parameters
    ----------
    cluster
        With ``scale_up(n)``, ``scale_down(names)``, ``plan``, ``requested``, ``observed`` and ``scheduler_comm``.
    interval, minimum, maximum, wait_count, target_duration
        Default: configuration ``distributed.adaptive``. `target_duration`: for how long the present work is to last.
    worker_key
        Maps a `WorkerState` to a group: workers of a group go together.
    """

    def __init__(
        self,
        cluster: Cluster,
        interval: Any = None,
        minimum: int | None = None,
        maximum: float | None = None,
        wait_count: int | None = None,
        target_duration: Any = None,
        worker_key: Callable[[Any], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        def setting(value: Any, name: str) -> Any:
            return dask.config.get(f"distributed.adaptive.{name}") if value is None else value

        self.cluster = cluster
        self.worker_key = worker_key
        self._workers_to_close_kwargs = kwargs
        self.target_duration = parse_timedelta(setting(target_duration, "target-duration"), "s")
        super().__init__(
            minimum=setting(minimum, "minimum"),
            maximum=setting(maximum, "maximum"),
            wait_count=setting(wait_count, "wait-count"),
            interval=setting(interval, "interval"),
            loop=cluster.loop,
        )

    @property
    def scheduler(self) -> Any:
        """Remote calls to the scheduler."""
        return self.cluster.scheduler_comm

    @property
    def loop(self) -> Any:
        """The cluster's loop."""
        return self.cluster.loop

    @property
    def plan(self) -> set[Any]:
        return self.cluster.plan

    @property
    def requested(self) -> set[Any]:
        return self.cluster.requested

    @property
    def observed(self) -> set[Any]:
        return self.cluster.observed

    async def target(self) -> int:
        return int(await self.scheduler.adaptive_target(target_duration=self.target_duration))

    async def workers_to_close(self, target: int) -> list[Any]:
        return list(
            await self.scheduler.workers_to_close(
                target=target,
                key=pickle.dumps(self.worker_key) if self.worker_key else None,
                attribute="name",
                **self._workers_to_close_kwargs,
            )
        )

    async def scale_up(self, n: int) -> None:
        result: Any = self.cluster.scale(n)
        if isawaitable(result):
            await result

    async def scale_down(self, workers: Collection[Any]) -> None:
        if not workers:
            return
        logger.info("Retiring workers %s", sorted(map(str, workers)))
        # data first; a worker whose data has no place to go is not among those that may be closed
        retired = await self.scheduler.retire_workers(names=list(workers), remove=True, close_workers=True)
        names = {identity["name"] for identity in retired.values()}
        waiting = set(workers) - self.observed
        result: Any = self.cluster.scale_down([name for name in workers if name in names or name in waiting])  # type: ignore[attr-defined]
        if isawaitable(result):
            await result
