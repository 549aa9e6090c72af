"""Objects <-> (header, frames), through families of serialisers.

A family is a pair of functions; ``dask`` dispatches on the type to registered functions, ``pickle`` takes everything, ``msgpack`` plain
data, ``error`` carries the text of a failure. The wrappers at the end mark payloads inside messages. Wire facts: the header fields of each family
and of collections are those of the released protocol.
"""

from __future__ import annotations

import traceback
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import msgpack
from dask.utils import Dispatch, typename

from distributed.protocol import pickle
from distributed.protocol.compression import decompress, maybe_compress
from distributed.protocol.limits import MAX_NESTING
from distributed.protocol.utils import (
    ensure_memoryview,
    frame_split_size,
    merge_frames,
    nbytes,
    pack_frames_prelude,
    unpack_frames,
)

T = TypeVar("T")

Header = dict[str, Any]
Frames = list[Any]
Dumper = Callable[..., tuple[Header, Frames]]
Loader = Callable[..., Any]

dask_serialize = Dispatch("dask_serialize")
dask_deserialize = Dispatch("dask_deserialize")

#: collections that are serialised element by element; exact types only
_COLLECTIONS = (list, tuple, set, dict)
_COLLECTION_TYPES = {"list": list, "tuple": tuple, "set": set, "dict": dict}

DEFAULT_FAMILIES = ("dask", "pickle")


# --- families ------------------------------------------------------------------------------------------------


def dask_dumps(x: Any, context: dict[str, Any] | None = None) -> tuple[Header, Frames]:
    """Family ``dask``: NotImplementedError where no function is registered for the type."""
    typ = type(x)
    try:
        dumps = dask_serialize.dispatch(typ)
    except TypeError:
        raise NotImplementedError(typename(typ)) from None
    if getattr(dumps, "accepts_context", False):
        sub_header, frames = dumps(x, context=context)
    else:
        sub_header, frames = dumps(x)
    header: Header = {
        "sub-header": sub_header,
        "type": typename(typ),
        "type-serialized": _pickled_type(typ),
        "serializer": "dask",
    }
    return header, frames


_type_pickles: dict[type, bytes] = {}


def _pickled_type(typ: type) -> bytes:
    data = _type_pickles.get(typ)
    if data is None:
        data = pickle.dumps(typ)
        # classes of ``__main__`` may be redefined by hand: those are pickled each time
        if typ.__module__.partition(".")[0] in ("builtins", "numpy", "pandas", "pyarrow", "scipy", "array"):
            _type_pickles[typ] = data
    return data


_types_by_pickle: dict[bytes, type] = {}


def _unpickled_type(data: Any) -> type:
    typ = _types_by_pickle.get(data)
    if typ is None:
        typ = pickle.loads(data)
        if typ.__module__.partition(".")[0] in ("builtins", "numpy", "pyarrow", "scipy", "array"):
            _types_by_pickle[bytes(data)] = typ
    return typ


def dask_loads(header: Header, frames: Sequence[Any]) -> Any:
    """Inverse of `dask_dumps`."""
    typ = _unpickled_type(header["type-serialized"])
    loads = dask_deserialize.dispatch(typ)
    return loads(header["sub-header"], frames)


def pickle_dumps(x: Any, context: dict[str, Any] | None = None) -> tuple[Header, Frames]:
    """Family ``pickle``: the pickle, then its out-of-band buffers."""
    frames: Frames = [None]
    writeable: list[bool] = []

    def collect(buffer: Any) -> None:
        view = buffer.raw()
        frames.append(view)
        writeable.append(not view.readonly)

    protocol = context.get("pickle-protocol") if context else None
    if protocol is None or protocol >= 5:
        frames[0] = pickle.dumps(x, buffer_callback=collect)
    else:
        frames[0] = pickle.dumps(x, protocol=protocol)
    return {"serializer": "pickle", "writeable": writeable}, frames


pickle_dumps.accepts_context = True  # type: ignore[attr-defined]


def ensure_writeable(frame: Any, writeable: bool | None) -> Any:
    """The frame as read-only or writable memory; copied only if it must become writable and is not."""
    view = memoryview(frame)
    if writeable is None or view.readonly != writeable:
        return frame
    return memoryview(bytearray(view)) if writeable else view.toreadonly()


