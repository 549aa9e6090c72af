"""What a user does, through the public API only: run by the interpreter of either package against a cluster of any seats.

``python program.py ADDRESS``; prints one line per step, and ends with "done".
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd

from distributed import Client, as_completed, fire_and_forget, get_client, wait


def inc(x: int) -> int:
    return x + 1


def fail(x: int) -> float:
    return 1 / x


def flaky(name: str) -> int:
    import os

    try:
        os.open(name, os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return 7
    raise RuntimeError("the first time")


def nested(n: int) -> int:
    client = get_client()
    return sum(client.gather(client.map(inc, range(n))))


def whoami(dask_worker: Any) -> str:
    return dask_worker.address


def size_of(x: Any) -> int:
    return len(x)


class Custom:
    def __init__(self, value: int) -> None:
        self.value = value


def submit_and_gather(c: Client) -> None:
    assert c.submit(inc, 1).result() == 2
    futures = c.map(inc, range(500))
    assert c.gather(futures) == list(range(1, 501))
    total = c.submit(sum, futures)
    assert total.result() == 125250
    assert c.gather({"a": [total], "b": (futures[0], 5)}) == {"a": [125250], "b": (1, 5)}


def scatter(c: Client) -> None:
    (a,) = c.scatter([np.arange(1000)])
    everywhere = c.scatter(np.ones(10), broadcast=True)
    local = c.scatter({"x": 1, "y": [2, 3]}, direct=True)
    assert c.submit(np.sum, a).result() == 499500
    assert len(c.who_has([everywhere])[everywhere.key]) == len(c.scheduler_info()["workers"])
    assert c.gather(local) == {"x": 1, "y": [2, 3]}


def errors(c: Client) -> None:
    future = c.submit(fail, 0)
    dependent = c.submit(inc, future)
    for f in (future, dependent):
        try:
            f.result()
        except ZeroDivisionError as exc:
            assert "fail" in "".join(traceback.format_tb(exc.__traceback__))
        else:
            raise AssertionError("no error")
    assert future.status == "error" and isinstance(dependent.exception(), ZeroDivisionError)
    assert c.gather([future, c.submit(inc, 1)], errors="skip") == [2]


def retries(c: Client) -> None:
    import os
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        assert c.submit(flaky, os.path.join(directory, "a"), retries=1).result() == 7
        future = c.submit(flaky, os.path.join(directory, "b"))
        wait(future)
        assert future.status == "error"
        future.retry()
        assert future.result() == 7


def cancel(c: Client) -> None:
    future = c.submit(inc, 10)
    wait(future)
    c.cancel(future)
    assert future.cancelled()
    assert c.submit(inc, 11).result() == 12


def restrictions(c: Client) -> None:
    for address in c.scheduler_info()["workers"]:
        x = c.submit(inc, 5, workers=[address], pure=False)
        wait(x)
        assert list(c.who_has([x])[x.key]) == [address]
    with dask.annotate(priority=5, retries=2):
        assert dask.delayed(inc)(1).compute() == 2
    assert c.submit(inc, 1, priority=10, pure=False).result() == 2
    special = c.submit(inc, 6, resources={"special": 1}, pure=False)
    assert special.result() == 7


def functions(c: Client) -> None:
    assert sorted(c.run(whoami).values()) == sorted(c.scheduler_info()["workers"])
    assert c.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.workers)) == len(
        c.scheduler_info()["workers"]
    )
    assert c.run(inc, 1) == dict.fromkeys(c.scheduler_info()["workers"], 2)


def payloads(c: Client) -> None:
    rng = np.random.default_rng(1)
    for n in (1, 1000, 100_000, 20 * 2**20):
        data = rng.bytes(n)
        assert c.submit(size_of, data).result() == n
        assert c.submit(bytes, c.scatter(data, hash=False)).result() == data
    array = rng.random((300, 700))
    frame = pd.DataFrame({"a": np.arange(1000), "s": [f"s{i % 9}" for i in range(1000)]})
    for value in (
        array,
        array[::2, ::3],
        array.astype("f4"),
        frame,
        frame.s,
        Custom(5),
        {"x": [1, (2, 3)], 5: {6}},
    ):
        x = c.scatter(value, hash=False)
        # to every worker and back
        copies = [c.submit(lambda v: v, x, workers=[w], pure=False) for w in c.scheduler_info()["workers"]]
        for result in c.gather(copies):
            if isinstance(value, np.ndarray):
                np.testing.assert_array_equal(result, value)
            elif isinstance(value, pd.DataFrame | pd.Series):
                assert result.equals(value)
            elif isinstance(value, Custom):
                assert result.value == 5
            else:
                assert result == value


def collections(c: Client) -> None:
    x = da.arange(10_000, chunks=500)
    assert (x + x[::-1]).sum().compute() == 99990000
    assert db.range(100, npartitions=5).map(inc).filter(lambda i: i % 2).sum().compute() == 2500
    frame = pd.DataFrame({"a": np.arange(300) % 7, "b": np.arange(300.0)})
    ddf = dd.from_pandas(frame, npartitions=6)
    assert ddf.b.sum().compute() == frame.b.sum()
    pd.testing.assert_series_equal(
        ddf.groupby("a").b.mean().compute().sort_index(), frame.groupby("a").b.mean()
    )
    persisted = ddf.persist()
    wait(persisted)
    assert len(persisted) == 300


def shuffles(c: Client) -> None:
    frame = pd.DataFrame({"a": np.arange(400) % 13, "b": np.arange(400.0)})
    ddf = dd.from_pandas(frame, npartitions=8)
    for method in ("tasks", "p2p"):
        with dask.config.set({"dataframe.shuffle.method": method}):
            result = ddf.shuffle("a").compute().sort_values("b")
            assert result.b.tolist() == frame.b.tolist(), method
            merged = ddf.merge(ddf, on="a").compute()
            assert len(merged) == len(frame.merge(frame, on="a")), method
    x = da.from_array(np.arange(3600).reshape(60, 60), chunks=(10, 60))
    for method in ("tasks", "p2p"):
        np.testing.assert_array_equal(
            x.rechunk((60, 10), method=method).compute(), np.arange(3600).reshape(60, 60)
        )


def others(c: Client) -> None:
    assert {f.result() for f in as_completed(c.map(inc, range(20)))} == set(range(1, 21))
    assert c.submit(nested, 10).result() == 55
    fire_and_forget(c.submit(inc, 1000))
    c.set_metadata(["a", "b"], 5)
    assert c.get_metadata(["a", "b"]) == 5
    x = c.submit(inc, 77)
    wait(x)
    c.replicate([x])
    assert len(c.who_has([x])[x.key]) == len(c.scheduler_info()["workers"])
    with Client(c.scheduler.address, set_as_default=False) as second:
        assert second.submit(inc, 77).result() == 78
    c.restart(timeout=60)
    assert c.submit(inc, 1).result() == 2


STEPS = (
    submit_and_gather,
    scatter,
    errors,
    retries,
    cancel,
    restrictions,
    functions,
    payloads,
    collections,
    shuffles,
    others,
)


def main(address: str) -> None:
    with Client(address) as c:
        c.wait_for_workers(2, timeout=60)
        for step in STEPS:
            step(c)
            print(step.__name__, flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
