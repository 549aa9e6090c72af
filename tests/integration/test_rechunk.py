"""Peer-to-peer rechunking against numpy, on real workers."""

from __future__ import annotations

import os
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

from distributed import Client, LocalCluster
from distributed.shuffle import rechunk_p2p
from distributed.shuffle._core import id_from_key
from distributed.utils_test import cluster, poll_for
from tests.integration.test_shuffle import actions, leftovers


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


def barriers(x: Any) -> int:
    return sum(id_from_key(key) is not None for key in dict(x.__dask_graph__()))


@pytest.mark.parametrize("dtype", ["f8", "i2", "M8[s]", "c16", "?", [("a", "i4"), ("b", "f8")]])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (((10,) * 4, (60,)), ((40,), (10,) * 6)),
        (((7, 13, 20), (25, 35)), ((20, 20), (11, 30, 19))),
        (((40,), (60,)), ((10, 30), (20, 40))),
        (((20, 20), (30, 30)), ((40,), (60,))),
    ],
)
def test_rechunk(client: Client, old: Any, new: Any, dtype: Any) -> None:
    values = np.arange(2400).reshape(40, 60)
    if isinstance(dtype, list):
        x = np.zeros(values.shape, dtype)
        x["a"], x["b"] = values, -values
    else:
        x = values.astype(dtype)
    y = da.from_array(x, chunks=old).rechunk(new, method="p2p")
    assert y.chunks == new and y.dtype == x.dtype
    result = y.compute()
    assert result.dtype == x.dtype and (result == x).all()


def test_dask_chooses_it(client: Client) -> None:
    x = da.ones((200, 200), chunks=(1, 200))
    y = x.rechunk((200, 1))
    assert barriers(y) == 1
    assert y.sum(axis=0).compute().tolist() == [200.0] * 200


def test_no_needless_crossing(client: Client) -> None:
    x = np.random.default_rng(1).random((20, 30, 4))
    y = da.from_array(x, chunks=(5, 10, 4))
    z = y.rechunk((5, 15, 2), method="p2p")
    # the first axis stays: four parts that know nothing of each other
    assert barriers(z) == 4
    np.testing.assert_array_equal(z.compute(), x)
    assert barriers(y.rechunk((5, 30, 4), method="p2p")) == 0, "concatenated"
    assert barriers(y.rechunk((5, 5, 2), method="p2p")) == 0, "cut"
    np.testing.assert_array_equal(y.rechunk((5, 5, 2), method="p2p").compute(), x)
    np.testing.assert_array_equal(y.rechunk((20, 30, 4), method="p2p").compute(), x)


def test_only_what_is_wanted(client: Client) -> None:
    x = np.arange(400).reshape(20, 20)
    y = da.from_array(x, chunks=(5, 20)).rechunk((20, 5), method="p2p")
    part = y[:, :5]
    names = [key[0] for key in dict(dask.optimize(part)[0].__dask_graph__()) if isinstance(key, tuple)]
    assert sum(str(name).startswith("rechunk-p2p-") for name in names) <= 1
    np.testing.assert_array_equal(part.compute(), x[:, :5])


def test_edges(client: Client) -> None:
    scalar = da.from_array(np.array(5.0))
    assert rechunk_p2p(scalar, ()) is scalar
    same = da.ones((4, 4), chunks=2)
    assert rechunk_p2p(same, same.chunks) is same
    empty = da.ones((0, 4), chunks=((0,), (2, 2)), dtype="i4")
    result = rechunk_p2p(empty, ((0,), (4,)))
    assert result.chunks == ((0,), (4,)) and result.compute().shape == (0, 4) and result.dtype == "i4"
    x = da.arange(10, chunks=((0, 4, 0, 6),))
    assert rechunk_p2p(x, ((5, 0, 5, 0),)).compute().tolist() == list(range(10))
    unknown = da.from_array(np.arange(12).reshape(6, 2), chunks=(2, 2))
    unknown = unknown[unknown[:, 0] > 3]
    with pytest.raises(ValueError, match="unknown"):
        rechunk_p2p(unknown, ((4,), (2,)))
    nothing = unknown[:, :0]
    result = rechunk_p2p(nothing, (nothing.chunks[0], (0, 0)))
    assert result.compute().shape == (4, 0)
    narrow = rechunk_p2p(unknown, (unknown.chunks[0], (1, 1)))
    assert narrow.compute().tolist() == [[4, 5], [6, 7], [8, 9], [10, 11]]


def test_in_memory_and_beyond_the_buffers(client: Client) -> None:
    x = da.random.default_rng(1).random((600, 600), chunks=(20, 600))
    expected = x.compute()
    with dask.config.set({"distributed.p2p.storage.disk": False}):
        y = x.rechunk((600, 20), method="p2p")
    np.testing.assert_array_equal(y.compute(), expected)


def test_kill_a_worker(loop: Any) -> None:
    x = da.from_array(np.arange(250_000).reshape(500, 500), chunks=(5, 500))
    with cluster(nworkers=3) as (s, workers), Client(s["address"], loop=loop) as client:
        future = client.compute(x.rechunk((500, 5), method="p2p"))
        poll_for(lambda: "shuffle-begin" in actions(client), period=0.001)
        os.kill(workers[1]["pid"], 9)
        np.testing.assert_array_equal(future.result(timeout=60), np.arange(250_000).reshape(500, 500))
        del future
        poll_for(lambda: not any(client.run(leftovers).values()))