def pickle_loads(header: Header, frames: Sequence[Any]) -> Any:
    """Inverse of `pickle_dumps`."""
    data, buffers = frames[0], frames[1:]
    if not buffers:
        return pickle.loads(data)
    writeable = header.get("writeable")
    if writeable is None:
        writeable = (True,) * len(buffers)
    return pickle.loads(
        data,
        buffers=[ensure_writeable(buffer, flag) for buffer, flag in zip(buffers, writeable, strict=True)],
    )


def msgpack_dumps(x: Any) -> tuple[Header, Frames]:
    """Family ``msgpack``: plain data; NotImplementedError for anything else."""
    try:
        frame = msgpack.dumps(x, use_bin_type=True)
    except Exception as exc:  # msgpack raises TypeError, ValueError and OverflowError for what it cannot do
        raise NotImplementedError(f"not plain data: {exc}") from exc
    return {"serializer": "msgpack"}, [frame]


def msgpack_loads(header: Header, frames: Sequence[Any]) -> Any:
    """Inverse of `msgpack_dumps`."""
    data = frames[0] if len(frames) == 1 else b"".join(frames)
    return msgpack.loads(data, use_list=False, raw=False, strict_map_key=False)


def error_loads(header: Header, frames: Sequence[Any]) -> Any:
    """Family ``error``: the sender could not serialise the object. Raises the TypeError that it had."""
    raise TypeError("\n".join(bytes(frame).decode() for frame in frames))


def _error_dumps(x: Any) -> tuple[Header, Frames]:
    raise NotImplementedError("the error family cannot be asked for")


#: name -> (dumps, loads, whether dumps takes the handshake's options)
families: dict[str, tuple[Dumper, Loader, bool]] = {}


def register_serialization_family(name: str, dumps: Dumper | None, loads: Loader) -> None:
    """Add a family. ``dumps(x)`` or ``dumps(x, context=...)`` returns header and frames, or raises NotImplementedError to decline."""
    wants_context = False
    if dumps is not None:
        code = getattr(dumps, "__code__", None)
        wants_context = (
            code is not None and "context" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        )
    families[name] = (dumps or _error_dumps, loads, wants_context)


register_serialization_family("dask", dask_dumps, dask_loads)
register_serialization_family("pickle", pickle_dumps, pickle_loads)
register_serialization_family("msgpack", msgpack_dumps, msgpack_loads)
register_serialization_family("error", None, error_loads)


# --- objects -------------------------------------------------------------------------------------------------


def _has_dask_handler(typ: type) -> bool:
    try:
        dask_serialize.dispatch(typ)
    except TypeError:
        return False
    return True


def check_dask_serializable(x: Any) -> bool:
    """Whether following first elements leads to a type that the ``dask`` family knows."""
    for _ in range(MAX_NESTING):
        typ = type(x)
        if typ in (list, tuple, set) and len(x):
            x = next(iter(x))
        elif typ is dict and len(x):
            x = next(iter(x.values()))
        else:
            return typ not in _COLLECTIONS and _has_dask_handler(typ)
    return False


def _msgpackable_keys(x: dict[Any, Any]) -> bool:
    try:
        msgpack.dumps(list(x.keys()), use_bin_type=True)
    except Exception:  # as in msgpack_dumps
        return False
    return True


def serialize(
    x: Any,
    serializers: Sequence[str] | None = None,
    on_error: str = "message",
    context: dict[str, Any] | None = None,
    iterate_collection: bool | None = None,
) -> tuple[Header, Frames]:
    """Serialise an object.

    Parameters
    ----------
    serializers
        Families to try, in order; default dask, pickle.
    on_error
        ``"message"``: an object that cannot be serialised becomes an error payload, which raises TypeError where it is deserialised;
        ``"raise"``: TypeError here.
    context
        Options of the handshake: ``compression``, ``pickle-protocol``.

    Returns
    -------
    header
        Plain data.
    frames
        Buffers, one per logical frame.
    """
    names = DEFAULT_FAMILIES if serializers is None else serializers
    typ = type(x)
    if typ is Serialized:
        return x.header, list(x.frames)
    if typ is Serialize:
        return serialize(x.data, names, on_error, context, iterate_collection=True)
    if typ in _COLLECTIONS:
        if iterate_collection is None:
            by_msgpack = (
                typ is list
                and "msgpack" in names
                and ("pickle" not in names or list(names).index("pickle") > list(names).index("msgpack"))
            )
            iterate_collection = by_msgpack or check_dask_serializable(x)
        if iterate_collection and (typ is not dict or _msgpackable_keys(x)):
            return _serialize_collection(x, names, on_error, context)
    failure = ""
    for name in names:
        family = families.get(name)
        if family is None:
            raise ValueError(f"unknown serializer family {name!r}; known: {sorted(families)}")
        dumps, _, wants_context = family
        try:
            return dumps(x, context=context) if wants_context else dumps(x)
        except NotImplementedError:
            continue
        except Exception as exc:  # whatever the user's object does while it is taken apart
            failure = "".join(traceback.format_exception(exc))
            break
    text = f"Could not serialize object of type {typename(typ)}"
    if not failure:
        text += f": none of the families {list(names)} takes it"
    if on_error == "raise":
        detail = failure.strip().rpartition("\n")[2]
        raise TypeError(f"{text}: {detail}" if detail else text, str(x)[:10_000])
    if on_error == "message":
        texts = [text]
        if failure:
            texts.append(failure[-10_000:])
        return {"serializer": "error"}, [t.encode(errors="replace") for t in texts]
    raise ValueError(f"on_error must be 'message' or 'raise', got {on_error!r}")


