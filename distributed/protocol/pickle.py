"""Pickling with out-of-band buffers, by value where by reference cannot work.

The standard pickler is tried first, since it is several times faster. cloudpickle is used for what it cannot do, and for objects that name
``__main__``, which would be another module on the receiving side.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
from tblib import pickling_support

# exceptions and tracebacks travel with their frames; the receiving side needs tblib too
pickling_support.install()

HIGHEST_PROTOCOL = pickle.HIGHEST_PROTOCOL


def _always_by_value(obj: Any) -> bool:
    """Whether the object's module was registered with ``cloudpickle.register_pickle_by_value``."""
    registered = cloudpickle.list_registry_pickle_by_value()
    if not registered:
        return False
    module = getattr(obj, "__module__", None) or type(obj).__module__
    return isinstance(module, str) and any(
        module == name or module.startswith(name + ".") for name in registered
    )


def _is_plain_data(obj: Any) -> bool:
    root = type(obj).__module__.partition(".")[0]
    return root in ("numpy", "pandas") or isinstance(obj, (str, bytes, bytearray))


def dumps(
    x: Any, *, buffer_callback: Callable[[Any], Any] | None = None, protocol: int = HIGHEST_PROTOCOL
) -> bytes:
    """Pickle an object.

    Parameters
    ----------
    buffer_callback
        Gets each out-of-band buffer (``pickle.PickleBuffer``), in order; needs protocol 5.

    Raises
    ------
    Exception
        What cloudpickle raises for an object that cannot be pickled at all.
    """
    buffers: list[Any] = []
    collect = buffers.append if buffer_callback is not None else None
    try:
        result = pickle.dumps(x, protocol=protocol, buffer_callback=collect)
        # in arrays and texts the name can only be data
        by_value = (b"__main__" in result and not _is_plain_data(x)) or _always_by_value(x)
    except Exception:  # whatever the standard pickler cannot do; cloudpickle says why if it cannot either
        by_value = True
    if by_value:
        buffers.clear()
        result = cloudpickle.dumps(x, protocol=protocol, buffer_callback=collect)
    if buffer_callback is not None:
        for buffer in buffers:
            buffer_callback(buffer)
    return result


def loads(x: Any, *, buffers: Any = ()) -> Any:
    """Unpickle; `buffers` are the out-of-band buffers in the order in which they were produced."""
    return pickle.loads(x, buffers=buffers) if buffers else pickle.loads(x)
