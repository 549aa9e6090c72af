"""Workers that die, tasks that kill them, bytes from nowhere: the right result or a clear error, and the cluster goes on."""

from __future__ import annotations

import asyncio
import logging
import operator
import os
import random
import socket
import struct
import time
from typing import Any

import pytest

from distributed import Client, KilledWorker, LocalCluster, wait
from distributed.utils_test import captured_logger, cluster, gen_cluster, inc, poll_for


def tree(n: int) -> tuple[dict[Any, Any], Any]:
    graph: dict[Any, Any] = {("leaf", i): (slow_inc, i) for i in range(n)}
    level = list(graph)
    depth = 0
    while len(level) > 1:
        depth += 1
        following = []
        for i in range(0, len(level) - 1, 2):
            graph["add", depth, i] = (operator.add, level[i], level[i + 1])
            following.append(("add", depth, i))
        level = following + level[len(level) // 2 * 2 :]
    return graph, level[0]


def slow_inc(x: int) -> int:
    # without spinning: three workers share the machine with the scheduler
    time.sleep(0.001)
    return x + 1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_kill_a_worker_in_the_middle_of_a_tree(seed: int, loop: Any) -> None:
    rng = random.Random(seed)
    with cluster(nworkers=3) as (s, workers), Client(s["address"], loop=loop) as client:
        graph, root = tree(1000)
        [future] = client.get(graph, [root], sync=False)
        target = rng.randint(100, 1200)
        poll_for(
            lambda: (
                client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.transition_counter) > 4 * target
            ),
            period=0.001,
        )
        os.kill(rng.choice(workers)["pid"], 9)
        assert future.result(timeout=60) == sum(range(1, 1001))
        assert client.submit(inc, 1).result() == 2


def suicide(x: int) -> int:
    if x == 7:
        os._exit(1)
    return x


def test_task_that_kills_its_worker(loop: Any) -> None:
    config = {"distributed.scheduler.allowed-failures": 1}
    with (
        cluster(nworkers=2, nanny=True, config=config) as (s, workers),
        Client(s["address"], loop=loop) as client,
    ):
        futures = client.map(suicide, range(20))
        with pytest.raises(KilledWorker, match="different workers"):
            futures[7].result(timeout=60)
        rest = [f for i, f in enumerate(futures) if i != 7]
        assert client.gather(rest) == [i for i in range(20) if i != 7]
        assert client.submit(inc, 1).result(timeout=30) == 2
        client.wait_for_workers(2, timeout=30)


def test_nanny_restarts_its_worker(loop: Any) -> None:
    with cluster(nworkers=1, nanny=True) as (s, workers), Client(s["address"], loop=loop) as client:
        (pid,) = client.run(os.getpid).values()
        os.kill(pid, 9)
        poll_for(
            lambda: pid not in client.run(os.getpid, on_error="ignore").values() and bool(client.nthreads())
        )
        assert client.submit(inc, 1).result(timeout=30) == 2
        (before,) = client.run(os.getpid).values()
        client.restart(timeout=30)
        (after,) = client.run(os.getpid).values()
        assert after != before
        assert client.submit(inc, 2).result(timeout=30) == 3


def test_clean_shutdown_says_nothing(loop: Any) -> None:
    with captured_logger("distributed", level=logging.WARNING) as log:
        with LocalCluster(
            n_workers=2, processes=True, dashboard_address=None, loop=loop, silence_logs=False
        ) as lc:
            with Client(lc, loop=loop) as client:
                futures = client.map(inc, range(100))
                wait(futures)
                client.shutdown()
    assert not log.getvalue()


@gen_cluster(client=True)
async def test_garbage_on_the_scheduler_port(c: Client, s: Any, a: Any, b: Any) -> None:
    host, port = s.address.removeprefix("tcp://").split(":")
    claims = [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x00" * 64,
        struct.pack("<QQ", 2**62, 1) + struct.pack("<Q", 2**62),
        struct.pack("<QQ", 16, 2**40),
        struct.pack("<QQQ", 24, 1, 2**62),
        struct.pack("<QQQ", 16 + 8, 1, 8) + b"\xff" * 8,
        struct.pack("<QQQ", 16 + 5, 1, 5) + b"\xc1hell",
        struct.pack("<QQQ", 16 + 100_000, 1, 100_000) + b"\x91" * 100_000,
        struct.pack("<QQQ", 16 + 1, 1, 1) + b"\x05",
    ]
    with captured_logger("distributed", level=logging.INFO) as log:
        for claim in claims:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(claim)
            # the scheduler's own hello, then the end
            await asyncio.wait_for(_read_to_end(reader), 5)
            writer.close()
    assert not log.getvalue(), "one debug line, no more"
    assert await c.submit(inc, 1) == 2


async def _read_to_end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(-1)
    except ConnectionResetError:
        return b""


@gen_cluster(client=True)
async def test_malformed_requests(c: Client, s: Any, a: Any, b: Any) -> None:
    from distributed.comm import connect
    from distributed.core import rpc

    async with rpc(s.address) as r:
        assert await r.no_such_op() is None
        with pytest.raises(TypeError, match="unexpected keyword"):
            await r.identity(nonsense=1)
    comm = await connect(s.address)
    await comm.write({"no": "op"})
    with pytest.raises(OSError):
        await comm.read()
    comm.abort()
    assert await c.submit(inc, 1) == 2


@gen_cluster(client=True)
async def test_port_scanner_leaves_no_trace(c: Client, s: Any, a: Any, b: Any) -> None:
    host, port = s.address.removeprefix("tcp://").split(":")
    for _ in range(20):
        with socket.create_connection((host, int(port))):
            pass
    assert await c.submit(inc, 1) == 2


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_worker_closes_when_its_scheduler_is_gone(c: Client, s: Any, a: Any) -> None:
    for stream in list(s.stream_comms.values()):
        stream.comm.abort()
    await asyncio.wait_for(a.finished(), 10)
    assert not s.workers


@gen_cluster(nthreads=[])
async def test_duplicate_names_and_addresses(s: Any) -> None:
    from distributed import Worker

    async with Worker(s.address, name="alice", nthreads=1):
        with pytest.raises(RuntimeError) as info:
            await Worker(s.address, name="alice", nthreads=1)
        assert "name taken, alice" in str(info.value.__cause__)


def test_local_cluster_listens_on_loopback_only(loop: Any) -> None:
    import psutil

    with LocalCluster(n_workers=1, processes=True, dashboard_address=None, loop=loop) as lc:
        pids = [os.getpid(), *(w.pid for w in lc.workers.values())]
        for pid in pids:
            for conn in psutil.Process(pid).net_connections(kind="tcp"):
                if conn.status == psutil.CONN_LISTEN:
                    assert conn.laddr.ip in ("127.0.0.1", "::1"), conn


@gen_cluster(nthreads=[("127.0.0.1", 1)], client=True)
async def test_silent_worker_is_removed(c: Client, s: Any, a: Any) -> None:
    s.worker_ttl = 1.0
    s.workers[a.address].last_seen -= 1000
    with captured_logger("distributed.scheduler", level=logging.WARNING) as log:
        await s._check_worker_ttl()
    assert "failed to heartbeat" in log.getvalue()
    assert not s.workers
    await asyncio.wait_for(a.finished(), 10)


@gen_cluster(nthreads=[("127.0.0.1", 1)], client=True, scheduler_kwargs={"idle_timeout": "50ms"})
async def test_idle_scheduler_stops(c: Client, s: Any, a: Any) -> None:
    await asyncio.wait_for(s.finished(), 10)
