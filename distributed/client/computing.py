"""Graphs of dask go out: compute, persist, get.

They are expanded, ordered and pickled here, in the caller's thread, and travel as rows of a table (docs/protocol.md). A released scheduler gets
the pickled expression instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import dask
from dask._expr import CompositeExpr, FinalizeCompute, LLGExpr, _ExprSequence
from dask._task_spec import Task
from dask.base import _rebuild_composite_collection, collections_to_expr, is_dask_collection
from dask.core import flatten, validate_key

from distributed.client.future import Future, FutureState
from distributed.client.sending import CHUNK_ROWS, Functions, Sending, check_workers
from distributed.graph import Materialized, RowBuilder, chunks, materialize

Key = Any


class Computing(Sending):
    """Methods that send graphs."""

    def compute(
        self,
        collections: Any,
        sync: bool = False,
        optimize_graph: bool = True,
        workers: Any = None,
        allow_other_workers: bool = False,
        resources: Mapping[str, Any] | None = None,
        retries: int = 0,
        priority: float = 0,
        fifo_timeout: Any = "60s",
        actors: Any = None,
        traverse: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Compute dask collections: a future for each, or with ``sync=True`` their values."""
        if actors:
            raise NotImplementedError("actors are not available in this release")
        if isinstance(collections, (list, tuple, set, frozenset)):
            singleton = False
            args = list(collections)
        else:
            singleton = True
            args = [collections]
        if traverse:
            args = [
                dask.delayed(arg)
                if isinstance(arg, (list, set, tuple, dict, Iterator)) and not is_dask_collection(arg)
                else arg
                for arg in args
            ]
        variables = [arg for arg in args if is_dask_collection(arg)]
        annotations = self._task_annotations(
            check_workers(workers, allow_other_workers), allow_other_workers, resources, retries, priority
        )
        futures: dict[int, Future] = {}
        if variables:
            expr = FinalizeCompute(collections_to_expr(variables, optimize_graph)).optimize()
            names = list(flatten(expr.__dask_keys__()))
            by_key = self._graph_to_futures(expr, names, annotations, fifo_timeout)
            if len(names) != len(variables):
                raise AssertionError(f"{len(variables)} collections gave {len(names)} results")
            futures = {id(variable): by_key[name] for variable, name in zip(variables, names, strict=True)}
        results = [futures.get(id(arg), arg) for arg in args]
        if sync:
            values = self.gather(results)
            return values[0] if singleton and not self.asynchronous else values
        return results[0] if singleton else results

    def persist(
        self,
        collections: Any,
        optimize_graph: bool = True,
        workers: Any = None,
        allow_other_workers: Any = None,
        resources: Mapping[str, Any] | None = None,
        retries: int | None = None,
        priority: float = 0,
        fifo_timeout: Any = "60s",
        actors: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Start computing dask collections on the cluster; equivalent collections whose parts are futures."""
        if actors:
            raise NotImplementedError("actors are not available in this release")
        singleton = not isinstance(collections, (tuple, list, set, frozenset))
        items = [collections] if singleton else list(collections)
        for item in items:
            if not is_dask_collection(item):
                raise TypeError(f"persist needs dask collections, got {item!r}")
        annotations = self._task_annotations(
            check_workers(workers, allow_other_workers), allow_other_workers, resources, retries, priority
        )
        expr = collections_to_expr(items, optimize_graph)
        # collections that are made of several expressions are put together again from the optimised ones
        composite = any(isinstance(operand, CompositeExpr) for operand in expr.operands)
        expr = expr.optimize()
        sources: list[Any] = [None] * len(items)
        if composite and isinstance(expr, _ExprSequence) and len(expr.operands) == len(items):
            sources = list(expr.operands)
        key_groups = [list(flatten(group)) for group in expr.__dask_keys__()]
        names = [key for group in key_groups for key in group]
        futures = self._graph_to_futures(expr, names, annotations, fifo_timeout)
        results = []
        for item, source, group in zip(items, sources, key_groups, strict=True):
            if isinstance(source, CompositeExpr):
                results.append(_rebuild_composite_collection(item, source, futures, cull_to_child_keys=True))
                continue
            rebuild, state = item.__dask_postpersist__()
            results.append(rebuild({key: futures[key] for key in group}, *state))
        return results[0] if singleton else results

    def get(
        self,
        dsk: Any,
        keys: Any,
        workers: Any = None,
        allow_other_workers: Any = None,
        resources: Mapping[str, Any] | None = None,
        sync: bool = True,
        asynchronous: bool | None = None,
        direct: bool | None = None,
        retries: int | None = None,
        priority: float = 0,
        fifo_timeout: Any = "60s",
        actors: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Compute keys of a graph: what dask calls to run something on the cluster.

        Parameters
        ----------
        dsk
            A dict, a HighLevelGraph or an expression.
        keys
            A key, or nested lists of keys; values come in the same shape.
        sync
            Values; else futures.
        """
        if isinstance(dsk, Mapping):
            expr: Any = LLGExpr(dict(dsk))
        elif hasattr(dsk, "layers"):
            expr = LLGExpr(dict(dsk.to_dict()))
        else:
            expr = dsk
        annotations = self._task_annotations(
            check_workers(workers, allow_other_workers), allow_other_workers, resources, retries, priority
        )
        flat = list(dict.fromkeys(flatten([keys])))
        futures = self._graph_to_futures(expr, flat, annotations, fifo_timeout)
        packed = _pack(keys, futures)
        if not sync:
            return packed
        if self.asynchronous if asynchronous is None else asynchronous:
            return self._gather_and_release(packed, list(futures.values()), direct)
        seceded = self._secede_if_in_task()
        try:
            return self.gather(packed, asynchronous=asynchronous, direct=direct)
        finally:
            for future in futures.values():
                future.release()
            if seceded:
                self._rejoin()

    async def _gather_and_release(self, packed: Any, futures: list[Future], direct: bool | None) -> Any:
        # not before the values are here: the futures are what keeps them alive
        try:
            return await self._gather(packed, direct=direct)
        finally:
            for future in futures:
                future.release()

    def _graph_to_futures(
        self,
        expr: Any,
        keys: Sequence[Key],
        annotations: dict[str, Any],
        fifo_timeout: Any,
        internal_priority: dict[Key, int] | None = None,
    ) -> dict[Key, Future]:
        """Send a graph; futures of the wanted keys."""
        for key in keys:
            validate_key(key)
        with self._lock:
            # states first: what is reported meanwhile must find them
            states = {
                key: self.futures.get(key) or self.futures.setdefault(key, FutureState()) for key in keys
            }
            futures = {key: Future(key, self, states[key]) for key in keys}
        global_annotations = {**dask.get_annotations(), **no_default_annotations(annotations)}
        if not self._tables:
            self._send_expression(expr, keys, global_annotations, internal_priority, fifo_timeout)
            return futures
        graph = materialize(expr, keys, global_annotations, internal_priority)
        self._send_materialized(graph, keys, fifo_timeout)
        return futures

    def _send_materialized(self, graph: Materialized, keys: Collection[Key], fifo_timeout: Any) -> None:
        functions = Functions(self)
        builder = RowBuilder(functions)
        wanted = set(keys)
        # pickled as a whole before the first message: an object that cannot be pickled must not leave half a graph behind
        parts = list(chunks(builder.rows(graph), CHUNK_ROWS))
        if functions.largest[1] > builder.largest[1]:
            users = {id(node.func): key for key, node in graph.nodes.items() if isinstance(node, Task)}
        else:
            users = {}
        self._warn_if_large(builder, functions, users)
        self._send_rows(
            parts,
            wanted.__contains__,
            self._begin(fifo_timeout),
            [key for key in keys if key not in graph.nodes],
        )

    def _secede_if_in_task(self) -> bool:
        """A task that waits for tasks must not keep its slot. Returns whether it was given up."""
        raise NotImplementedError

    def _rejoin(self) -> None:
        raise NotImplementedError


def _pack(keys: Any, futures: Mapping[Key, Future]) -> Any:
    """Futures in the shape of nested lists of keys."""
    if isinstance(keys, list):
        return [_pack(key, futures) for key in keys]
    return futures[keys]


def no_default_annotations(annotations: dict[str, Any]) -> dict[str, Any]:
    """Without those that say nothing."""
    return {name: value for name, value in annotations.items() if value is not None}
