"""The offload rule, proven by counters in real processes: the scheduler never sizes a payload nor hands one over; others do, for payloads only."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from distributed import Client
from distributed.utils_test import cluster, inc, poll_for

LARGE = 50 * 2**20


def counters() -> tuple[int, int]:
    """Sizing calls and hand-offs to the offload thread in the process that runs this."""
    from distributed.comm import offload
    from distributed.protocol import sizing

    return sizing.counters.calls, offload.counters.handoffs


def worker_counters(dask_worker: Any) -> tuple[int, int]:
    return counters()


def scheduler_counters(dask_scheduler: Any) -> tuple[int, int]:
    return counters()


def force_offload(dask_scheduler: Any) -> None:
    """What must never be: the flag on everywhere in the scheduler."""
    dask_scheduler.rpc.allow_offload = True
    for listener in dask_scheduler.listeners:
        listener.allow_offload = True
    for stream in [*dask_scheduler.client_comms.values(), *dask_scheduler.stream_comms.values()]:
        stream.comm.allow_offload = True
    for comm in dask_scheduler._comms:
        comm.allow_offload = True


def everything_off(dask_scheduler: Any) -> bool:
    """Whether no comm of the scheduler may offload, wherever it was born."""
    comms = [*dask_scheduler._comms, *(stream.comm for stream in dask_scheduler.stream_comms.values())]
    comms += [comm for comms in dask_scheduler.rpc.available.values() for _, comm in comms]
    return (
        not dask_scheduler.rpc.allow_offload
        and not any(listener.allow_offload for listener in dask_scheduler.listeners)
        and not any(comm.allow_offload for comm in comms)
        and len(comms) > 3
    )


def exercise(client: Client, workers: list[Any]) -> None:
    """Graphs, gather and scatter through the scheduler, broadcast, run_on_scheduler, a lost worker, a 50 MiB payload."""
    assert sum(client.gather(client.map(inc, range(200)))) == sum(range(1, 201))
    assert client.get({"x": 1, "y": (inc, "x"), "z": (sum, ["x", "y"])}, "z") == 3
    big = np.arange(LARGE // 8)
    future = client.scatter(big, direct=False)
    assert client.submit(np.sum, future).result() == big.sum()
    back = client.gather(future, direct=False)
    assert back.nbytes == LARGE and back[-1] == big[-1]
    made = client.submit(np.ones, LARGE // 8)
    assert client.gather(made, direct=False).sum() == LARGE // 8
    assert client.submit(len, b"x" * LARGE).result() == LARGE
    with pytest.raises(ZeroDivisionError):
        client.submit(lambda: 1 / 0).result()
    assert set(client.run(os.getpid).values()) == {worker["pid"] for worker in workers}
    assert client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.status.name) == "running"
    keep = client.map(inc, range(1000, 1020))
    client.gather(keep)
    os.kill(workers[-1]["pid"], 9)
    poll_for(
        lambda: (
            client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.workers)) == len(workers) - 1
        )
    )
    assert client.submit(sum, keep).result() == sum(range(1001, 1021))


def test_the_scheduler_never_sizes_nor_offloads(loop: Any) -> None:
    with cluster(nworkers=3) as (s, workers), Client(s["address"], loop=loop) as client:
        before = counters()
        exercise(client, workers)
        assert client.run_on_scheduler(scheduler_counters) == (0, 0)
        assert client.run_on_scheduler(everything_off)
        # those who own payloads pay for them
        sized, offloaded = zip(*client.run(worker_counters).values(), strict=True)
        assert sum(sized) > 0 and sum(offloaded) > 0
        after = counters()
        assert after[0] > before[0] and after[1] > before[1]


def test_with_the_flag_forced_on_the_proof_fails(loop: Any) -> None:
    """The counters would notice: this is what the test above guards against."""
    with cluster(nworkers=3) as (s, workers), Client(s["address"], loop=loop) as client:
        client.run_on_scheduler(force_offload)
        exercise(client, workers)
        sized, offloaded = client.run_on_scheduler(scheduler_counters)
        assert sized > 0 or offloaded > 0


def test_control_messages_are_never_sized(loop: Any) -> None:
    with cluster(nworkers=2) as (s, workers), Client(s["address"], loop=loop) as client:
        futures = client.map(inc, range(500))
        client.gather(futures)
        before = counters()
        worker_before = client.run(worker_counters)
        futures = client.map(inc, range(1000, 1500))
        assert client.gather(futures)[-1] == 1500
        del futures
        assert counters() == before
        worker_after = client.run(worker_counters)
        for address, (sized, offloaded) in worker_after.items():
            # each `run` reply is one payload
            assert sized - worker_before[address][0] <= 2
            assert offloaded == worker_before[address][1] == 0


def test_offload_false_turns_it_off_everywhere(loop: Any) -> None:
    config = {"distributed.comm.offload": False}
    import dask

    with dask.config.set(config), cluster(nworkers=2, config=config) as (s, workers):
        with Client(s["address"], loop=loop) as client:
            before = counters()
            future = client.scatter(np.ones(2 * LARGE // 8))
            assert client.submit(np.sum, future).result() == 2 * LARGE // 8
            assert counters() == before
            assert set(client.run(worker_counters).values()) == {(0, 0)}
