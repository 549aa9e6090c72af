"""One side of a comparison: a scheduler, workers and a client, each in its own process, with their CPU and memory.

A side is an interpreter plus configuration, so it can be this package or any other implementation of ``distributed``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

#: how long a side may take to come up, seconds
START_TIMEOUT_S = 60.0

#: settings that an expert would choose for tiny tasks
EXPERT_CONFIG = {
    "distributed.scheduler.worker-saturation": "inf",
    "distributed.worker.profile.enabled": "false",
}


class SideError(RuntimeError):
    """A side did not start or a workload failed; carries its output."""


@dataclass
class Sample:
    """CPU seconds and resident bytes of one role."""

    cpu_s: float
    rss: int


@dataclass
class Measurement:
    """One run of one workload on one side."""

    wall_s: float
    tasks: int
    #: role -> CPU microseconds per task
    cpu_us: dict[str, float]
    #: role -> bytes of resident memory gained while the workload ran
    rss_gain: dict[str, int]
    build_s: float
    extra: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Tasks per second."""
        return self.tasks / self.wall_s


def config_environment(config: dict[str, str]) -> dict[str, str]:
    """Environment variables that set dask configuration keys."""
    return {
        "DASK_" + key.upper().replace(".", "__").replace("-", "_"): value for key, value in config.items()
    }


