"""Peer-to-peer shuffles and merges against pandas, and what happens to them when workers die."""

from __future__ import annotations

import os
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from distributed import Client, LocalCluster
from distributed.utils_test import cluster, poll_for


@pytest.fixture(scope="module", params=[2, 4])
def client(request: Any) -> Any:
    with (
        LocalCluster(
            n_workers=request.param, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as c,
        Client(c) as client,
    ):
        yield client
        poll_for(lambda: not any(client.run(leftovers).values()))


def leftovers(dask_worker: Any) -> list[Any]:
    plugin = dask_worker.plugins["shuffle"]
    files = [name for name in os.listdir(dask_worker.local_directory) if name.startswith("shuffle-")]
    return [*plugin.runs, *files, *([1] if plugin._budget.used else [])]


def data(n: int = 600, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "a": rng.integers(0, 40, n),
            "b": rng.random(n),
            "s": [f"x{i % 7}" for i in range(n)],
            "c": pd.Categorical(rng.choice(list("uvw"), n)),
        }
    )


def same(left: pd.DataFrame, right: pd.DataFrame) -> None:
    columns = sorted(left.columns)
    assert columns == sorted(right.columns)
    left, right = (
        # missing texts are nan, None or NA, depending on the way they took
        x[columns]
        .assign(**({"s": x["s"].astype(object).fillna("missing")} if "s" in x else {}))
        .sort_values(columns, ignore_index=True)
        for x in (left, right)
    )
    pd.testing.assert_frame_equal(left, right, check_dtype=False, check_categorical=False)


def test_shuffle(client: Client) -> None:
    df = data()
    shuffled = dd.from_pandas(df, npartitions=9).shuffle("a", npartitions=5)
    assert any("shuffle-barrier" in str(key) for key in shuffled.optimize().dask)
    parts = dask.compute(*shuffled.to_delayed())
    same(pd.concat(parts), df)
    keys = [set(part["a"]) for part in parts]
    assert sum(map(len, keys)) == df["a"].nunique()


def test_one_partition_and_empty_ones(client: Client) -> None:
    df = data(30)
    same(dd.from_pandas(df, npartitions=3).shuffle("a", npartitions=1).compute(), df)
    skewed = df.assign(a=1)
    same(dd.from_pandas(skewed, npartitions=3).shuffle("a", npartitions=8).compute(), skewed)
    nothing = dd.from_pandas(df, npartitions=3)
    assert len(nothing[nothing.a > 1000].shuffle("a").compute()) == 0


@pytest.mark.parametrize("how", ["inner", "left", "right", "outer"])
def test_merge(client: Client, how: str) -> None:
    left, right = data(300), data(200, 1).assign(a=lambda x: x.a + 20)[["a", "b"]]
    got = dd.from_pandas(left, npartitions=6).merge(
        dd.from_pandas(right, npartitions=4), on="a", how=how, suffixes=("_l", "_r"), broadcast=False
    )
    same(got.compute(), left.merge(right, on="a", how=how, suffixes=("_l", "_r")))


def test_set_index_and_groupby(client: Client) -> None:
    df = data()
    ddf = dd.from_pandas(df, npartitions=7)
    by_b = ddf.set_index("b").compute()
    assert by_b.index.tolist() == sorted(df["b"])
    got = ddf.groupby("a").b.apply(len, meta=("b", "int64")).compute().sort_index()
    assert got.tolist() == df.groupby("a").b.apply(len).tolist()


def test_two_shuffles_share_an_input(client: Client) -> None:
    df = data()
    ddf = dd.from_pandas(df, npartitions=5).persist()
    one, two = dask.compute(ddf.shuffle("a"), ddf.shuffle("s"))
    same(one, df)
    same(two, df)


def test_merge_on_index_and_with_indicator(client: Client) -> None:
    left = pd.DataFrame({"a": np.arange(60) % 17, "b": np.arange(60.0)})
    right = pd.DataFrame({"a": np.arange(10, 40), "c": np.arange(30)})
    dleft, dright = dd.from_pandas(left, npartitions=5), dd.from_pandas(right, npartitions=3)
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        outer = dleft.merge(dright, on="a", how="outer", indicator=True, broadcast=False).compute()
        on_index = dleft.merge(
            dright.set_index("a"), left_on="a", right_index=True, how="left", broadcast=False
        ).compute()
    expected = left.merge(right, on="a", how="outer", indicator=True)
    columns = ["a", "b", "c", "_merge"]
    pd.testing.assert_frame_equal(
        outer[columns].astype({"_merge": str}).sort_values(columns, ignore_index=True),
        expected[columns].astype({"_merge": str}).sort_values(columns, ignore_index=True),
        check_dtype=False,
    )
    expected = left.merge(right.set_index("a"), left_on="a", right_index=True, how="left")
    columns = ["a", "b", "c"]
    pd.testing.assert_frame_equal(
        on_index[columns].sort_values(columns, ignore_index=True),
        expected[columns].sort_values(columns, ignore_index=True),
        check_dtype=False,
    )


def test_a_cancelled_shuffle_leaves_nothing(client: Client) -> None:
    df = data(5000)
    for _ in range(3):
        future = client.compute(dd.from_pandas(df, npartitions=50).shuffle("a", npartitions=50))
        poll_for(lambda: "shuffle-begin" in actions(client), period=0.001)
        future.cancel()
        del future
        poll_for(lambda: not any(client.run(leftovers).values()))
    assert client.submit(sum, [1, 2]).result() == 3


def test_what_arrow_cannot_hold_is_an_error(client: Client) -> None:
    df = pd.DataFrame({"a": [1, 2, 3, 4], "o": [object() for _ in range(4)]})
    with dask.config.set({"dataframe.convert-string": False}):
        shuffled = dd.from_pandas(df, npartitions=2, sort=False).shuffle("a")
        with pytest.raises(TypeError, match="cannot be converted to Arrow"):
            shuffled.compute()


def actions(client: Client) -> list[str]:
    return [msg["action"] for _, msg in client.get_events("shuffle")]


@pytest.mark.parametrize("phase", ["transfer", "unpack"])
def test_kill_a_worker(phase: str, loop: Any) -> None:
    df = data(2000)
    with cluster(nworkers=3) as (s, workers), Client(s["address"], loop=loop) as client:
        ddf = dd.from_pandas(df, npartitions=200).shuffle("a", npartitions=100)
        future = client.compute(ddf)
        wanted = "shuffle-begin" if phase == "transfer" else "shuffle-inputs-done"
        poll_for(lambda: wanted in actions(client), period=0.001)
        os.kill(workers[1]["pid"], 9)
        same(future.result(timeout=60), df)
        del future
        poll_for(lambda: not any(client.run(leftovers).values()))
