"""Shuffles without a cluster: runs as the scheduler keeps them, stores, budgets, Arrow."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from distributed.protocol import pickle
from distributed.shuffle._arrow import check_dtype_support, concat, dump_table, load_table, to_frame, to_table
from distributed.shuffle._core import ShuffleId, barrier_key, id_from_key, place
from distributed.shuffle._exceptions import (
    P2PConsistencyError,
    P2PIllegalStateError,
    P2POutOfDiskError,
    ShuffleClosedError,
)
from distributed.shuffle._outgoing import Outgoing, SendBudget
from distributed.shuffle._scheduler_runs import Definition, ShuffleRuns
from distributed.shuffle._shuffle import DataFrameShuffleSpec
from distributed.shuffle._store import ShardStore

X, Y = ShuffleId("x"), ShuffleId("y")


def test_keys() -> None:
    assert id_from_key(barrier_key(X)) == X
    assert id_from_key("shuffle-x") is None
    assert id_from_key(("shuffle-barrier-x", 0)) is None


def test_placement_is_by_even_ranges() -> None:
    assert place(range(5), ["a", "b"]) == {0: "a", 1: "a", 2: "a", 3: "b", 4: "b"}
    assert place([7], ["a", "b"]) == {7: "a"}
    with pytest.raises(ValueError, match="at least one worker"):
        place([1], [])


def defined() -> ShuffleRuns:
    runs = ShuffleRuns()
    runs.define(Definition(X, 4, b""))
    runs.define(Definition(Y, 4, b""))
    return runs


def test_run_ids_increase_over_all_shuffles() -> None:
    runs = defined()
    first = runs.get_or_create(X, "a", ["a", "b"])
    assert runs.get_or_create(X, "c", ["c"]) is first
    assert first.participants == {"a", "b", "c"}
    assert runs.get_or_create(Y, "a", ["a"]).run_id == first.run_id + 1
    runs.end(X)
    with pytest.raises(P2PConsistencyError, match="no run"):
        runs.get(X, "a")
    assert runs.get_or_create(X, "a", ["a"]).run_id == first.run_id + 2
    with pytest.raises(P2PConsistencyError, match=r"run 1 is over.*run 3"):
        runs.check(X, first.run_id)


def test_an_unknown_shuffle_is_refused() -> None:
    with pytest.raises(P2PIllegalStateError, match="unknown"):
        ShuffleRuns().get_or_create(X, "a", ["a"])


def test_senders_matter_until_all_is_sent_owners_always() -> None:
    runs = defined()
    run = runs.get_or_create(X, "sender", ["owner"])
    run.inputs_done = True
    assert runs.worker_lost("sender") == []
    assert runs.worker_lost("owner") == [run]
    run = runs.get_or_create(X, "sender", ["owner"])
    assert runs.worker_lost("sender") == [run]
    assert runs.active == {}


def test_both_sides_of_a_merge_are_placed_alike() -> None:
    runs = defined()
    left = runs.get_or_create(X, "a", ["a", "b"])
    right = runs.get_or_create(Y, "a", ["b", "c", "a"], partners=[X])
    assert right.worker_for == left.worker_for


def spec_of(df: pd.DataFrame, npartitions: int) -> DataFrameShuffleSpec:
    return DataFrameShuffleSpec(
        id=X,
        disk=True,
        npartitions=npartitions,
        column="_p",
        meta=df.iloc[:0],
        parts_out=npartitions,
        drop_column=True,
    )


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "i": np.arange(12, dtype="int32"),
            "f": pd.array([1.5, None] * 6, dtype="Float64"),
            "o": ["a", None, "c"] * 4,
            "c": pd.Categorical(list("xyz") * 4),
            "t": pd.date_range("2024-01-01", periods=12, tz="Europe/Berlin"),
            "d": pd.to_timedelta(np.arange(12), "s"),
            "b": pd.array([True, None, False] * 4, dtype="boolean"),
            "_p": np.arange(12) * 5 % 4,
        },
        index=pd.Index(np.arange(12) * 10, name="key"),
    )


@pytest.mark.parametrize("limit", [2**30, 0])
def test_rows_arrive_with_index_and_dtypes(tmp_path: Path, limit: int) -> None:
    df = frame()
    spec = pickle.loads(pickle.dumps(spec_of(df, 4)))
    codec = spec.codec()
    store = ShardStore(codec, str(tmp_path / "s"), limit)
    for i, part in enumerate((df.iloc[:5], df.iloc[5:], df.iloc[:0])):
        for shard in codec.shard(part, i, dict.fromkeys(range(4), "w")).values():
            store.add([shard])
            # a repetition, as after a lost answer
            store.add([shard])
    assert (store.disk_bytes > 0) is (limit == 0)
    for p in range(4):
        expected = df[df["_p"] == p].drop(columns="_p")
        got = codec.assemble(p, store.read(p)).sort_index()
        pd.testing.assert_frame_equal(got, expected)
    empty = codec.assemble(9, store.read(9))
    assert len(empty) == 0
    assert list(empty.columns) == list(df.columns[:-1])
    store.close()()
    assert not (tmp_path / "s").exists()
    with pytest.raises(ShuffleClosedError):
        store.read(0)


def test_a_full_disk_names_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codec = spec_of(frame(), 4).codec()
    directory = str(tmp_path / "full")

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "makedirs", full)
    store = ShardStore(codec, directory, 0)
    [shard] = codec.shard(frame(), 0, dict.fromkeys(range(4), "w")).values()
    with pytest.raises(P2POutOfDiskError, match="full"):
        store.add([shard])


def test_missing_values_only_do_not_decide_a_type() -> None:
    nothing = pd.DataFrame({"o": [None, None]}, dtype=object)
    something = pd.DataFrame({"o": ["a", "b"]}, dtype=object)
    table = concat([load_table(dump_table(to_table(part))) for part in (nothing, something)])
    column = to_frame(table, something.iloc[:0])["o"]
    assert column.isna().tolist() == [True, True, False, False]
    assert column.tolist()[2:] == ["a", "b"]


def test_dtypes_that_are_refused() -> None:
    with pytest.raises(TypeError, match=r"complex.*'z'"):
        check_dtype_support(pd.DataFrame({"a": [1], "z": [1j]}))
    with pytest.raises(TypeError, match=r"sparse.*'z'"):
        check_dtype_support(pd.DataFrame({"z": pd.array([0, 1], dtype="Sparse[int]")}))
    with pytest.raises(TypeError, match="partition 3"):
        to_table(pd.DataFrame({"o": [object()]}), 3)


def test_messages_are_bounded() -> None:
    out = Outgoing()
    for i, size in enumerate([5, 4, 30, 1]):
        out.put("w", i, size)
    assert out.take("w", 10) == ([0, 1], 9)
    assert out.take("w", 10) == ([2], 30)
    assert out.clear() == 1
    assert out.take("w", 10) == ([], 0)


def test_a_full_budget_blocks_until_something_is_sent_or_the_run_ends() -> None:
    budget = SendBudget(10)
    budget.take(20, lambda: None)
    asked = threading.Event()
    done = threading.Event()

    def take() -> None:
        budget.take(5, asked.set)
        done.set()

    thread = threading.Thread(target=take)
    thread.start()
    assert asked.wait(10)
    assert not done.is_set()
    budget.give_back(20)
    assert done.wait(10)
    thread.join()
    assert budget.used == 5

    def ended() -> None:
        raise ShuffleClosedError

    with pytest.raises(ShuffleClosedError):
        budget.take(1, ended)
