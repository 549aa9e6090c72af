"""dask programs on our clusters against the same computation by pandas, numpy and dask's own synchronous scheduler."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from distributed import Client, LocalCluster, wait
from distributed.utils_test import inc

SHAPES = [
    pytest.param({"n_workers": 1, "threads_per_worker": 2, "processes": False}, id="1-threads"),
    pytest.param({"n_workers": 2, "threads_per_worker": 2, "processes": False}, id="2-threads"),
    pytest.param(
        {"n_workers": 8, "threads_per_worker": 1, "processes": False, "protocol": "tcp"}, id="8-threads-tcp"
    ),
    pytest.param({"n_workers": 1, "threads_per_worker": 2, "processes": True}, id="1-processes"),
    pytest.param({"n_workers": 2, "threads_per_worker": 1, "processes": True}, id="2-processes"),
    pytest.param(
        {"n_workers": 8, "threads_per_worker": 1, "processes": True, "memory_limit": 0}, id="8-processes"
    ),
]


@pytest.fixture(scope="module", params=SHAPES)
def client(request: Any) -> Any:
    with LocalCluster(dashboard_address=":0", **request.param) as cluster, Client(cluster) as c:
        yield c


def test_array(client: Client) -> None:
    rng = np.random.default_rng(1)
    data = rng.random((60, 80))
    x = da.from_array(data, chunks=(13, 20))
    y = data + data
    assert np.allclose((x + x).compute(), y)
    assert np.allclose((x @ x.T).compute(), data @ data.T)
    assert np.allclose(x[::2, 5:].mean(axis=0).compute(), data[::2, 5:].mean(axis=0))
    assert np.allclose(x.rechunk((60, 7)).sum(axis=1).compute(), data.sum(axis=1))
    assert np.allclose(da.linalg.svd(x.rechunk((60, 80)))[1].compute(), np.linalg.svd(data, compute_uv=False))
    persisted = x.persist()
    wait(persisted)
    assert np.allclose(persisted.std().compute(), data.std())
    a, b = dask.compute(x.min(), x.max())
    assert (a, b) == (data.min(), data.max())
    masked = da.ma.masked_greater(x, 0.5)
    assert np.allclose(masked.sum().compute(), np.ma.masked_greater(data, 0.5).sum())


def test_dataframe(client: Client) -> None:
    rng = np.random.default_rng(2)
    df = pd.DataFrame(
        {
            "a": rng.integers(0, 10, 500),
            "b": rng.random(500),
            "c": rng.choice(["x", "y", "z"], 500),
            "t": pd.date_range("2020", periods=500, freq="h"),
        }
    )
    other = pd.DataFrame({"a": np.arange(10), "w": rng.random(10)})
    ddf = dd.from_pandas(df, npartitions=7)
    dother = dd.from_pandas(other, npartitions=2)
    pd.testing.assert_series_equal(ddf.groupby("a").b.mean().compute().sort_index(), df.groupby("a").b.mean())
    pd.testing.assert_frame_equal(
        ddf.groupby(["a", "c"]).agg({"b": ["sum", "count"]}).compute().sort_index(),
        df.groupby(["a", "c"]).agg({"b": ["sum", "count"]}),
        check_column_type=False,
        check_index_type=False,
    )
    merged = ddf.merge(dother, on="a", how="inner").compute().sort_values(["t"]).reset_index(drop=True)
    expected = df.merge(other, on="a", how="inner").sort_values(["t"]).reset_index(drop=True)
    pd.testing.assert_frame_equal(merged, expected, check_dtype=False)
    shuffled = ddf.shuffle("a").compute()
    pd.testing.assert_frame_equal(shuffled.sort_values("t").reset_index(drop=True), df, check_dtype=False)
    indexed = ddf.set_index("b").compute()
    assert indexed.index.is_monotonic_increasing and len(indexed) == 500
    assert ddf.b.nlargest(3).compute().tolist() == df.b.nlargest(3).tolist()
    persisted = ddf[ddf.a > 3].persist()
    assert len(persisted) == (df.a > 3).sum()
    assert ddf.b.rolling(5).mean().compute().sum() == pytest.approx(df.b.rolling(5).mean().sum())


def test_bag(client: Client) -> None:
    bag = db.from_sequence(range(100), npartitions=6)
    assert bag.map(inc).filter(lambda x: x % 2).sum().compute() == sum(x for x in range(1, 101) if x % 2)
    assert dict(bag.map(lambda x: x % 3).frequencies().compute()) == {0: 34, 1: 33, 2: 33}
    pairs = bag.groupby(lambda x: x % 4, shuffle="tasks").compute()
    assert {k: sorted(v) for k, v in pairs} == {k: list(range(k, 100, 4)) for k in range(4)}


def test_delayed(client: Client) -> None:
    parts = [dask.delayed(inc)(i) for i in range(20)]
    assert dask.delayed(sum)(parts).compute() == 210
    tree = parts
    while len(tree) > 1:
        tree = [
            dask.delayed(lambda a, b: a + b)(*tree[i : i + 2]) for i in range(0, len(tree) - 1, 2)
        ] + tree[len(tree) // 2 * 2 :]
    assert tree[0].compute() == 210
    nested = dask.delayed({"a": [parts[0], (parts[1], 2)], "b": parts[2]})
    with dask.config.set(scheduler="sync"):
        expected = nested.compute()
    assert nested.compute() == expected
    futures = client.compute(parts[:3])
    assert client.gather(futures) == [1, 2, 3]
    assert client.compute(parts[0], sync=True) == 1
    future = client.submit(inc, 41)
    assert dask.delayed(inc)(future).compute() == 43
    assert dask.delayed(sum)([future, future]).compute() == 84


def test_get_and_legacy_graphs(client: Client) -> None:
    graph = {"x": 1, "y": (inc, "x"), ("z", 0): (sum, ["x", "y", (inc, 5)]), "alias": "y", "l": [1, "x"]}
    assert client.get(graph, [["x", ("z", 0)], "alias"]) == [[1, 9], 2]
    assert client.get(graph, "l") == [1, 1]
    futures = client.get(graph, ["y"], sync=False)
    assert client.gather(futures) == [2]
    assert dask.get(graph, "y") == client.get(graph, "y")


def test_annotations(client: Client) -> None:
    with dask.annotate(retries=2, priority=lambda key: 5):
        x = da.ones((10, 10), chunks=(5, 5))
    with dask.config.set({"optimization.fuse.active": False}):
        y = (x + 1).persist(optimize_graph=False)
    wait(y)
    priorities = client.run_on_scheduler(
        lambda dask_scheduler: {
            ts.priority[0] for key, ts in dask_scheduler.tasks.items() if "ones" in str(key) and ts.priority
        }
    )
    assert -5 in priorities or not priorities
    assert (y.sum()).compute() == 200


def test_methods_that_dask_chooses(client: Client) -> None:
    """They are left to dask."""
    assert dask.config.get("dataframe.shuffle.method", None) is None
    assert dask.config.get("array.rechunk.method", None) is None


def test_large_arguments_travel_once(client: Client) -> None:
    big = np.arange(50_000)
    total = client.submit(lambda x, y: int(x.sum() + y.sum()), big, big).result()
    assert total == 2 * int(big.sum())
    mapped = client.gather(client.map(lambda i, array: int(array[i]), range(5), array=big))
    assert mapped == list(range(5))
    assert client.submit(len, b"x" * 10**6).result() == 10**6
