"""Task specs: what a task does, in a form that a scheduler can store and forward without unpickling it (docs/protocol.md).

Dumping happens in clients, loading in the worker thread that runs the task; `compose_pickled_task` lets a scheduler build the
pickled task that a released worker expects, from the pieces, by opcodes.

All pickles here are protocol 5 without out-of-band buffers, and name only dask, the standard library, cloudpickle and user modules.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable
from types import FunctionType
from typing import Any

import cloudpickle
from dask._task_spec import GraphNode

from distributed.protocol import pickle as dask_pickle
from distributed.protocol.serialize import Serialized
from distributed.protocol.utils import ensure_memoryview

PROTOCOL = 5

#: call: function id, pickled args, pickled kwargs or None. node: pickled GraphNode. data: a Serialized value.
CallSpec = tuple[int, bytes, bytes | None]
Spec = CallSpec | bytes | Serialized

_SCALARS = frozenset((int, float, bool, str, bytes, type(None), complex))


def dump_function(func: Callable[..., Any]) -> bytes:
    """Pickle a function: by reference if another process can import it, else by value.

    Raises
    ------
    TypeError
        It cannot be pickled; names it.
    """
    try:
        return dask_pickle.dumps(func)
    except Exception as exc:  # whatever the function has captured may fail in any way
        raise TypeError(f"Could not serialize the function {func!r}: {exc}") from exc


def load_function(data: Any) -> Callable[..., Any]:
    """Inverse of `dump_function`."""
    return pickle.loads(data)  # type: ignore[no-any-return]


class SpecDumper:
    """Pickles the arguments and nodes of one graph. Functions that must travel by value are pickled once per dumper."""

    def __init__(self) -> None:
        self._by_value: dict[int, tuple[Any, bytes]] = {}

    def by_value(self, func: Any) -> bytes:
        """The cloudpickle of a function, made once. The function is kept alive, so that its id stays its own."""
        known = self._by_value.get(id(func))
        if known is None:
            known = self._by_value[id(func)] = (func, cloudpickle.dumps(func, protocol=PROTOCOL))
        return known[1]

    def dump(self, obj: Any) -> bytes:
        """Pickle arguments (a tuple), keywords (a dict) or a graph node.

        Raises
        ------
        TypeError
            Something in it cannot be pickled.
        """
        if type(obj) is tuple:
            for item in obj:
                if type(item) not in _SCALARS:
                    break
            else:
                return pickle.dumps(obj, PROTOCOL)
        file = io.BytesIO()
        pickler = _SpecPickler(file, self)
        try:
            pickler.dump(obj)
            data = file.getvalue()
            if b"__main__" not in data:
                return data
        except Exception:  # whatever the standard pickler cannot do; cloudpickle says why if it cannot either
            pass
        try:
            return bytes(cloudpickle.dumps(obj, protocol=PROTOCOL))
        except Exception as exc:  # as above
            raise TypeError(f"Could not serialize {str(obj)[:200]}: {exc}") from exc


class _SpecPickler(pickle.Pickler):
    """The C pickler, with functions that cannot be imported embedded as nested pickles."""

    def __init__(self, file: Any, dumper: SpecDumper) -> None:
        super().__init__(file, PROTOCOL)
        self._dumper = dumper

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is FunctionType and not _importable(obj):
            return pickle.loads, (self._dumper.by_value(obj),)
        return NotImplemented


def _importable(func: FunctionType) -> bool:
    """Whether pickling by reference would work for another process."""
    module = func.__module__
    if module == "__main__" or "<locals>" in func.__qualname__ or "<lambda>" in func.__qualname__:
        return False
    registered = cloudpickle.list_registry_pickle_by_value()
    return not registered or not any(
        module == name or str(module).startswith(name + ".") for name in registered
    )


def load_node(data: Any) -> GraphNode:
    """The graph node in a node spec."""
    node = pickle.loads(data)
    if not isinstance(node, GraphNode):
        raise TypeError(f"a node spec must hold a dask graph node, it holds {type(node).__name__}")
    return node


def _bytes_opcode(data: Any) -> bytes:
    n = len(data)
    if n < 256:
        return b"C" + bytes((n,)) + bytes(data)
    if n < 2**32:
        return b"B" + struct.pack("<I", n) + bytes(data)
    return b"\x8e" + struct.pack("<Q", n) + bytes(data)


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _nested(data: Any) -> bytes:
    """Opcodes that leave ``pickle.loads(data)`` on the stack."""
    return _global("pickle", "loads") + _bytes_opcode(data) + b"\x85R"


def compose_pickled_task(key: Any, spec: Spec, function: Any = None) -> bytes:
    """The pickle of a dask graph node, for a worker that knows nothing of specs. Nothing of the user's is unpickled here.

    Parameters
    ----------
    function
        The pickled function of a call spec; None for others.
    """
    if isinstance(spec, (bytes, bytearray, memoryview)):
        return bytes(spec)
    pickled_key = _nested(pickle.dumps(key, PROTOCOL))
    if isinstance(spec, Serialized):
        header = _nested(pickle.dumps(spec.header, PROTOCOL))
        frames = (
            b"]" + b"(" + b"".join(_bytes_opcode(ensure_memoryview(frame)) for frame in spec.frames) + b"e"
        )
        value = (
            _global("distributed.protocol.serialize", "merge_and_deserialize") + header + frames + b"\x86R"
        )
        return b"\x80\x05" + _global("dask._task_spec", "DataNode") + pickled_key + value + b"\x86R."
    _, args, kwargs = spec
    if function is None:
        raise ValueError(f"the function of the call spec of {key!r} is missing")
    task = _global("dask._task_spec", "Task")
    # partial(Task, key, function, **kwargs)(*args): NEWOBJ_EX takes any dict as keywords, REDUCE any tuple as arguments
    partial = _global("functools", "partial") + task + pickled_key + _nested(function) + b"\x87"
    partial += (b"}" if kwargs is None else _nested(kwargs)) + b"\x92"
    return b"\x80\x05" + partial + _nested(args) + b"R."