def _serialize_collection(
    x: Any, names: Sequence[str], on_error: str, context: dict[str, Any] | None
) -> tuple[Header, Frames]:
    headers: list[Header] = []
    frames: Frames = []
    lengths: list[int] = []
    typ = type(x)
    for item in x.items() if typ is dict else x:
        if typ is dict:
            key, value = item
            header, parts = serialize(value, names, on_error, context)
            header = {**header, "key": key}
        else:
            header, parts = serialize(item, names, on_error, context)
        headers.append(header)
        frames.extend(parts)
        lengths.append(len(parts))
    return {
        "sub-headers": headers,
        "is-collection": True,
        "frame-lengths": lengths,
        "type-serialized": typ.__name__,
    }, frames


def deserialize(header: Header, frames: Sequence[Any], deserializers: Sequence[str] | None = None) -> Any:
    """Inverse of `serialize`.

    Parameters
    ----------
    deserializers
        Families that are accepted; default all.

    Raises
    ------
    TypeError
        The payload is of another family, or carries an error.
    """
    if header.get("is-collection"):
        return _deserialize_collection(header, frames, deserializers)
    name = header.get("serializer")
    if deserializers is not None and name not in deserializers:
        raise TypeError(
            f"Data serialized with {name!r} but only able to deserialize data with {list(deserializers)}"
        )
    family = families.get(name) if isinstance(name, str) else None
    if family is None:
        raise TypeError(f"Data serialized with unknown family {name!r}; known: {sorted(families)}")
    return family[1](header, frames)


def _deserialize_collection(
    header: Header, frames: Sequence[Any], deserializers: Sequence[str] | None
) -> Any:
    typ = _COLLECTION_TYPES.get(header["type-serialized"])
    if typ is None:
        raise TypeError(f"unknown collection type {header['type-serialized']!r}")
    items = []
    start = 0
    for sub_header, n in zip(header["sub-headers"], header["frame-lengths"], strict=True):
        value = deserialize(sub_header, frames[start : start + n], deserializers)
        items.append((sub_header["key"], value) if typ is dict else value)
        start += n
    return typ(items)


def serialize_and_split(
    x: Any,
    serializers: Sequence[str] | None = None,
    on_error: str = "message",
    context: dict[str, Any] | None = None,
    size: int | None = None,
) -> tuple[Header, Frames]:
    """Serialise, compress where worthwhile and cut large frames; the header tells how to put them together again."""
    header, frames = serialize(x, serializers, on_error, context)
    counts: list[int] = []
    offsets: list[int] = []
    pieces: Frames = []
    compressions: list[str | None] = []
    compression = context.get("compression") if context else None
    for frame in frames:
        offsets.append(len(pieces))
        codec: str | None = None
        if compression:
            codec, frame = maybe_compress(frame, compression)
        if codec is None and size is not None and nbytes(frame) > size:
            cut = frame_split_size(frame, size)
            pieces.extend(cut)
            counts.append(len(cut))
            compressions.extend([None] * len(cut))
        else:
            pieces.append(frame)
            counts.append(1)
            compressions.append(codec)
    header = {
        **header,
        "split-num-sub-frames": counts,
        "split-offsets": offsets,
        "compression": compressions,
    }
    return header, pieces


