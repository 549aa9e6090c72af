"""Clusters and command lines."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from distributed import Client, LocalCluster
from distributed.cli import dask_benchmark, dask_scheduler, dask_spec, dask_worker
from distributed.deploy.utils import nprocesses_nthreads
from distributed.utils_test import gen_test, inc, poll_for


def test_scale(loop: Any) -> None:
    with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, loop=loop
    ) as cluster:
        with Client(cluster, loop=loop) as client:
            cluster.scale(3)
            client.wait_for_workers(3, timeout=10)
            keep = client.map(inc, range(30))
            assert sum(client.gather(keep)) == 465
            cluster.scale(1)
            poll_for(lambda: len(client.nthreads()) == 1)
            # what only the others had has moved
            assert sum(client.gather(client.map(lambda x: x, keep))) == 465
            assert len(cluster.workers) == 1 and "workers=" in repr(cluster)
            assert cluster.dashboard_link == ""


def test_client_makes_its_own_cluster(cleanup: None) -> None:
    with Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as client:
        assert client.submit(inc, 1).result() == 2
        cluster = client.cluster
    assert cluster.status.name == "closed"


@gen_test()
async def test_asynchronous_cluster() -> None:
    async with LocalCluster(
        n_workers=2, processes=False, dashboard_address=None, asynchronous=True
    ) as cluster:
        async with Client(cluster, asynchronous=True) as client:
            assert await client.submit(inc, 1) == 2
    assert cluster.status.name == "closed"


def test_bad_arguments(cleanup: None) -> None:
    with pytest.raises(ValueError, match="n_workers"):
        LocalCluster(n_workers=-1)
    with pytest.raises(ValueError, match="threads_per_worker"):
        LocalCluster(threads_per_worker=0)
    with pytest.raises((TypeError, RuntimeError), match="nonsense"):
        LocalCluster(n_workers=1, processes=False, nonsense=1, dashboard_address=None)


def test_splitting_a_machine() -> None:
    assert [nprocesses_nthreads(n) for n in (1, 4, 8, 32, 60)] == [(1, 1), (4, 1), (4, 2), (8, 4), (10, 6)]


def start(module: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", f"distributed.cli.{module}", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_scheduler_and_workers_from_the_shell(tmp_path: Path, sig: int, loop: Any) -> None:
    file = tmp_path / "scheduler.json"
    processes = [
        start(
            "dask_scheduler",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--scheduler-file",
            str(file),
            "--no-dashboard",
        )
    ]
    try:
        poll_for(file.exists, timeout=30)
        common = ["--scheduler-file", str(file), "--nthreads", "1", "--local-directory", str(tmp_path)]
        processes.append(start("dask_worker", *common, "--no-nanny", "--name", "bare"))
        processes.append(
            start(
                "dask_worker", *common, "--name", "nanny", "--memory-limit", "1 GiB", "--resources", "GPU=2"
            )
        )
        with Client(scheduler_file=str(file), loop=loop) as client:
            client.wait_for_workers(2, timeout=30)
            assert client.submit(inc, 1, resources={"GPU": 1}).result(timeout=30) == 2
            info = client.scheduler_info()
            assert {w["name"]: w["memory_limit"] for w in info["workers"].values()}["nanny"] == 2**30
            assert json.loads(file.read_text())["address"] == info["address"]
        outputs = []
        for process in reversed(processes):
            process.send_signal(sig)
            out, _ = process.communicate(timeout=30)
            outputs.append(out)
            assert process.returncode == 0, out
        scheduler_output = outputs[-1]
        assert "Scheduler at:" in scheduler_output and "End scheduler" in scheduler_output
        assert not any("Traceback" in out or "WARNING" in out or "ERROR" in out for out in outputs), outputs
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()


def test_worker_gives_up_without_a_scheduler(tmp_path: Path) -> None:
    process = start(
        "dask_worker",
        "tcp://127.0.0.1:1",
        "--death-timeout",
        "0.5",
        "--no-nanny",
        "--local-directory",
        str(tmp_path),
    )
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "Timed out starting worker" in out and "End worker" in out


def test_command_line_errors() -> None:
    run = CliRunner().invoke
    result = run(dask_worker.main, ["tcp://127.0.0.1:1", "--nworkers", "many"])
    assert result.exit_code == 2 and "many" in result.output
    result = run(dask_worker.main, ["tcp://127.0.0.1:1", "--resources", "GPU"])
    assert result.exit_code == 2 and "GPU" in result.output
    result = run(dask_worker.main, ["tcp://127.0.0.1:1", "--memory-limit", "lots"])
    assert result.exit_code == 2 and "lots" in result.output
    result = run(dask_worker.main, ["tcp://127.0.0.1:1", "--worker-class", "no.such.Class"])
    assert result.exit_code == 2 and "no.such.Class" in result.output
    assert isinstance(run(dask_worker.main, []).exception, ValueError)
    assert run(dask_worker.main, ["tcp://127.0.0.1:1", "--no-nanny", "--nworkers", "2"]).exit_code == 1
    result = run(dask_scheduler.main, ["--port", "http"])
    assert result.exit_code == 2 and "http" in result.output
    assert run(dask_spec.main, []).exit_code == 1
    result = run(dask_spec.main, ["--spec", "{"])
    assert result.exit_code == 2 and "JSON" in result.output
    result = run(dask_benchmark.main, ["nonsense"])
    assert result.exit_code == 2 and "map" in result.output
    for module in (dask_worker, dask_scheduler, dask_spec, dask_benchmark):
        assert run(module.main, ["--version"]).output.strip().endswith("2026.8.0+1")
        assert run(module.main, ["--help"]).exit_code == 0


def test_ports_are_dealt_without_overlap() -> None:
    dealt = list(dask_worker.allocate_ports("9000:9005", "9010:9012", 3, True))
    assert dealt == [("9000:9001", "9010"), ("9002:9003", "9011"), ("9004:9005", "9012")]
    assert list(dask_worker.allocate_ports(None, None, 2, True)) == [(None, None)] * 2
    with pytest.raises(Exception, match="too few"):
        list(dask_worker.allocate_ports("9000", None, 2, True))


def test_preload(tmp_path: Path, loop: Any) -> None:
    preload = tmp_path / "my_preload.py"
    preload.write_text("def dask_setup(server):\n    server.preloaded = True\n")
    with (
        LocalCluster(
            n_workers=1,
            processes=False,
            dashboard_address=None,
            loop=loop,
            preload=str(preload),
            scheduler_kwargs={"preload": str(preload)},
        ) as cluster,
        Client(cluster, loop=loop) as client,
    ):
        assert client.run(lambda dask_worker: dask_worker.preloaded).popitem()[1]
        assert client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.preloaded)


def test_benchmark_measures(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = CliRunner().invoke(
        dask_benchmark.main, ["map-200", "latency-5", "--rounds", "1", "--json", str(out)]
    )
    assert result.exit_code == 0, result.output
    figures = json.loads(out.read_text())
    summary = figures["workloads"]["map-200"]["summary"]["ours"]
    assert (
        summary["tasks"] == 200
        and summary["tasks_per_s"] > 0
        and set(summary["cpu_us_per_task"]) == {"scheduler", "workers", "client"}
    )
