"""The way of graphs to the scheduler: functions once, rows chunk by chunk, or for a released scheduler a pickled expression.

What the rows are made of is decided by `submitting` (calls) and `computing` (graphs of dask), in the caller's thread; this module knows the messages.
"""

from __future__ import annotations

import functools
import itertools
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from numbers import Integral, Number
from typing import Any

import dask.config
from dask.context import thread_state
from dask.utils import format_bytes, funcname, parse_bytes

from distributed.client.base import ClientBase
from distributed.client.future import Future
from distributed.context import current_key
from distributed.graph import LARGE_BYTES, Row, RowBuilder
from distributed.protocol import Serialize, Serialized, ToPickle, serialize
from distributed.protocol.specs import dump_function
from distributed.utils import parse_timedelta

Key = Any

#: rows of one message: work starts when the first message arrives
CHUNK_ROWS = 5_000
#: functions that the scheduler is asked to remember; the oldest are forgotten
FUNCTIONS_MAX = 1_000


@functools.lru_cache
def _seconds(duration: Any) -> float:
    return float(parse_timedelta(duration, "s") or 0.0)


def resolve_annotations(annotations: dict[str, Any], key: Key) -> dict[str, Any]:
    """Annotations of one task: values that are functions are called with its key."""
    if any(map(callable, annotations.values())):
        return {name: value(key) if callable(value) else value for name, value in annotations.items()}
    return annotations


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


class Functions:
    """Gives the ids of the functions of one graph, and keeps account of what had to be sent."""

    __slots__ = ("client", "largest", "nbytes")

    def __init__(self, client: Sending) -> None:
        self.client = client
        self.nbytes = 0
        #: the largest one, and its size in bytes
        self.largest: tuple[Any, int] = (None, 0)

    def __call__(self, func: Any) -> int:
        number, sent = self.client._send_function(func)
        if sent:
            self.nbytes += sent
            if sent > self.largest[1]:
                self.largest = (func, sent)
        return number


class Sending(ClientBase):
    """Sends functions and graphs."""

    def _init_sending(self) -> None:
        self._intakes = itertools.count(1)
        self._function_ids = itertools.count(1)
        self._stimuli = itertools.count(1)
        #: pickled function -> id, oldest first
        self._known_functions: dict[bytes, int] = {}
        #: functions that pickle by reference -> id
        self._ids_by_function: dict[Any, int] = {}

    # --- functions -----------------------------------------------------------------------------------------

    def _send_function(self, func: Any) -> tuple[int, int]:
        """The scheduler's handle on a function, and the bytes that had to be sent: 0 if it is known. From any thread.

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
                return known, 0
        data = dump_function(func)
        sent = 0
        with self._lock:
            known = self._known_functions.get(data)
            if known is None:
                sent = len(data)
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
        return known, sent

    def _forget_functions(self) -> None:
        """The scheduler that knew them is gone."""
        with self._lock:
            self._known_functions.clear()
            self._ids_by_function.clear()

    # --- graphs --------------------------------------------------------------------------------------------

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
        try:
            for rows, last in parts:
                wants: Any = True
                if wanted is not None:
                    wants = [i for i, row in enumerate(rows) if wanted(row[0])]
                elif unwanted:
                    wants = [i for i, row in enumerate(rows) if row[0] not in unwanted]
                self._send_to_scheduler(_table(intake, first, rows, wants, list(more_keys) if last else None))
                first = None
        except BaseException:
            if first is None:
                # a later part could not be made: the scheduler must not hold what has arrived until we disconnect
                self._send_to_scheduler(_table(intake, None, [], [], []))
            raise

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

    # --- what calls and graphs have in common --------------------------------------------------------------

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
            if not isinstance(resources, Mapping) or not all(
                isinstance(amount, Number) for amount in resources.values()
            ):
                raise TypeError(f"resources= must map names to numbers, got {resources!r}")
            annotations["resources"] = dict(resources)
        if retries:
            if not isinstance(retries, Integral):
                raise TypeError(f"retries= must be an integer, got {retries!r}")
            annotations["retries"] = int(retries)
        if priority:
            if not isinstance(priority, Number):
                raise TypeError(f"priority= must be a number, got {priority!r}")
            annotations["priority"] = priority
        return annotations

    def _known_future(self, key: Key) -> Future | None:
        """One more future of a key that has some; in one step, since the last of them may be on its way out."""
        with self._lock:
            state = self.futures.get(key)
            return None if state is None else Future(key, self, state)

    @staticmethod
    def _warn_if_large(builder: RowBuilder, functions: Functions, users: Mapping[int, Key]) -> None:
        """Warn of what is large enough to hurt, by name. `users`: id of a function -> a task that runs it."""
        nbytes = builder.nbytes + functions.nbytes
        if nbytes <= LARGE_BYTES or nbytes <= parse_bytes(
            dask.config.get("distributed.admin.large-graph-warning-threshold")
        ):
            return
        key, size = builder.largest
        func, func_size = functions.largest
        if func_size > size:
            what = f"the function of task {users.get(id(func), funcname(func))!r}, with what it refers to"
            size = func_size
        else:
            what = f"task {key!r}"
        warnings.warn(
            f"Sending large graph of size {format_bytes(nbytes)}; largest in it is {what}, with {format_bytes(size)}.\n"
            "This may cause some slowdown. Consider loading the data with Dask directly or using futures or delayed objects to embed the data into the graph "
            "without repetition.",
            UserWarning,
            stacklevel=_stacklevel_of_caller(),
        )


def _table(
    intake: int, begin: dict[str, Any] | None, rows: list[Row], wants: Any, commit: list[Key] | None
) -> dict[str, Any]:
    """The message of docs/protocol.md."""
    return {
        "op": "graph-table",
        "intake": intake,
        "begin": begin,
        "rows": rows,
        "wants": wants,
        "commit": commit,
    }


def _stacklevel_of_caller() -> int:
    """For `warnings.warn`: the first frame outside of this package and dask."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(
        ("distributed.", "dask.")
    ):
        level, frame = level + 1, frame.f_back
    return level
