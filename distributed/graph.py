"""Graphs of dask as rows of a table (docs/protocol.md). Used by clients, and by a scheduler for the pickled expressions of others.

Everything expensive about a graph happens here, once: expanding expressions, ordering, pickling.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dask._task_spec import DataNode, GraphNode, Task, TaskRef, convert_legacy_graph
from dask.order import order as dask_order

from distributed.protocol import Serialize
from distributed.protocol.specs import SpecDumper
from distributed.utils import typename

Key = Any
Row = tuple[Key, Any, "list[int] | None", int, "dict[str, Any] | None"]

#: an argument above this many bytes travels by itself, out of band
LARGE_BYTES = 64 * 2**10


class Materialized(NamedTuple):
    """A graph: nodes by key, annotations by key, and the order in which to run them."""

    nodes: dict[Key, GraphNode]
    annotations: dict[Key, dict[str, Any]]
    order: dict[Key, int]


def materialize(
    expr: Any,
    keys: Collection[Key],
    annotations: Mapping[str, Any] | None = None,
    internal_priority: Mapping[Key, int] | None = None,
) -> Materialized:
    """Expand an expression.

    Parameters
    ----------
    keys
        Wanted; what they do not need is left out.
    annotations
        For all tasks; values may be functions of the key. Those of the expression's own layers win.
    """
    graph = expr.__dask_graph__()
    by_name = expr.__dask_annotations__()
    nodes = cull(convert_legacy_graph(graph), keys)
    by_key: dict[Key, dict[str, Any]] = {}
    if annotations:
        for key in nodes:
            by_key[key] = {
                name: value(key) if callable(value) else value for name, value in annotations.items()
            }
    for name, values in by_name.items():
        for key, value in values.items():
            if key in nodes:
                by_key.setdefault(key, {})[name] = value(key) if callable(value) else value
    if internal_priority:
        order = {key: internal_priority.get(key, 0) for key in nodes}
        if any(node.dependencies for node in nodes.values()):
            order = _topological(nodes, order)
    else:
        order = order_nodes(nodes)
    return Materialized(nodes, by_key, order)


def cull(nodes: dict[Key, GraphNode], keys: Collection[Key]) -> dict[Key, GraphNode]:
    """What the wanted keys need. Keys that are not in the graph refer to what the scheduler holds."""
    needed: dict[Key, None] = {}
    stack = [key for key in keys if key in nodes]
    while stack:
        key = stack.pop()
        if key not in needed:
            needed[key] = None
            stack.extend(dep for dep in nodes[key].dependencies if dep in nodes and dep not in needed)
    if len(needed) == len(nodes):
        return nodes
    return {key: node for key, node in nodes.items() if key in needed}


def order_nodes(nodes: dict[Key, GraphNode]) -> dict[Key, int]:
    """dask's order; dependencies come before their dependents. Graphs without dependencies keep theirs."""
    dependencies = {key: {dep for dep in node.dependencies if dep in nodes} for key, node in nodes.items()}
    if not any(dependencies.values()):
        return {key: i for i, key in enumerate(nodes)}
    return dask_order(nodes, dependencies=dependencies)  # type: ignore[no-any-return]


def _topological(nodes: dict[Key, GraphNode], order: dict[Key, int]) -> dict[Key, int]:
    """Given priorities, but dependencies first."""
    base = order_nodes(nodes)
    ranked = sorted(nodes, key=lambda key: base[key])
    return {key: i for i, key in enumerate(ranked)}


def _flat_size(value: Any) -> int | None:
    """Size of a buffer-like object in bytes; None where only pickling tells."""
    if isinstance(value, (bytes, bytearray, str)):
        return len(value)
    nbytes = getattr(value, "nbytes", None)
    if isinstance(nbytes, int) and hasattr(value, "dtype"):
        return nbytes
    return None