class Side:
    """A running cluster of one implementation; use as a context manager.

    Parameters
    ----------
    python
        Interpreter of the environment; default: this one.
    config
        dask configuration keys for all of its processes.
    """

    def __init__(
        self,
        name: str,
        python: str | None = None,
        config: dict[str, str] | None = None,
        n_workers: int = 2,
        nthreads: int = 1,
        client: bool = True,
    ) -> None:
        self.name = name
        self._with_client = client
        self.address = ""
        self.python = python or sys.executable
        self.config = dict(config or {})
        self.n_workers = n_workers
        self.nthreads = nthreads
        self.version = "?"
        self._processes: dict[str, list[subprocess.Popen[Any]]] = {}
        self._directory = tempfile.TemporaryDirectory(prefix="dask-benchmark-")
        self._log: Any = None
        self._driver: subprocess.Popen[str] | None = None

    def __enter__(self) -> Side:
        directory = Path(self._directory.name)
        self._log = open(directory / "log", "wb")
        scheduler_file = directory / "scheduler.json"
        env = {**os.environ, **config_environment(self.config), "PYTHONUNBUFFERED": "1"}
        foreign = self.python != sys.executable
        modules = directory / "modules"
        modules.mkdir()
        shutil.copy(Path(__file__).with_name("workloads.py"), modules / "benchmark_workloads.py")
        path = [str(modules)] if foreign else [str(modules), str(Path(__file__).resolve().parents[2])]
        env["PYTHONPATH"] = os.pathsep.join(path)
        # -P: the current directory must not decide which package is imported
        base = [self.python, "-P", "-m"]
        options: dict[str, Any] = {
            "cwd": directory,
            "env": env,
            "stdout": self._log,
            "stderr": self._log,
            "stdin": subprocess.DEVNULL,
        }
        try:
            self._processes["scheduler"] = [
                subprocess.Popen(
                    [
                        *base,
                        "distributed.cli.dask_scheduler",
                        "--host",
                        "127.0.0.1",
                        "--port",
                        "0",
                        "--no-dashboard",
                        "--scheduler-file",
                        str(scheduler_file),
                    ],
                    **options,
                )
            ]
            deadline = time.monotonic() + START_TIMEOUT_S
            address = None
            while address is None:
                if time.monotonic() > deadline or self._processes["scheduler"][0].poll() is not None:
                    raise SideError(f"the scheduler of {self.name} did not start:\n{self._output()}")
                try:
                    address = json.loads(scheduler_file.read_text())["address"]
                except (FileNotFoundError, json.JSONDecodeError):
                    time.sleep(0.05)
            self._processes["workers"] = [
                subprocess.Popen(
                    [
                        *base,
                        "distributed.cli.dask_worker",
                        address,
                        "--no-nanny",
                        "--nthreads",
                        str(self.nthreads),
                        "--no-dashboard",
                        "--local-directory",
                        str(directory),
                    ],
                    **options,
                )
                for _ in range(self.n_workers)
            ]
            self.address = address
            if not self._with_client:
                return self
            driver = str(Path(__file__).with_name("driver.py"))
            self._driver = subprocess.Popen(
                [self.python, "-P", driver, address, str(self.n_workers)],
                cwd=directory,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
            )
            self._processes["client"] = [self._driver]
            self.version = self._read_answer()["version"]
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, typ: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all processes of this side."""
        driver = self._driver
        if driver is not None and driver.poll() is None and driver.stdin is not None:
            try:
                driver.stdin.write('{"do": "quit"}\n')
                driver.stdin.close()
                driver.wait(10)
            except (OSError, subprocess.TimeoutExpired):
                driver.kill()
        for role in ("client", "workers", "scheduler"):
            for process in self._processes.get(role, ()):
                if process.poll() is None:
                    process.terminate()
            for process in self._processes.get(role, ()):
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        if driver is not None and driver.stdout is not None:
            driver.stdout.close()
        self._processes.clear()
        if self._log is not None:
            self._log.close()
        self._directory.cleanup()

    def _output(self) -> str:
        self._log.flush()
        return (Path(self._directory.name) / "log").read_text(errors="replace")[-4000:]

    def _read_answer(self) -> dict[str, Any]:
        assert self._driver is not None and self._driver.stdout is not None, "the driver runs"
        line = self._driver.stdout.readline()
        if not line:
            raise SideError(f"the client of {self.name} ended:\n{self._output()}")
        answer: dict[str, Any] = json.loads(line)
        if answer.get("ok") is False:
            raise SideError(f"workload failed on {self.name}:\n{answer['error']}")
        return answer

    def _ask(self, **command: Any) -> dict[str, Any]:
        assert self._driver is not None and self._driver.stdin is not None, "the driver runs"
        self._driver.stdin.write(json.dumps(command) + "\n")
        self._driver.stdin.flush()
        return self._read_answer()

    def sample(self) -> dict[str, Sample]:
        """CPU and memory of each role, added up over its processes."""
        samples = {}
        for role, processes in self._processes.items():
            cpu, rss = 0.0, 0
            for process in processes:
                info = psutil.Process(process.pid)
                times = info.cpu_times()
                cpu += times.user + times.system
                rss += info.memory_info().rss
            samples[role] = Sample(cpu, rss)
        return samples

    def measure(self, workload: str) -> Measurement:
        """Build, run and clean up a workload once."""
        built = self._ask(do="build", workload=workload)
        before = self.sample()
        result = self._ask(do="run")
        after = self.sample()
        self._ask(do="cleanup")
        tasks = result["tasks"]
        extra = {key: value for key, value in result.items() if key not in ("ok", "wall_s", "tasks")}
        return Measurement(
            wall_s=result["wall_s"],
            tasks=tasks,
            cpu_us={role: 1e6 * (after[role].cpu_s - before[role].cpu_s) / tasks for role in before},
            rss_gain={role: after[role].rss - before[role].rss for role in before},
            build_s=built["build_s"],
            extra=extra,
        )


class LocalProcesses:
    """A scheduler and workers of this package as processes, for as long as the context lasts; gives the scheduler's address."""

    def __init__(self, n_workers: int = 2, nthreads: int = 1) -> None:
        self._side = Side("local", n_workers=n_workers, nthreads=nthreads, client=False)

    def __enter__(self) -> str:
        return self._side.__enter__().address

    def __exit__(self, *exc: object) -> None:
        self._side.close()
