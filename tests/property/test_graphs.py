"""Any graph as rows of a table, run row by row as a worker would, gives what plain Python gives."""

from __future__ import annotations

import operator
from typing import Any

from dask._expr import LLGExpr
from hypothesis import given
from hypothesis import strategies as st

from distributed.graph import LARGE_BYTES, RowBuilder, chunks, materialize
from distributed.protocol import pickle
from distributed.protocol.specs import compose_pickled_task, dump_function
from distributed.worker.execution import prepare

Graph = dict[str, tuple[Any, ...]]


def total(items: list[int], *, start: int = 0) -> int:
    return sum(items, start)


def with_length(text: bytes, n: int) -> int:
    return len(text) + n


@st.composite
def graphs(draw: Any) -> Graph:
    graph: Graph = {}
    for i in range(draw(st.integers(1, 15))):
        kind = draw(st.sampled_from(["value", "difference", "sum", "alias", "large"])) if i else "value"
        some = [f"x{draw(st.integers(0, i - 1))}" for _ in range(2)] if i else []
        graph[f"x{i}"] = {
            "value": lambda i=i, some=some: (operator.neg, draw(st.integers(-100, 100))),
            "difference": lambda i=i, some=some: (operator.sub, *some),
            "sum": lambda i=i, some=some: (total, [some[0], 5, some[1]]),
            "alias": lambda i=i, some=some: (operator.pos, some[0]),
            "large": lambda i=i, some=some: (with_length, b"x" * (LARGE_BYTES + i), some[0]),
        }[kind]()
    return graph


def plainly(graph: Graph) -> dict[str, int]:
    values: dict[str, int] = {}

    def resolve(x: Any) -> Any:
        if isinstance(x, list):
            return [resolve(item) for item in x]
        return values[x] if isinstance(x, str) else x

    for key, (func, *args) in graph.items():
        values[key] = func(*map(resolve, args))
    return values


class Functions:
    """Ids of functions as a client gives them, and the functions as a worker has them."""

    def __init__(self) -> None:
        self.pickles: list[bytes] = []

    def __call__(self, func: Any) -> int:
        self.pickles.append(dump_function(func))
        return len(self.pickles) - 1

    def __getitem__(self, number: int) -> Any:
        return pickle.loads(self.pickles[number])


@given(graphs(), st.integers(1, 6), st.booleans(), st.data())
def test_rows(graph: Graph, chunk: int, tables: bool, data: Any) -> None:
    wanted = data.draw(st.lists(st.sampled_from(sorted(graph)), min_size=1, max_size=3, unique=True))
    functions = Functions()
    # without function ids: as for a client that knows no tables
    builder = RowBuilder(functions if tables else None)
    parts = list(chunks(builder.rows(materialize(LLGExpr(graph), wanted, {}, None)), chunk))
    assert [last for _, last in parts] == [False] * (len(parts) - 1) + [True]
    assert all(len(rows) <= chunk for rows, _ in parts)
    values: dict[Any, Any] = {}
    keys: list[Any] = []
    for rows, _ in parts:
        for key, spec, deps, _, extra in rows:
            assert all(0 <= number < len(keys) for number in deps or ()), "rows refer to earlier ones"
            assert not (extra or {}).get("keys"), "nothing is outside of the graph"
            known = {keys[number]: values[keys[number]] for number in deps or ()}
            call = prepare(spec, known, functions)
            values[key] = call()
            keys.append(key)
            if type(spec) is bytes or (type(spec) is tuple and tables):
                function = functions.pickles[spec[0]] if type(spec) is tuple else None
                node = pickle.loads(compose_pickled_task(key, spec, function))
                assert node(known) == values[key], "a released worker gets the same task"
    expected = plainly(graph)
    assert {key: values[key] for key in wanted} == {key: expected[key] for key in wanted}
    assert len(set(keys)) == len(keys)
