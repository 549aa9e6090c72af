"""Idle workers take over tasks of busy ones, on real connections."""

from __future__ import annotations

import threading
from typing import Any

from distributed import Client, Worker, wait
from distributed.utils_test import async_poll_for, gen_cluster, inc

go_on = threading.Event()


def waits(x: int, i: int) -> int:
    go_on.wait(30)
    return x + i


def slow_add(x: int, i: int) -> int:
    import time

    time.sleep(0.02)
    return x + i


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_a_worker_that_joins_gets_its_share(c: Client, s: Any, a: Any) -> None:
    go_on.clear()
    x = c.submit(inc, 0)
    await x
    # more than one thread, few enough not to be queued
    futures = [c.submit(waits, x, i, key=f"task{i}") for i in range(8)]
    await async_poll_for(lambda: len(s.workers[a.address].processing) == 8, 10)
    async with Worker(s.address, nthreads=1) as b:
        await async_poll_for(lambda: bool(s.workers[b.address].processing), 10)
        go_on.set()
        assert await c.gather(futures) == list(range(1, 9))
        who_has = await c.who_has(futures)
        assert {holders[0] for holders in who_has.values()} == {a.address, b.address}
        assert s.workers[a.address].processing == {} and s.workers[b.address].processing == {}


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_a_paused_worker_gives_its_tasks_away(c: Client, s: Any, a: Any, b: Any) -> None:
    go_on.clear()
    x = c.submit(inc, 0, workers=[a.address])
    await x
    futures = [c.submit(waits, x, i, workers=[a.address], allow_other_workers=True) for i in range(4)]
    await async_poll_for(lambda: len(s.workers[a.address].processing) == 4, 10)
    a.memory_manager.measure = lambda: 10**15
    await a.memory_manager.check()
    await async_poll_for(lambda: len(s.workers[a.address].processing) == 1, 10)
    go_on.set()
    assert await c.gather(futures) == [1, 2, 3, 4]


@gen_cluster(client=True, nthreads=[("127.0.0.1", 2)] * 3)
async def test_unequal_work_ends_right(c: Client, s: Any, a: Any, b: Any, d: Any) -> None:
    data = await c.scatter(list(range(5)), workers=[a.address])
    futures = [c.submit(slow_add, data[i % 5], i) for i in range(60)]
    await wait(futures)
    assert await c.gather(futures) == [i % 5 + i for i in range(60)]
    assert not s.machine.stealing
