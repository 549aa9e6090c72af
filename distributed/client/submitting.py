"""Calls go out: submit and map.

Arguments are pickled here, in the caller's thread; what most calls are like (a known function and a few numbers or short texts) takes the shortest way.
"""

from __future__ import annotations

import queue
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask._expr import LLGExpr
from dask._task_spec import DataNode, GraphNode, Task, TaskRef, parse_input
from dask.base import is_dask_collection
from dask.core import validate_key
from dask.tokenize import tokenize
from dask.utils import funcname

from distributed.client.future import Future, FutureState
from distributed.client.keys import call_key, call_token, function_token
from distributed.client.sending import CHUNK_ROWS, Functions, Sending, check_workers, resolve_annotations
from distributed.graph import LARGE_BYTES, Materialized, Row, RowBuilder

Key = Any

_SCALARS = frozenset((int, float, bool, str, bytes, type(None), complex))


@dataclass(frozen=True, slots=True)
class _Calls:
    """The calls of one map; iterating gives the key and the positional arguments of each."""

    func: Any
    iterables: Sequence[Collection[Any]]
    #: how many; iterables may be longer
    total: int
    #: given by the user; None: made of `base` and tokens
    keys: list[Key] | None
    base: str
    token: str
    pure: bool
    kwargs: dict[str, Any]
    #: data that all calls share
    kwarg_nodes: dict[Key, DataNode]
    annotations: dict[str, Any]

    def __iter__(self) -> Iterator[tuple[Key, tuple[Any, ...]]]:
        arguments = zip(*self.iterables, strict=False)
        if self.keys is not None:
            for key, args in zip(self.keys, arguments, strict=False):
                validate_key(key)
                yield key, args
        elif self.pure:
            base, token = self.base, self.token
            for args in arguments:
                yield base + call_token(token, args, {}), args
        else:
            stem = f"{self.base}{self.token}-"
            for i, args in enumerate(arguments):
                yield f"{stem}{i}", args


class Submitting(Sending):
    """Methods that send calls."""

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
        if key in self.futures and (known := self._known_future(key)) is not None:
            return known
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
        if annotations:
            annotations = resolve_annotations(annotations, key)
        functions = Functions(self)
        builder = RowBuilder(functions)
        if task is None and not any(type(arg) in (str, bytes) and len(arg) > LARGE_BYTES for arg in args):
            # what most calls are like: nothing in it needs a second look
            extra = {"annotations": annotations} if annotations else None
            row: Row = (key, (functions(func), builder.dumper.dump(args), None), None, 0, extra)
            if functions.nbytes:
                self._warn_if_large(builder, functions, {id(func): key})
            with self._lock:
                future = Future(key, self, FutureState())
            self._send_rows([([row], True)], None, self._begin(fifo_timeout))
            return future
        if task is None:
            task = Task(key, func, *args)
        rows = list(
            builder.rows(Materialized({key: task}, {key: annotations} if annotations else {}, {key: 0}))
        )
        self._warn_if_large(builder, functions, {id(func): key})
        with self._lock:
            future = Future(key, self, FutureState())
        self._send_rows(
            [(rows, True)], None if len(rows) == 1 else lambda k: k == key, self._begin(fifo_timeout)
        )
        return future

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
        token = function_token(func) + (str(tokenize(kwargs)) if kwargs else "") if pure else uuid.uuid4().hex
        calls = _Calls(
            func, iterables, total, keys, f"{name}-", token, pure, kwargs, kwarg_nodes, annotations
        )
        if not self._tables:
            return self._map_expression(calls, fifo_timeout)
        futures: list[Future] = []
        parts = self._map_rows(calls, batch_size or CHUNK_ROWS, futures)
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

    def _map_rows(
        self, calls: _Calls, size: int, futures_out: list[Future]
    ) -> Iterator[tuple[list[Row], bool]]:
        """Rows of a map, chunk by chunk; futures are made as the rows are."""
        func, kwargs, kwarg_nodes, annotations = (
            calls.func,
            calls.kwargs,
            calls.kwarg_nodes,
            calls.annotations,
        )
        functions = Functions(self)
        builder = RowBuilder(functions)
        function = functions(func)
        packed_kwargs = builder.dumper.dump(dict(kwargs)) if kwargs else None
        kwargs_refer = any(isinstance(value, (TaskRef, GraphNode)) for value in kwargs.values())
        extra = {"annotations": annotations} if annotations else None
        # annotations that are functions have another value for each key
        vary = any(map(callable, annotations.values()))
        known = self.futures
        dump = builder.dumper.dump
        rows: list[Row] = []
        for node_key, node in kwarg_nodes.items():
            rows.append(builder.row(node_key, node, 0))
        i = 0
        for key, args in calls:
            future = self._known_future(key) if key in known else None
            if future is not None:
                futures_out.append(future)
            else:
                if vary:
                    extra = {"annotations": resolve_annotations(annotations, key)}
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
                    row = builder.row(key, task, i, extra["annotations"] if extra else None)
                    if builder._extra_rows:
                        rows.extend(builder._extra_rows)
                        kwarg_nodes.update(
                            (extra_row[0], DataNode(extra_row[0], None)) for extra_row in builder._extra_rows
                        )
                        builder._extra_rows.clear()
                    rows.append(row)
                futures_out.append(Future(key, self, FutureState()))
            i += 1
            if len(rows) >= size and i < calls.total:
                yield rows, False
                rows = []
        self._warn_if_large(builder, functions, {id(func): key} if i else {})
        yield rows, True

    def _map_expression(self, calls: _Calls, fifo_timeout: Any) -> list[Future]:
        """The same for a scheduler that knows no tables."""
        graph: dict[Key, GraphNode] = dict(calls.kwarg_nodes)
        futures = []
        order: dict[Key, int] = {}
        for i, (key, args) in enumerate(calls):
            future = self._known_future(key)
            if future is None:
                graph[key] = Task(key, calls.func, *(parse_input(arg) for arg in args), **calls.kwargs)
                order[key] = i
                future = Future(key, self, FutureState())
            futures.append(future)
        if order:
            self._send_expression(
                _with_token(LLGExpr(graph)),
                list(order),
                calls.annotations,
                order if not calls.kwarg_nodes else None,
                fifo_timeout,
            )
        return futures


def _with_token(expr: Any) -> Any:
    """An expression whose token does not depend on user data, which need not be hashed then."""
    expr._determ_token = uuid.uuid4().hex
    return expr
