"""Graphs as rows, and keys of calls."""

from __future__ import annotations

import operator
import pickle
from typing import Any

import dask
import numpy as np
import pytest
from dask._expr import LLGExpr
from dask._task_spec import Task, TaskRef

from distributed.client.keys import call_key, call_token, function_token
from distributed.graph import LARGE_BYTES, Materialized, RowBuilder, chunks, cull, materialize
from distributed.protocol import Serialize


def inc(x: Any) -> Any:
    return x + 1


def test_materialize() -> None:
    graph = {"x": 1, "y": (inc, "x"), "z": (sum, ["x", "y"]), "unused": (inc, "x")}
    m = materialize(LLGExpr(graph), ["z"], {"retries": 3, "priority": lambda key: len(key)})
    assert set(m.nodes) == {"x", "y", "z"}
    assert m.order["x"] < m.order["y"] < m.order["z"]
    assert m.annotations["z"] == {"retries": 3, "priority": 1}
    assert cull(m.nodes, ["y"]).keys() == {"x", "y"}


def test_rows_come_in_order_and_refer_back() -> None:
    graph = {("a", i): (inc, i) for i in range(5)}
    graph["s"] = (sum, list(graph))  # type: ignore[index]
    m = materialize(LLGExpr(graph), ["s"])
    functions: dict[Any, int] = {}
    rows = list(RowBuilder(lambda f: functions.setdefault(f, len(functions))).rows(m))
    numbers: dict[Any, int] = {}
    for number, (key, _spec, deps, _order, _extra) in enumerate(rows):
        assert all(dep < number for dep in deps or ())
        numbers[key] = number
    assert sorted(rows[numbers["s"]][2] or ()) == sorted(numbers["a", i] for i in range(5))
    assert set(functions) == {inc, sum}
    fid, args, kwargs = rows[numbers["a", 3]][1]
    assert (fid, pickle.loads(args), kwargs) == (functions[inc], (3,), None)


def test_large_arguments_are_rows_of_their_own() -> None:
    big = np.arange(LARGE_BYTES)
    nodes = {key: Task(key, operator.add, big, i) for i, key in enumerate("xyz")}
    builder = RowBuilder(lambda f: 1)
    rows = list(builder.rows(Materialized(nodes, {}, {"x": 0, "y": 1, "z": 2})))
    assert [type(row[1]) for row in rows] == [Serialize, tuple, tuple, tuple]
    assert rows[0][1].data is big and all(row[2] == [0] for row in rows[1:])
    (ref, number) = pickle.loads(rows[2][1][1])
    assert isinstance(ref, TaskRef) and ref.key == rows[0][0] and number == 1
    # also where only pickling tells the size
    nested = {"x": Task("x", len, [b"a" * 1000] * 100)}
    rows = list(RowBuilder(lambda f: 1).rows(Materialized(nested, {}, {"x": 0})))
    assert len(rows) == 1 or rows[0][1].data == [b"a" * 1000] * 100
    assert builder.largest[1] == big.nbytes


def test_held_keys_are_external_dependencies() -> None:
    builder = RowBuilder(lambda f: 1)
    row = builder.row("y", Task("y", inc, TaskRef("future")), 0, {"retries": 1}, actor=True)
    assert row[2] is None
    assert row[4] == {"keys": ["future"], "annotations": {"retries": 1}, "actor": True}


def test_chunks() -> None:
    rows: Any = [(i, b"", None, i, None) for i in range(10)]
    assert [(len(part), last) for part, last in chunks(iter(rows), 4)] == [(4, False), (4, False), (2, True)]
    assert [(len(part), last) for part, last in chunks(iter([]), 4)] == [(0, True)]


def test_keys() -> None:
    token = function_token(inc)
    values = [1, 1.0, True, "1", b"1", None, (1,), (1.0,), 1 + 0j, [1], "x" * 5000, -0.0, 0.0]
    tokens = [call_token(token, (value,), {}) for value in values]
    assert len(set(tokens)) == len(values)
    assert tokens == [call_token(token, (value,), {}) for value in values]
    assert call_key(inc, (1,), {}, True).startswith("inc-")
    assert call_key(inc, (1,), {}, False) != call_key(inc, (1,), {}, False)
    assert call_key(inc, (1,), {"a": 1}, True) != call_key(inc, (1,), {"a": 2}, True)
    assert call_key(lambda x: x, (1,), {}, True) != call_key(lambda x: x + 1, (1,), {}, True)
    with (
        pytest.raises(Exception, match="deterministic"),
        dask.config.set({"tokenize.ensure-deterministic": True}),
    ):
        call_key(inc, (object(),), {}, True)
