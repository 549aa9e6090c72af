"""Decisions of `AdaptiveCore` about a cluster of names, and what the scheduler's tasks could use."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import pytest

from distributed.deploy.adaptive_core import AdaptiveCore
from distributed.scheduler_state_machine import events as ev
from distributed.scheduler_state_machine.scaling import wanted_workers
from distributed.utils_test import gen_test
from tests.machine.test_scheduler_machine import A, B, Driver


class Names(AdaptiveCore):
    """Workers are numbers; they arrive when the test says so."""

    def __init__(self, **kwargs: Any) -> None:
        self.wanted = 0
        self.names: set[int] = set()
        self.here: set[int] = set()
        self.error: Exception | None = None
        super().__init__(interval=None, **kwargs)

    @property
    def plan(self) -> set[int]:
        return self.names

    requested = plan

    @property
    def observed(self) -> set[int]:
        return self.here

    async def target(self) -> int:
        if self.error is not None:
            raise self.error
        return self.wanted

    async def workers_to_close(self, target: int) -> list[int]:
        return sorted(self.here)[: len(self.here) - target]

    async def scale_up(self, n: int) -> None:
        self.names |= set(range(n))

    async def scale_down(self, workers: Collection[int]) -> None:
        self.names -= set(workers)
        self.here -= set(workers)

    async def wants(self, n: int) -> int:
        self.wanted = n
        await self.adapt()
        return len(self.names)


@gen_test()
async def test_up_at_once_and_down_with_patience() -> None:
    names = Names(wait_count=3)
    assert await names.wants(4) == 4
    names.here = {0, 1, 2, 3}
    assert await names.wants(2) == 4
    assert await names.wants(2) == 4
    assert await names.wants(2) == 2
    assert names.names == {2, 3}
    assert [decision for _, decision in names.log] == [
        {"status": "up", "n": 4},
        {"status": "down", "workers": [0, 1]},
    ]
    # a pause that is shorter than the patience costs nothing
    for n in (1, 1, 2, 1, 1):
        assert await names.wants(n) == 2
    assert await names.wants(1) == 1


@gen_test()
async def test_bounds() -> None:
    names = Names(minimum=2, maximum=5, wait_count=1)
    assert await names.wants(0) == 2
    assert await names.wants(100) == 5
    names.here = set(names.names)
    assert await names.wants(0) == 2


@gen_test()
async def test_those_that_have_not_come_go_first() -> None:
    names = Names(wait_count=1)
    await names.wants(5)
    names.here = {1, 3}
    await names.wants(3)
    assert len(names.names) == 3 and {1, 3} <= names.names
    await names.wants(1)
    assert names.names == {3}


@gen_test()
async def test_a_lost_scheduler_ends_it() -> None:
    names = Names()
    names.state = "running"
    names.error = OSError("gone")
    await names.adapt()
    assert names.state == "stopped"


@pytest.mark.parametrize("kwargs", [{"maximum": 2.5}, {"minimum": 3, "maximum": 2}, {"minimum": -1}])
def test_wrong_bounds(kwargs: Any) -> None:
    with pytest.raises(ValueError, match="imum"):
        Names(**kwargs)


def test_what_the_tasks_could_use() -> None:
    d = Driver(workers=())
    assert wanted_workers(d.machine, 5.0) == 0
    d.graph({f"x-{i}": [] for i in range(4)})
    # unknown durations, half a second each: one worker does it in five
    assert wanted_workers(d.machine, 5.0) == 1
    assert wanted_workers(d.machine, 0.5) == 4
    assert wanted_workers(d.machine, 0.001) == 4, "no more than there are tasks"
    d.add_worker(A)
    (first, *_) = d.computes().values()
    d.finish(first, duration=100.0)
    assert wanted_workers(d.machine, 5.0) == 3
    d.add_worker(B, nthreads=1)
    assert wanted_workers(d.machine, 1e9) == 2, "who is busy stays"


def test_results_need_room() -> None:
    d = Driver(workers=())
    d.add_worker(A, memory_limit=1000)
    d.graph({"x": []})
    compute = d.computes()["x"]

    def finish(nbytes: int) -> None:
        done = ev.TaskFinished("x", compute.run_id, nbytes, "int", None, 1, 0.0, 0.001, None, None)
        d.send(ev.TasksFinished(A, [done], "f"))

    finish(500)
    assert wanted_workers(d.machine, 5.0) == 1, "what is held stays"
    d.machine.workers[A].nbytes = 700
    assert wanted_workers(d.machine, 5.0) == 2
    d.machine.workers[A].nbytes = 500


def test_threads_count() -> None:
    d = Driver(workers=(), worker_saturation=math.inf)
    d.add_worker(A, nthreads=4)
    d.graph({f"x-{i}": [] for i in range(8)})
    assert wanted_workers(d.machine, 0.001) == 2