def merge_and_deserialize(
    header: Header, frames: Sequence[Any], deserializers: Sequence[str] | None = None
) -> Any:
    """Inverse of `serialize_and_split`; also takes payloads that were never cut."""
    parts: Sequence[Any] = decompress(header, frames)
    counts = header.get("split-num-sub-frames")
    if counts is not None and any(n != 1 for n in counts):
        offsets = header["split-offsets"]
        parts = [merge_frames(parts[start : start + n]) for n, start in zip(counts, offsets, strict=True)]
    return deserialize(header, parts, deserializers)


def serialize_bytelist(x: Any, **kwargs: Any) -> list[Any]:
    """An object as a list of buffers that stand for themselves, as on disk; `deserialize_bytes` takes them joined."""
    header, frames = serialize_and_split(x, **kwargs)
    header["num-sub-frames"] = len(frames)
    packed = msgpack.dumps(header, use_bin_type=True)
    parts = [packed, *frames]
    return [pack_frames_prelude(parts), *parts]


def serialize_bytes(x: Any, **kwargs: Any) -> bytes:
    """An object as bytes."""
    return b"".join(serialize_bytelist(x, **kwargs))


def deserialize_bytes(data: Any) -> Any:
    """Inverse of `serialize_bytes`."""
    frames = unpack_frames(data)
    header = msgpack.loads(frames[0], raw=False, use_list=False, strict_map_key=False)
    return merge_and_deserialize(header, frames[1:])


# --- payload marks -------------------------------------------------------------------------------------------


class Serialize(Generic[T]):
    """Marks an object inside a message as payload, to be serialised out of band."""

    __slots__ = ("data",)

    def __init__(self, data: T) -> None:
        self.data = data

    def __repr__(self) -> str:
        return f"<Serialize: {self.data!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Serialize) and bool(other.data == self.data)

    def __hash__(self) -> int:
        return hash(self.data)


to_serialize = Serialize


class Serialized:
    """A payload as it came: header and frames, possibly compressed and cut. Sent on untouched."""

    __slots__ = ("frames", "header")

    def __init__(self, header: Header, frames: Sequence[Any]) -> None:
        self.header = header
        self.frames = frames

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Serialized)
            and other.header == self.header
            and list(other.frames) == list(self.frames)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Serialized: {self.header.get('type', self.header.get('serializer'))}, {len(self.frames)} frames>"


class ToPickle(Generic[T]):
    """Marks an object inside a message to be pickled; every receiver unpickles it, a scheduler too."""

    __slots__ = ("data",)

    def __init__(self, data: T) -> None:
        self.data = data

    def __repr__(self) -> str:
        return f"<ToPickle: {self.data!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ToPickle) and bool(other.data == self.data)

    def __hash__(self) -> int:
        return hash(self.data)


class Pickled:
    """A `ToPickle` payload that was not unpickled, or that was composed without unpickling. Sent on untouched."""

    __slots__ = ("frames", "header")

    def __init__(self, header: Header, frames: Sequence[Any] = ()) -> None:
        self.header = header
        self.frames = frames

    def __repr__(self) -> str:
        return f"<Pickled: {len(self.header.get('pickled-obj', b''))} bytes, {len(self.frames)} frames>"


def nested_deserialize(x: Any) -> Any:
    """Replace every `Serialize` and `Serialized` inside lists, tuples, sets and dicts by its object; returns a copy."""
    typ = type(x)
    if typ is dict:
        return {key: nested_deserialize(value) for key, value in x.items()}
    if typ is list or typ is tuple or typ is set:
        return typ(nested_deserialize(value) for value in x)
    if typ is Serialize:
        return x.data
    if typ is Serialized:
        return merge_and_deserialize(x.header, x.frames)
    return x


# --- registration --------------------------------------------------------------------------------------------


def register_serialization(cls: type, serialize: Dumper, deserialize: Loader) -> None:
    """Register functions of the ``dask`` family for a class.

    ``serialize(obj)`` returns a header of plain data and a list of buffers; ``deserialize(header, frames)`` the object.
    """
    if isinstance(cls, str):
        raise TypeError(
            f"give the class itself, not its name {cls!r}; for lazy registration use dask_serialize.register_lazy"
        )
    dask_serialize.register(cls)(serialize)
    dask_deserialize.register(cls)(deserialize)


