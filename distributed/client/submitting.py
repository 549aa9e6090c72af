"""Work goes out: submit, map, get, compute, persist.

Graphs are expanded, ordered and pickled here, in the caller's thread, and travel as rows of a table (docs/protocol.md). A released scheduler gets
the pickled expression instead.
"""

from __future__ import annotations

import functools
import itertools
import logging
import queue
import uuid
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import dask.config
from dask._expr import CompositeExpr, FinalizeCompute, LLGExpr, _ExprSequence
from dask._task_spec import DataNode, GraphNode, Task, TaskRef, parse_input
from dask.base import _rebuild_composite_collection, collections_to_expr, is_dask_collection
from dask.context import thread_state
from dask.core import flatten, validate_key
from dask.tokenize import tokenize
from dask.utils import format_bytes, funcname, parse_bytes

from distributed.client.base import ClientBase
from distributed.client.future import Future, FutureState
from distributed.client.keys import call_key, call_token, function_token
from distributed.context import current_key
from distributed.graph import LARGE_BYTES, Materialized, Row, RowBuilder, chunks, materialize
from distributed.protocol import Serialize, Serialized, ToPickle, serialize
from distributed.protocol.specs import dump_function
from distributed.utils import parse_timedelta

logger = logging.getLogger("distributed.client")

Key = Any

#: rows of one message: work starts when the first message arrives
CHUNK_ROWS = 5_000
#: functions that the scheduler is asked to remember; the oldest are forgotten
FUNCTIONS_MAX = 1_000

_SCALARS = frozenset((int, float, bool, str, bytes, type(None), complex))


@functools.lru_cache
def _seconds(duration: Any) -> float:
    return float(parse_timedelta(duration, "s") or 0.0)


def no_default_annotations(annotations: dict[str, Any]) -> dict[str, Any]:
    """Without those that say nothing."""
    return {name: value for name, value in annotations.items() if value is not None}


def check_workers(workers: Any, allow_other_workers: Any) -> Any:
    """The ``workers`` argument as a list; ValueError and TypeError say what is wrong."""
    if workers is None:
        if allow_other_workers is True:
            raise ValueError("Only use allow_other_workers= if using workers=")
        return None
    if allow_other_workers not in (True, False, None):
        raise TypeError(f"allow_other_workers= must be True or False, got {allow_other_workers!r}")
    if isinstance(workers, (str, int, float)):
        return [workers]
    return list(workers)