class RowBuilder:
    """Turns nodes into rows, dependencies first.

    Parameters
    ----------
    function_id
        Gives the id of a function; None: every task is a node spec, as for a scheduler that expands for a client that knows no tables.
    """

    def __init__(self, function_id: Callable[[Any], int] | None) -> None:
        self.function_id = function_id
        self.dumper = SpecDumper()
        self.rows_made = 0
        #: key -> row number
        self.numbers: dict[Key, int] = {}
        #: id of a large argument -> the argument (kept alive) and its row's key
        self._large: dict[int, tuple[Any, Key]] = {}
        self._extra_rows: list[Row] = []
        #: (key, bytes) of the largest single spec
        self.largest: tuple[Key, int] = (None, 0)
        self.nbytes = 0

    def rows(self, graph: Materialized, actors: Collection[Key] | bool = ()) -> Iterator[Row]:
        """All rows of a graph. Data rows for large arguments come right before the row that needs them first."""
        nodes, order = graph.nodes, graph.order
        for key in sorted(nodes, key=order.__getitem__):
            node = nodes[key]
            annotations = graph.annotations.get(key)
            actor = actors is True or (bool(actors) and key in actors)  # type: ignore[operator]
            row = self.row(key, node, order[key], annotations, actor)
            if self._extra_rows:
                yield from self._extra_rows
                self._extra_rows.clear()
            yield row

    def row(
        self,
        key: Key,
        node: GraphNode,
        order: int,
        annotations: dict[str, Any] | None = None,
        actor: bool = False,
    ) -> Row:
        """One row; large arguments are put into rows of their own, see `rows`."""
        spec, more = self.spec(node, order)
        deps: list[int] = []
        external: list[Key] = []
        numbers = self.numbers
        for dep in (*node.dependencies, *more):
            number = numbers.get(dep)
            if number is None:
                external.append(dep)
            else:
                deps.append(number)
        numbers[key] = self.rows_made
        self.rows_made += 1
        extra: dict[str, Any] | None = None
        # nodes of kinds that the scheduler treats in a special way say themselves what it must know
        own_extra = None if type(node) is Task else getattr(node, "row_extra", None)
        if external or annotations or actor or own_extra is not None:
            extra = {} if own_extra is None else own_extra()
            if external:
                extra["keys"] = external
            if annotations:
                extra["annotations"] = annotations
            if actor:
                extra["actor"] = True
        return (key, spec, deps or None, order, extra)

    def spec(self, node: GraphNode, order: int) -> tuple[Any, Sequence[Key]]:
        """The spec of a node, and keys of data rows that it depends on besides its own dependencies."""
        if type(node) is DataNode:
            size = _flat_size(node.value)
            if size is None or size <= LARGE_BYTES:
                data = self.dumper.dump(node)
                size = len(data)
                self._account(node.key, size)
                if size <= LARGE_BYTES:
                    return data, ()
            else:
                self._account(node.key, size)
            return Serialize(node.value), ()
        if (
            type(node) is Task
            and self.function_id is not None
            and all(type(name) is str for name in node.kwargs)
        ):
            return self.call(node.key, node.func, node.args, node.kwargs, order)
        data = self.dumper.dump(node)
        self._account(node.key, len(data))
        return data, ()

    def call(
        self, key: Key, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], order: int
    ) -> tuple[Any, Sequence[Key]]:
        """The spec of a call."""
        assert self.function_id is not None, "call specs need function ids"
        more: list[Key] = []
        if any(
            (size := _flat_size(arg)) is not None and size > LARGE_BYTES for arg in (*args, *kwargs.values())
        ):
            args, kwargs = self._externalize(args, kwargs, order, more)
        packed, packed_kwargs, size = self._pack_call(args, kwargs)
        if size > LARGE_BYTES:
            # no argument looked large, but one of them pickles so
            packed, packed_kwargs, size = self._pack_call(*self._externalize(args, kwargs, order, more))
        self._account(key, size)
        return (self.function_id(func), packed, packed_kwargs), more

    def _pack_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[bytes, bytes | None, int]:
        """Packed arguments and keywords, and their bytes together."""
        packed = self.dumper.dump(args) if args else _NO_ARGS
        packed_kwargs = self.dumper.dump(dict(kwargs)) if kwargs else None
        return packed, packed_kwargs, len(packed) + len(packed_kwargs or b"")

    def _account(self, key: Key, size: int) -> None:
        self.nbytes += size
        if size > self.largest[1]:
            self.largest = (key, size)

    def _externalize(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], order: int, more: list[Key]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Replace large arguments by references to data rows."""

        def replace(value: Any) -> Any:
            if isinstance(value, (GraphNode, TaskRef)):
                return value
            known = self._large.get(id(value))
            if known is None:
                size = _flat_size(value)
                if size is None:
                    size = len(self.dumper.dump((value,)))
                if size <= LARGE_BYTES:
                    return value
                data_key = f"{typename(type(value)).rpartition('.')[2]}-{uuid.uuid4().hex}"
                known = self._large[id(value)] = (value, data_key)
                self.numbers[data_key] = self.rows_made
                self.rows_made += 1
                self._extra_rows.append((data_key, Serialize(value), None, order, None))
                self._account(data_key, size)
            if known[1] not in more:
                more.append(known[1])
            return TaskRef(known[1])

        return tuple(replace(arg) for arg in args), {name: replace(value) for name, value in kwargs.items()}


_NO_ARGS = SpecDumper().dump(())


def chunks(rows: Iterator[Row], size: int) -> Iterator[tuple[list[Row], bool]]:
    """Rows in lists of at most `size`, each with whether it is the last."""
    current: list[Row] = []
    for row in rows:
        if len(current) == size:
            yield current, False
            current = []
        current.append(row)
    yield current, True