def _serialize_by_attributes(obj: Any) -> tuple[Header, Frames]:
    """The generic object form: plain attributes in the header, others as nested payloads."""
    simple: dict[str, Any] = {}
    complex_: dict[str, Any] = {}
    frames: Frames = []
    for attribute, value in obj.__dict__.items():
        if isinstance(value, (bool, int, float, str, bytes)) or value is None:
            simple[attribute] = value
            continue
        if isinstance(value, dict):
            header, parts = _serialize_by_attributes_of_dict(value)
            header = {"nested-dict": header}
        else:
            header, parts = serialize(value, on_error="raise")
        complex_[attribute] = {"header": header, "start": len(frames), "stop": len(frames) + len(parts)}
        frames.extend(parts)
    return {
        "serializer": "dask",
        "type-serialized": pickle.dumps(type(obj)),
        "simple": simple,
        "complex": complex_,
    }, frames


class _Attributes:
    """Carries a dict as attributes."""

    def __init__(self, d: dict[str, Any]) -> None:
        self.__dict__.update(d)


def _serialize_by_attributes_of_dict(d: dict[str, Any]) -> tuple[Header, Frames]:
    return _serialize_by_attributes(_Attributes(d))


def _deserialize_attributes(header: Header, frames: Sequence[Any]) -> dict[str, Any]:
    values = dict(header["simple"])
    for attribute, part in header["complex"].items():
        parts = frames[part["start"] : part["stop"]]
        sub_header = part["header"]
        if "nested-dict" in sub_header:
            values[attribute] = _deserialize_attributes(sub_header["nested-dict"], parts)
        else:
            values[attribute] = deserialize(sub_header, parts)
    return values


def _deserialize_by_attributes(header: Header, frames: Sequence[Any]) -> Any:
    typ = pickle.loads(header["type-serialized"])
    obj = object.__new__(typ)
    obj.__dict__.update(_deserialize_attributes(header, frames))
    return obj


def register_generic(
    cls: type, serializer_name: str = "dask", serialize_func: Any = None, deserialize_func: Any = None
) -> None:
    """Register a class whose instances are their attributes: each is serialised by itself, without copies of large ones."""
    (serialize_func or dask_serialize).register(cls)(_serialize_by_attributes)
    (deserialize_func or dask_deserialize).register(cls)(_deserialize_by_attributes)


@dask_serialize.register((bytes, bytearray))
def _serialize_bytes(obj: bytes | bytearray) -> tuple[Header, Frames]:
    return {}, [obj]


@dask_deserialize.register(bytes)
def _deserialize_bytes(header: Header, frames: Sequence[Any]) -> bytes:
    if len(frames) == 1 and type(frames[0]) is bytes:
        return frames[0]
    return bytes(frames[0]) if len(frames) == 1 else b"".join(frames)


@dask_deserialize.register(bytearray)
def _deserialize_bytearray(header: Header, frames: Sequence[Any]) -> bytearray:
    if len(frames) == 1 and type(frames[0]) is bytearray:
        return frames[0]
    return bytearray(frames[0]) if len(frames) == 1 else bytearray().join(frames)


@dask_serialize.register(memoryview)
def _serialize_memoryview(obj: memoryview) -> tuple[Header, Frames]:
    if obj.format == "O":
        raise ValueError("Cannot serialize `memoryview` containing Python objects")
    return {"format": obj.format, "shape": obj.shape}, [obj]


@dask_deserialize.register(memoryview)
def _deserialize_memoryview(header: Header, frames: Sequence[Any]) -> Any:
    out = ensure_memoryview(frames[0] if len(frames) == 1 else b"".join(frames))
    return out.cast(header["format"], tuple(header["shape"]))


@dask_serialize.register(array)
def _serialize_array(obj: array[Any]) -> tuple[Header, Frames]:
    return {"typecode": obj.typecode, "writeable": (None,)}, [memoryview(obj)]


@dask_deserialize.register(array)
def _deserialize_array(header: Header, frames: Sequence[Any]) -> array[Any]:
    result = array(header["typecode"])
    for frame in frames:
        if nbytes(frame):
            result.frombytes(ensure_memoryview(frame))
    return result


def _register_lazily(root: str, module: str) -> None:
    """Import our module for a library's types when the first of them is met."""
    load = partial(__import__, f"distributed.protocol.{module}")
    for dispatch in (dask_serialize, dask_deserialize):
        dispatch.register_lazy(root, load)


for _root, _module in {
    "numpy": "numpy",
    "pyarrow": "arrow",
    "scipy": "scipy",
    "sparse": "sparse",
    "h5py": "h5py",
}.items():
    _register_lazily(_root, _module)
