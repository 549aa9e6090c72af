"""Clusters that scale with their load."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from distributed import Adaptive, Client, LocalCluster
from distributed.utils_test import async_poll_for, gen_test, inc

go_on = threading.Event()


def waits(i: int) -> int:
    go_on.wait(30)
    return i


@gen_test(timeout=60)
async def test_a_cluster_grows_and_shrinks_and_keeps_results() -> None:
    go_on.clear()
    async with (
        LocalCluster(
            n_workers=0, threads_per_worker=1, processes=False, asynchronous=True, dashboard_address=None
        ) as cluster,
        Client(cluster, asynchronous=True) as client,
    ):
        adaptive = cluster.adapt(interval="20 ms", wait_count=2, target_duration="10 ms", maximum=3)
        assert isinstance(adaptive, Adaptive) and adaptive.maximum == 3
        futures = client.map(waits, range(5))
        await async_poll_for(lambda: len(cluster.scheduler.workers) == 3, 30)
        go_on.set()
        assert await client.gather(futures) == list(range(5))
        # results stay, on as few workers as hold them
        await async_poll_for(lambda: len(cluster.scheduler.workers) == 1, 30)
        assert await client.gather(futures) == list(range(5))
        assert client.futures and not [f for f in futures if f.status != "finished"]
        for future in futures:
            future.release()
        await async_poll_for(lambda: not cluster.scheduler.workers and not cluster.workers, 30)
        # and again from nothing
        assert await client.submit(inc, 1) == 2
        adaptive.stop()
        n = len(cluster.workers)
        assert cluster.adapt(minimum=n, interval="20 ms").maximum == float("inf")


def test_bounds_in_cores_and_memory(loop: Any) -> None:
    with LocalCluster(
        n_workers=0,
        threads_per_worker=2,
        memory_limit="1 GiB",
        processes=False,
        loop=loop,
        dashboard_address=None,
    ) as cluster:
        adaptive = cluster.adapt(minimum_cores=3, maximum_cores=9, maximum_memory="3 GiB", interval=None)
        assert (adaptive.minimum, adaptive.maximum) == (2, 3)
        with pytest.raises(ValueError, match="minimum"):
            cluster.adapt(minimum=5, maximum=2)


def by_parity(ws: Any) -> int:
    return int(ws.name) % 2


@gen_test(timeout=60)
async def test_groups_of_workers_go_together() -> None:
    async with (
        LocalCluster(
            n_workers=4, threads_per_worker=1, processes=False, asynchronous=True, dashboard_address=None
        ) as cluster,
        Client(cluster, asynchronous=True) as client,
    ):
        adaptive = Adaptive(cluster, worker_key=by_parity, interval=0)
        x = await client.scatter(1, workers=[cluster.workers[1].address])
        assert sorted(await adaptive.workers_to_close(target=2)) == [0, 2]
        assert await adaptive.workers_to_close(target=3) == []
        await adaptive.scale_down([0, 2])
        assert sorted(cluster.workers) == [1, 3] and await x == 1
