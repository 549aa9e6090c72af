"""Workers near their memory limit: results go to disk and come back, workers pause, nannies end what cannot be helped."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import dask
import numpy as np
import pytest

from distributed import Client, KilledWorker, LocalCluster, wait
from distributed.utils_test import async_poll_for, gen_cluster, inc

ROOT = "distributed.worker.memory"
#: room for two of the arrays below
SMALL = {f"{ROOT}.target": 0.01, f"{ROOT}.spill": False, f"{ROOT}.pause": False}
N = 400_000


def files(worker: Any) -> list[pathlib.Path]:
    return [path for path in pathlib.Path(worker.local_directory).glob("spill-*/*") if path.is_file()]


def filled(i: int) -> Any:
    return np.full(N, i, "u1")


@gen_cluster(client=True, nthreads=[("127.0.0.1", 2)], config=SMALL, worker_kwargs={"memory_limit": "100 MB"})
async def test_results_go_to_disk_and_come_back(c: Client, s: Any, a: Any) -> None:
    futures = c.map(filled, range(10))
    await wait(futures)
    await a.data.settled()
    assert len(a.data.on_disk()) == 8 and len(files(a)) == 8
    metrics = a.get_metrics()
    assert metrics["spilled_bytes"]["memory"] == pytest.approx(8 * N, rel=0.01)
    assert metrics["spilled_bytes"]["disk"] > 0 and metrics["task_counts"]["disk"] == 8
    assert metrics["managed_bytes"] == pytest.approx(2 * N, rel=0.01)
    # tasks get inputs from disk
    sums = c.map(lambda x: int(x.sum()), futures)
    assert await c.gather(sums) == [i * N for i in range(10)]
    # and so do clients
    values = await c.gather(futures)
    assert [int(value[0]) for value in values] == list(range(10))
    assert all(value.flags.writeable for value in values)
    del values
    for future in (*futures, *sums):
        future.release()
    await async_poll_for(lambda: not s.tasks, 10)
    await async_poll_for(lambda: not a.data and not files(a), 10)


@gen_cluster(client=True, config=SMALL, worker_kwargs={"memory_limit": "100 MB"})
async def test_peers_get_results_from_disk(c: Client, s: Any, a: Any, b: Any) -> None:
    futures = c.map(filled, range(6), workers=[a.address])
    await wait(futures)
    await a.data.settled()
    assert len(a.data.on_disk()) == 4
    total = c.submit(lambda parts: sum(int(part[0]) for part in parts), futures, workers=[b.address])
    assert await total == 15
    await b.data.settled()
    assert b.data.on_disk(), "what is fetched goes to disk as well"


class NoPickle:
    def __init__(self) -> None:
        self.payload = b"x" * N

    def __sizeof__(self) -> int:
        return N

    def __reduce__(self) -> Any:
        raise RuntimeError("not me")


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)], config=SMALL, worker_kwargs={"memory_limit": "100 MB"})
async def test_a_result_that_cannot_be_pickled_does_no_harm(c: Client, s: Any, a: Any) -> None:
    bad = c.submit(NoPickle)
    futures = c.map(filled, range(5))
    await wait([bad, *futures])
    await a.data.settled()
    assert bad.key not in a.data.on_disk() and a.data.on_disk()
    assert await c.submit(lambda x: len(x.payload), bad) == N
    assert [int(value[0]) for value in await c.gather(futures)] == list(range(5))


class Corrupt:
    """Cannot be read again."""

    def __init__(self) -> None:
        self.payload = b"x" * 2 * N

    def __sizeof__(self) -> int:
        return 2 * N

    def __reduce__(self) -> Any:
        return int, ("not a number",)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)], config=SMALL, worker_kwargs={"memory_limit": "100 MB"})
async def test_a_result_that_cannot_be_read_again_errs_who_needs_it(c: Client, s: Any, a: Any) -> None:
    bad = c.submit(Corrupt)
    await wait(c.map(filled, range(3)))
    await a.data.evict(10 * N)
    assert bad.key in a.data.on_disk()
    with pytest.raises(ValueError, match="not a number"):
        await c.submit(type, bad)
    assert await c.submit(inc, 1) == 2


@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)] * 2,
    config={f"{ROOT}.spill": False, f"{ROOT}.monitor-interval": "10ms"},
)
async def test_a_worker_pauses_and_goes_on(c: Client, s: Any, a: Any, b: Any) -> None:
    measure = a.memory_manager.measure
    a.memory_manager.measure = lambda: 10**15
    await async_poll_for(lambda: s.workers[a.address].status == "paused", 10)
    stuck = c.submit(inc, 1, workers=[a.address])
    free = c.map(inc, range(10), pure=False)
    assert await c.gather(free) == list(range(1, 11))
    assert set((await c.who_has(free)).values()) == {(b.address,)}
    assert not stuck.done()
    a.memory_manager.measure = measure
    assert await stuck == 2
    assert s.workers[a.address].status == "running"


def hog(n: int) -> int:
    import time

    blocks = []
    for _ in range(n):
        blocks.append(bytearray(os.urandom(2**20)) * 20)
        time.sleep(0.02)
    return len(blocks)


def test_a_nanny_ends_a_worker_that_takes_too_much(loop: Any) -> None:
    with (
        dask.config.set(
            {f"{ROOT}.spill": False, f"{ROOT}.pause": False, "distributed.scheduler.allowed-failures": 0}
        ),
        LocalCluster(
            n_workers=1, threads_per_worker=1, memory_limit="400 MiB", loop=loop, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        (address,) = client.scheduler_info()["workers"]
        with pytest.raises(KilledWorker):
            client.submit(hog, 200).result(60)
        assert client.submit(inc, 1).result(60) == 2
        ((_, event),) = [
            e for e in client.get_events(address) if e[1].get("action") == "worker-memory-exceeded"
        ]
        assert event["memory"] > 0.9 * event["memory_limit"] and event["memory_limit"] == 400 * 2**20
