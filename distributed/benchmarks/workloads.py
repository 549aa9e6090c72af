"""The workloads: what a client does, through the public API only.

Runs under any implementation of ``distributed``, therefore it must import nothing that only this one has. A workload is built before the clock
starts; its ``run`` returns how many tasks it ran and, where it makes sense, further figures.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from typing import Any

from distributed import wait

Result = dict[str, Any]


def inc(x: int) -> int:
    return x + 1


class Workload:
    """Built once per side and round; `run` is what is measured."""

    def __init__(self, client: Any, n: int) -> None:
        self.client = client
        self.n = n

    def run(self) -> Result:
        """Do it; returns at least ``tasks``."""
        raise NotImplementedError

    def cleanup(self) -> None:
        """Let go of results, outside the measurement."""


class Map(Workload):
    """``client.map(inc, range(n))``, then wait."""

    def run(self) -> Result:
        self.futures = self.client.map(inc, range(self.n))
        wait(self.futures)
        return {"tasks": self.n}

    def cleanup(self) -> None:
        del self.futures


class MapGather(Map):
    """``client.map`` and ``client.gather`` of all results."""

    def run(self) -> Result:
        self.futures = self.client.map(inc, range(self.n))
        results = self.client.gather(self.futures)
        if results != list(range(1, self.n + 1)):
            raise AssertionError("map-gather returned wrong results")
        return {"tasks": self.n}


class Submit(Workload):
    """`n` calls of ``client.submit``, then wait."""

    def run(self) -> Result:
        self.futures = [self.client.submit(inc, i) for i in range(self.n)]
        wait(self.futures)
        return {"tasks": self.n}

    def cleanup(self) -> None:
        del self.futures


class Latency(Workload):
    """`n` times submit and result, one after the other; p50 and p99 in milliseconds."""

    def run(self) -> Result:
        times = []
        for i in range(self.n):
            start = time.perf_counter()
            self.client.submit(inc, -1 - i).result()
            times.append(time.perf_counter() - start)
        times.sort()
        return {
            "tasks": self.n,
            "p50_ms": 1e3 * times[len(times) // 2],
            "p99_ms": 1e3 * times[int(len(times) * 0.99)],
        }


class Chain(Workload):
    """A chain of `n` submits, each on the result of the one before."""

    def run(self) -> Result:
        future = self.client.submit(inc, 0, key=f"chain-0-{time.time()}")
        for i in range(1, self.n):
            future = self.client.submit(inc, future, key=f"chain-{i}-{time.time()}")
        if future.result() != self.n:
            raise AssertionError("chain returned a wrong result")
        return {"tasks": self.n}


class Tree(Workload):
    """A binary tree reduction of about `n` tasks, a graph made beforehand."""

    def __init__(self, client: Any, n: int) -> None:
        super().__init__(client, n)
        leaves = (n + 1) // 2
        tag = f"{time.time():.6f}"
        self.graph: dict[Any, Any] = {(f"leaf-{tag}", i): (inc, i) for i in range(leaves)}
        level = list(self.graph)
        depth = 0
        while len(level) > 1:
            depth += 1
            following = []
            for i in range(0, len(level) - 1, 2):
                key = (f"add{depth}-{tag}", i // 2)
                self.graph[key] = (operator.add, level[i], level[i + 1])
                following.append(key)
            if len(level) % 2:
                following.append(level[-1])
            level = following
        self.root = level[0]
        self.expected = leaves * (leaves + 1) // 2

    def run(self) -> Result:
        if self.client.get(self.graph, self.root) != self.expected:
            raise AssertionError("tree returned a wrong result")
        return {"tasks": len(self.graph)}


class Merge(Workload):
    """`n` independent tasks and one that sums them, a graph made beforehand."""

    def __init__(self, client: Any, n: int) -> None:
        super().__init__(client, n)
        tag = f"{time.time():.6f}"
        self.graph: dict[Any, Any] = {(f"part-{tag}", i): (inc, i) for i in range(n)}
        self.root = f"sum-{tag}"
        self.graph[self.root] = (sum, list(self.graph))

    def run(self) -> Result:
        if self.client.get(self.graph, self.root) != self.n * (self.n + 1) // 2:
            raise AssertionError("merge returned a wrong result")
        return {"tasks": len(self.graph)}


class Numpy(Workload):
    """``x + x.T``, slice, mean, sum over a 2-d array of n x n blocks of 100 x 100."""

    def __init__(self, client: Any, n: int) -> None:
        super().__init__(client, n)
        import dask.array as da

        x = da.random.default_rng(int(time.time() * 1e6)).random((100 * n, 100 * n), chunks=(100, 100))
        y = x + x.T
        self.result = y[::2, 50 * n :].mean(axis=1).sum()
        self.tasks = len(dict(self.result.__dask_graph__()))

    def run(self) -> Result:
        value = float(self.client.compute(self.result).result())
        if not value > 0:
            raise AssertionError(f"numpy returned {value}")
        return {"tasks": self.tasks}


class Live(Workload):
    """`n` finished tasks kept alive: memory per task on each role."""

    def run(self) -> Result:
        self.futures = self.client.map(inc, range(self.n), batch_size=10_000)
        wait(self.futures)
        return {"tasks": self.n, "live": self.n}

    def cleanup(self) -> None:
        del self.futures


#: name -> workload class and default size
WORKLOADS: dict[str, tuple[Callable[[Any, int], Workload], int]] = {
    "map": (Map, 10_000),
    "map-gather": (MapGather, 10_000),
    "submit": (Submit, 5_000),
    "latency": (Latency, 200),
    "chain": (Chain, 500),
    "tree": (Tree, 10_000),
    "merge": (Merge, 10_000),
    "numpy": (Numpy, 20),
    "live": (Live, 100_000),
}


def parse_workload(text: str) -> tuple[str, int]:
    """``"map-10k"`` -> ``("map", 10000)``; without a number the default size. ValueError lists the known names."""
    if text in WORKLOADS:
        return text, WORKLOADS[text][1]
    name, _, size = text.rpartition("-")
    scale = 1
    if size.endswith("k"):
        size, scale = size[:-1], 1_000
    if name not in WORKLOADS or not size.isdigit() or int(size) < 1:
        raise ValueError(
            f"unknown workload {text!r}; known: {', '.join(WORKLOADS)}, optionally with a size, as in map-10k"
        )
    return name, int(size) * scale


def make_workload(client: Any, text: str) -> Workload:
    """Build a workload by its text."""
    name, n = parse_workload(text)
    return WORKLOADS[name][0](client, n)
