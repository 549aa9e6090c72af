"""Running one task: from its spec and the values that it needs to a value or an error. In the thread that runs it, from unpickling on."""

from __future__ import annotations

import os
import sys
import threading
import traceback as traceback_module
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from dask._task_spec import GraphNode, TaskRef
from dask.utils import typename

from distributed.core.errors import max_error_length, pickle_exception, pickle_traceback, truncate_exception
from distributed.protocol import (
    Pickled,
    Serialize,
    Serialized,
    load_pickled,
    merge_and_deserialize,
    pickle,
    to_serialize,
)
from distributed.protocol.specs import load_function, load_node
from distributed.sizeof import safe_sizeof
from distributed.utils import iscoroutinefunction
from distributed.worker_state_machine.events import Executed, ExecutionFailed

Key = Any

#: where the frames lie that are ours, not the user's
_INTERNAL = os.path.dirname(os.path.abspath(__file__))

#: Values of exactly these types travel with the report that they exist, so nobody has to fetch them: they are smaller than a request.
_INLINE_SCALARS = frozenset((int, float, bool, type(None)))
_INLINE_TEXTS = frozenset((str, bytes))
INLINE_TEXT_MAX = 200
#: what msgpack carries
INT_MAX = 2**63

#: type -> its name and its pickle, as reported to the scheduler; few, and types live long
_type_facts: dict[type, tuple[str, bytes | None]] = {}


def type_facts(typ: type) -> tuple[str, bytes | None]:
    """Name and pickle of a type; the pickle of its name if it cannot be pickled."""
    facts = _type_facts.get(typ)
    if facts is None:
        name = typename(typ)
        try:
            data = pickle.dumps(typ)
        except Exception:  # a user's metaclass may do anything
            data = pickle.dumps(name)
        if len(data) > 10_000:
            data = pickle.dumps(name)
        facts = (name, data)
        if typ.__module__ != "__main__":
            _type_facts[typ] = facts
    return facts


class Call:
    """A task ready to run: a function with its arguments, or a graph node."""

    __slots__ = ("args", "func", "is_coroutine", "kwargs")

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.is_coroutine = func.is_coro if isinstance(func, GraphNode) else iscoroutinefunction(func)

    def __call__(self) -> Any:
        return self.func(*self.args, **self.kwargs)


class Value:
    """A task whose result is known."""

    __slots__ = ("value",)
    is_coroutine = False

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self) -> Any:
        return self.value


def _resolve(arg: Any, values: Mapping[Key, Any]) -> Any:
    if isinstance(arg, GraphNode):
        return arg({key: values[key] for key in arg.dependencies})
    if isinstance(arg, TaskRef):
        return values[arg.key]
    return arg


def prepare(spec: Any, values: Mapping[Key, Any] | None, functions: Any) -> Call | Value:
    """Unpickle a spec. `functions` maps ids to functions; raises whatever the user's objects raise."""
    if type(spec) is tuple:
        func = functions[spec[0]]
        args = pickle.loads(spec[1])
        kwargs = pickle.loads(spec[2]) if spec[2] is not None else {}
        if values:
            args = tuple([_resolve(arg, values) for arg in args])
            kwargs = {name: _resolve(arg, values) for name, arg in kwargs.items()}
        elif any(isinstance(arg, GraphNode) for arg in args) or kwargs:
            args = tuple([_resolve(arg, {}) for arg in args])
            kwargs = {name: _resolve(arg, {}) for name, arg in kwargs.items()}
        return Call(func, args, kwargs)
    if type(spec) is Serialized:
        return Value(merge_and_deserialize(spec.header, spec.frames))
    if type(spec) is Serialize:
        return Value(spec.data)
    node = load_pickled(spec) if type(spec) is Pickled else load_node(spec)
    return Call(node, (values or {},), {})


class FunctionTable:
    """Functions by the scheduler's ids, unpickled by the first thread that needs them."""

    def __init__(self) -> None:
        self._pickles: dict[int, Any] = {}
        self._loaded: dict[int, Any] = {}

    def define(self, id: int, data: Any) -> None:
        self._pickles[id] = data

    def forget(self, id: int) -> None:
        self._pickles.pop(id, None)
        self._loaded.pop(id, None)

    def __getitem__(self, id: int) -> Any:
        func = self._loaded.get(id)
        if func is None:
            data = self._pickles[id]
            if isinstance(data, Serialized):
                data = merge_and_deserialize(data.header, data.frames)
            elif isinstance(data, Serialize):
                data = data.data
            func = self._loaded[id] = load_function(data)
        return func

    def pickle_of(self, id: int) -> Any:
        """The pickle itself, for executors in other processes."""
        data = self._pickles[id]
        if isinstance(data, Serialized):
            data = merge_and_deserialize(data.header, data.frames)
        return data.data if isinstance(data, Serialize) else data


def succeeded(key: Key, run_id: int, value: Any, start: float, stop: float) -> Executed:
    """The report of a value."""
    name, type_pickle = type_facts(type(value))
    typ = type(value)
    inline = None
    if typ in _INLINE_SCALARS or (typ in _INLINE_TEXTS and len(value) <= INLINE_TEXT_MAX):
        if typ is not int or -INT_MAX <= value < INT_MAX:
            inline = (value,)
    return Executed(
        key,
        run_id,
        safe_sizeof(value),
        name,
        type_pickle,
        threading.get_ident(),
        start,
        stop,
        None,
        None,
        inline,
    )


def strip_internal_frames(tb: TracebackType | None) -> TracebackType | None:
    """The traceback from the user's first frame on; whole if there is none."""
    current = tb
    while current is not None:
        path = current.tb_frame.f_code.co_filename
        if not path.startswith(_INTERNAL) and not path.endswith(os.path.join("dask", "_task_spec.py")):
            return current
        current = current.tb_next
    return tb


def failed(key: Key, run_id: int, exc: BaseException, start: float, stop: float) -> ExecutionFailed:
    """The report of an error. Never raises, whatever the exception is like."""
    limit = max_error_length()
    tb = strip_internal_frames(exc.__traceback__)
    short = truncate_exception(exc, limit)
    pickled_tb = pickle_traceback(tb, limit)
    try:
        text = repr(short)
    except Exception:  # a user's __repr__
        text = f"<{type(exc).__name__} that cannot be shown>"
    return ExecutionFailed(
        key,
        run_id,
        to_serialize(pickle_exception(short)),
        None if pickled_tb is None else to_serialize(pickled_tb),
        text[:limit],
        "".join(traceback_module.format_tb(tb))[:limit],
        threading.get_ident(),
        start,
        stop,
    )


def run_elsewhere(function: bytes | None, spec: Any, values: Mapping[Key, Any]) -> Any:
    """Run a task in another process, for executors that users register."""
    table = FunctionTable()
    if function is not None:
        table.define(spec[0], function)
    return prepare(spec, values, table)()


def frames_of_thread(ident: int) -> list[str]:
    """The call stack of a thread, without this package's own frames."""
    frame = sys._current_frames().get(ident)
    if frame is None:
        return []
    return [
        f'  File "{entry.filename}", line {entry.lineno}, in {entry.name}\n\t{entry.line}'
        for entry in traceback_module.extract_stack(frame)
        if not entry.filename.startswith(_INTERNAL) and not entry.filename.endswith("threading.py")
    ]