class Submitting(ClientBase):
    """Methods that send work."""

    def _init_submitting(self) -> None:
        self._intakes = itertools.count(1)
        self._function_ids = itertools.count(1)
        self._stimuli = itertools.count(1)
        #: pickled function -> id, oldest first
        self._known_functions: dict[bytes, int] = {}
        #: functions that pickle by reference -> id
        self._ids_by_function: dict[Any, int] = {}

    # --- functions -----------------------------------------------------------------------------------------

    def _function_id(self, func: Any) -> int:
        """The scheduler's handle on a function; sends the function if it is new. From any thread.

        The same pickle has the same id. Functions that can change while they keep their identity (methods, closures) are pickled each time.
        """
        by_reference = (
            type(func).__name__ in ("function", "builtin_function_or_method")
            and func.__module__ != "__main__"
            and "<" not in func.__qualname__
        )
        if by_reference:
            known = self._ids_by_function.get(func)
            if known is not None:
                return known
        data = dump_function(func)
        with self._lock:
            known = self._known_functions.get(data)
            if known is None:
                known = next(self._function_ids)
                payload = data if len(data) <= LARGE_BYTES else Serialize(data)
                self._post({"op": "functions", "items": [(known, payload)]})
                self._known_functions[data] = known
                if len(self._known_functions) > FUNCTIONS_MAX:
                    oldest = next(iter(self._known_functions))
                    old_id = self._known_functions.pop(oldest)
                    self._ids_by_function = {f: i for f, i in self._ids_by_function.items() if i != old_id}
                    # rows that use it may be on their way from other threads: those come first in the queue
                    self._post({"op": "forget-functions", "ids": [old_id]})
            if by_reference:
                self._ids_by_function[func] = known
        return known

    def _forget_functions(self) -> None:
        """The scheduler that knew them is gone."""
        with self._lock:
            self._known_functions.clear()
            self._ids_by_function.clear()

    # --- sending -------------------------------------------------------------------------------------------

    def _begin(self, fifo_timeout: Any, user_priority: float = 0) -> dict[str, Any]:
        key = getattr(thread_state, "key", None)
        if key is None:
            key = current_key.get()
        return {
            "submitting_task": key,
            "fifo_timeout": _seconds(fifo_timeout),
            "user_priority": user_priority,
            "span_metadata": {},
            "code": (),
            "stimulus_id": f"update-graph-{next(self._stimuli)}",
        }

    def _send_rows(
        self,
        parts: Iterable[tuple[list[Row], bool]],
        wanted: Callable[[Key], bool] | None,
        begin: dict[str, Any],
        more_keys: Collection[Key] = (),
        unwanted: Collection[Key] = (),
    ) -> None:
        """Send a graph, message by message. `wanted` None: every row but the `unwanted` ones, which may grow as the parts are made."""
        intake = next(self._intakes)
        first: dict[str, Any] | None = begin
        for rows, last in parts:
            wants: Any = True
            if wanted is not None:
                wants = [i for i, row in enumerate(rows) if wanted(row[0])]
            elif unwanted:
                wants = [i for i, row in enumerate(rows) if row[0] not in unwanted]
            self._send_to_scheduler(
                {
                    "op": "graph-table",
                    "intake": intake,
                    "begin": first,
                    "rows": rows,
                    "wants": wants,
                    "commit": list(more_keys) if last else None,
                }
            )
            first = None

    def _send_expression(
        self,
        expr: Any,
        keys: Collection[Key],
        annotations: dict[str, Any],
        internal_priority: dict[Key, int] | None,
        fifo_timeout: Any,
        actors: Any = None,
    ) -> None:
        """For a scheduler that knows no tables."""
        header, frames = serialize(expr, on_error="raise")
        begin = self._begin(fifo_timeout)
        self._send_to_scheduler(
            {
                "op": "update-graph",
                "expr_ser": Serialized(header, frames),
                "keys": set(keys),
                "internal_priority": internal_priority,
                "submitting_task": begin["submitting_task"],
                "fifo_timeout": fifo_timeout,
                "actors": actors,
                "code": ToPickle(()),
                "annotations": ToPickle(annotations),
                "span_metadata": ToPickle({"collections": []}),
            }
        )

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
        builder = RowBuilder(self._function_id)
        wanted = set(keys)
        # pickled as a whole before the first message: an object that cannot be pickled must not leave half a graph behind
        parts = list(chunks(builder.rows(graph), CHUNK_ROWS))
        limit = parse_bytes(dask.config.get("distributed.admin.large-graph-warning-threshold"))
        if builder.nbytes > limit:
            key, size = builder.largest
            warnings.warn(
                f"Sending large graph of size {format_bytes(builder.nbytes)}; its largest task is {key!r} with {format_bytes(size)}.\n"
                "This may cause some slowdown. Consider loading the data with Dask directly or using futures or delayed objects to embed the data into the graph "
                "without repetition.",
                UserWarning,
                stacklevel=5,
            )
        self._send_rows(
            parts,
            wanted.__contains__,
            self._begin(fifo_timeout),
            [key for key in keys if key not in graph.nodes],
        )

    # --- submit --------------------------------------------------------------------------------------------

    def submit(
        self,
        func: Callable[..., Any],
        *args: Any,
        key: Key = None,
        workers: Any = None,
        resources: Mapping[str, float] | None = None,
        retries: int | None = None,
        priority: float = 0,
        fifo_timeout: Any = "100 ms",
        allow_other_workers: bool = False,
        actor: bool = False,
        actors: bool = False,
        pure: bool = True,
        **kwargs: Any,
    ) -> Future:
        """Run ``func(*args, **kwargs)`` on the cluster.

        Arguments may be futures, also inside lists, tuples, sets and dicts.

        Parameters
        ----------
        key
            Default: made from the function's name and, if `pure`, from function and arguments. A key that is known gives the known future.
        workers
            Addresses, names or hosts that may run it; `allow_other_workers` makes that a preference.
        resources
            Amounts of worker resources that it takes.
        retries
            How often to run it again if it fails.
        priority
            Higher runs first; default 0.
        pure
            Whether equal arguments give equal results.

        Raises
        ------
        TypeError
            `func` is not callable, or cannot be pickled.
        """
        if not callable(func):
            raise TypeError(f"First input to submit must be a callable function, got {func!r}")
        if actor or actors:
            raise NotImplementedError("actors are not available in this release")
        workers = check_workers(workers, allow_other_workers)
        if key is None:
            key = call_key(func, args, kwargs, pure)
        else:
            validate_key(key)
        with self._lock:
            if key in self.futures:
                return Future(key, self)
        # pickled before there is a future: an error must leave nothing behind
        plain = not kwargs and all(type(arg) in _SCALARS for arg in args)
        task: Any = None
        if not plain or not self._tables:
            parsed = tuple(parse_input(arg) for arg in args)
            parsed_kwargs = {name: parse_input(value) for name, value in kwargs.items()}
            task = Task(key, func, *parsed, **parsed_kwargs)
        annotations = self._task_annotations(workers, allow_other_workers, resources, retries, priority)
        if not self._tables:
            with self._lock:
                future = Future(key, self, FutureState())
            expr = LLGExpr({key: task})
            self._send_expression(_with_token(expr), [key], annotations, {key: 0}, fifo_timeout)
            return future
        builder = RowBuilder(self._function_id)
        if task is None and not any(type(arg) in (str, bytes) and len(arg) > LARGE_BYTES for arg in args):
            # what most calls are like: nothing in it needs a second look
            extra = {"annotations": annotations} if annotations else None
            row: Row = (key, (self._function_id(func), builder.dumper.dump(args), None), None, 0, extra)
            with self._lock:
                future = Future(key, self, FutureState())
            self._send_rows([([row], True)], None, self._begin(fifo_timeout))
            return future
        if task is None:
            task = Task(key, func, *args)
        rows = list(
            builder.rows(Materialized({key: task}, {key: annotations} if annotations else {}, {key: 0}))
        )
        with self._lock:
            future = Future(key, self, FutureState())
        self._send_rows(
            [(rows, True)], None if len(rows) == 1 else lambda k: k == key, self._begin(fifo_timeout)
        )
        return future

    @staticmethod
    def _task_annotations(
        workers: Any, allow_other_workers: Any, resources: Any, retries: Any, priority: float
    ) -> dict[str, Any]:
        annotations = dict(dask.get_annotations())
        if workers is not None:
            annotations["workers"] = workers
            if allow_other_workers:
                annotations["allow_other_workers"] = True
        if resources:
            annotations["resources"] = dict(resources)
        if retries:
            annotations["retries"] = retries
        if priority:
            annotations["priority"] = priority
        return annotations

    def map(
        self,
        func: Callable[..., Any],
        *iterables: Collection[Any],
        key: Any = None,
        workers: Any = None,
        retries: int | None = None,
        resources: Mapping[str, float] | None = None,
        priority: float = 0,
        allow_other_workers: bool = False,
        fifo_timeout: Any = "100 ms",
        actor: bool = False,
        actors: bool = False,
        pure: bool = True,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> list[Future]:
        """Run ``func(*items, **kwargs)`` for the items of iterables in step, like the builtin ``map``. Work starts while later calls are still being made.

        Parameters
        ----------
        iterables
            Sequences; iterators and queues are refused, since their items cannot be counted.
        key
            A prefix, or a list with the key of each call.
        batch_size
            Calls per message to the scheduler; default 5,000.

        Further parameters are those of `submit`.
        """
        if not callable(func):
            raise TypeError(f"First input to map must be a callable function, got {func!r}")
        if actor or actors:
            raise NotImplementedError("actors are not available in this release")
        for iterable in iterables:
            if isinstance(iterable, (queue.Queue, Iterator)):
                raise TypeError(
                    f"Dask no longer supports mapping over Iterators or Queues, got {type(iterable).__name__}. Consider using a normal for loop and Client.submit"
                )
        if not iterables:
            raise TypeError("map needs at least one iterable")
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        workers = check_workers(workers, allow_other_workers)
        total = min(len(iterable) for iterable in iterables)
        keys: list[Key] | None = None
        name = key if isinstance(key, str) else funcname(func)
        if key is not None and not isinstance(key, str):
            keys = list(key)
            if len(keys) != total:
                raise ValueError(f"key lists {len(keys)} keys for {total} calls")
            if len(set(keys)) != len(keys):
                raise ValueError("key lists some keys more than once")
        kwargs, kwarg_nodes = self._shared_kwargs(kwargs)
        annotations = self._task_annotations(workers, allow_other_workers, resources, retries, priority)
        base = f"{name}-"
        token = function_token(func) + (str(tokenize(kwargs)) if kwargs else "") if pure else uuid.uuid4().hex
        size = batch_size or CHUNK_ROWS
        if not self._tables:
            return self._map_expression(
                func,
                iterables,
                total,
                keys,
                base,
                token,
                pure,
                kwargs,
                kwarg_nodes,
                annotations,
                fifo_timeout,
            )
        futures: list[Future] = []
        parts = self._map_rows(
            func, iterables, total, keys, base, token, pure, kwargs, kwarg_nodes, annotations, size, futures
        )
        self._send_rows(parts, None, self._begin(fifo_timeout), unwanted=kwarg_nodes)
        return futures

    @staticmethod
    def _shared_kwargs(kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[Key, DataNode]]:
        """Large keyword values become data of their own, which all calls share."""
        nodes: dict[Key, DataNode] = {}
        out = {}
        for name, value in kwargs.items():
            nbytes = getattr(value, "nbytes", len(value) if isinstance(value, (bytes, str)) else 0)
            if isinstance(nbytes, int) and nbytes > LARGE_BYTES and not is_dask_collection(value):
                data_key = f"{type(value).__name__}-{tokenize(value)}"
                nodes[data_key] = DataNode(data_key, value)
                out[name] = TaskRef(data_key)
            else:
                out[name] = parse_input(value)
        return out, nodes

    def _map_keys(self, base: str, token: str, pure: bool, args: tuple[Any, ...], i: int) -> str:
        if pure:
            return base + call_token(token, args, {})
        return f"{base}{token}-{i}"

    def _map_rows(
        self,
        func: Any,
        iterables: Sequence[Collection[Any]],
        total: int,
        keys: list[Key] | None,
        base: str,
        token: str,
        pure: bool,
        kwargs: dict[str, Any],
        kwarg_nodes: dict[Key, DataNode],
        annotations: dict[str, Any],
        size: int,
        futures_out: list[Future],
    ) -> Iterator[tuple[list[Row], bool]]:
        """Rows of a map, chunk by chunk; futures are made as the rows are."""
        builder = RowBuilder(self._function_id)
        function = self._function_id(func)
        packed_kwargs = builder.dumper.dump(dict(kwargs)) if kwargs else None
        kwargs_refer = any(isinstance(value, (TaskRef, GraphNode)) for value in kwargs.values())
        extra = {"annotations": annotations} if annotations else None
        known = self.futures
        dump = builder.dumper.dump
        rows: list[Row] = []
        for node_key, node in kwarg_nodes.items():
            rows.append(builder.row(node_key, node, 0))
        i = 0
        for args in zip(*iterables, strict=False):
            key = keys[i] if keys is not None else self._map_keys(base, token, pure, args, i)
            if keys is not None:
                validate_key(key)
            state = known.get(key)
            if state is not None:
                futures_out.append(Future(key, self, state))
            else:
                simple = not kwargs_refer
                if simple:
                    for arg in args:
                        if type(arg) not in _SCALARS or (
                            type(arg) in (str, bytes) and len(arg) > LARGE_BYTES
                        ):
                            simple = False
                            break
                if simple:
                    rows.append((key, (function, dump(args), packed_kwargs), None, i, extra))
                    builder.rows_made += 1
                else:
                    task = Task(key, func, *(parse_input(arg) for arg in args), **kwargs)
                    row = builder.row(key, task, i, annotations or None)
                    if builder._extra_rows:
                        rows.extend(builder._extra_rows)
                        kwarg_nodes.update(
                            (extra_row[0], DataNode(extra_row[0], None)) for extra_row in builder._extra_rows
                        )
                        builder._extra_rows.clear()
                    rows.append(row)
                state = FutureState()
                futures_out.append(Future(key, self, state))
            i += 1
            if len(rows) >= size and i < total:
                yield rows, False
                rows = []
        yield rows, True

    def _map_expression(
        self,
        func: Any,
        iterables: Sequence[Collection[Any]],
        total: int,
        keys: list[Key] | None,
        base: str,
        token: str,
        pure: bool,
        kwargs: dict[str, Any],
        kwarg_nodes: dict[Key, DataNode],
        annotations: dict[str, Any],
        fifo_timeout: Any,
    ) -> list[Future]:
        graph: dict[Key, GraphNode] = dict(kwarg_nodes)
        futures = []
        order: dict[Key, int] = {}
        for i, args in enumerate(zip(*iterables, strict=False)):
            key = keys[i] if keys is not None else self._map_keys(base, token, pure, args, i)
            validate_key(key)
            if key not in self.futures:
                graph[key] = Task(key, func, *(parse_input(arg) for arg in args), **kwargs)
                order[key] = i
                futures.append(Future(key, self, FutureState()))
            else:
                futures.append(Future(key, self))
        if order:
            self._send_expression(
                _with_token(LLGExpr(graph)),
                list(order),
                annotations,
                order if not kwarg_nodes else None,
                fifo_timeout,
            )
        return futures

    # --- collections ---------------------------------------------------------------------------------------

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
        seceded = self._secede_if_in_task()
        try:
            return self.gather(packed, asynchronous=asynchronous, direct=direct)
        finally:
            for future in futures.values():
                future.release()
            if seceded:
                self._rejoin()

    def _secede_if_in_task(self) -> bool:
        """A task that waits for tasks must not keep its slot. Returns whether it was given up."""
        raise NotImplementedError

    def _rejoin(self) -> None:
        raise NotImplementedError

    def gather(
        self, futures: Any, errors: str = "raise", direct: Any = None, asynchronous: bool | None = None
    ) -> Any:
        raise NotImplementedError


def _pack(keys: Any, futures: Mapping[Key, Future]) -> Any:
    """Futures in the shape of nested lists of keys."""
    if isinstance(keys, list):
        return [_pack(key, futures) for key in keys]
    return futures[keys]


def _with_token(expr: Any) -> Any:
    """An expression whose token does not depend on user data, which need not be hashed then."""
    expr._determ_token = uuid.uuid4().hex
    return expr
