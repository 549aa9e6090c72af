"""Messages <-> frames. Frame 0 is msgpack, made in one pass; payloads that the pass meets become further frames.

Nothing is walked beforehand: msgpack calls the hook for exactly those objects that it cannot pack, and they are the payload wrappers, sets,
enums, and whatever has to be pickled. The control part is never measured.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from enum import Enum
from typing import Any, Literal

import msgpack

from distributed.protocol import pickle
from distributed.protocol.compression import decompress, maybe_compress
from distributed.protocol.serialize import (
    Pickled,
    Serialize,
    Serialized,
    ToPickle,
    merge_and_deserialize,
    serialize_and_split,
)
from distributed.protocol.sizing import frames_nbytes, payload_nbytes

#: module roots of enums that a message may name
DEFAULT_ALLOWED_IMPORTS = ("dask", "distributed")

_allowed_imports: tuple[str, ...] = DEFAULT_ALLOWED_IMPORTS


def set_allowed_imports(roots: Sequence[str]) -> None:
    """Which packages a received message may make us import (config ``distributed.scheduler.allowed-imports``)."""
    global _allowed_imports
    _allowed_imports = tuple(roots)


class PayloadBudgetExceeded(Exception):
    """The payloads of a message are larger than the budget: encode it in a thread.

    Attributes
    ----------
    finished
        For a second `dumps` of the same message: payloads that are serialised already.
    """

    def __init__(self, finished: dict[int, tuple[Any, Any, Any]]) -> None:
        super().__init__("payloads exceed the budget for inline serialisation")
        self.finished = finished


class _Encoder:
    """One message at a time. Kept and used again, since making a packer costs more than packing a small message."""

    __slots__ = (
        "budget",
        "context",
        "finished",
        "frames",
        "on_error",
        "packer",
        "serializers",
        "size",
        "spent",
    )

    def __init__(self) -> None:
        self.packer = msgpack.Packer(default=self.default, use_bin_type=True)
        self.frames: list[Any] = []
        self.serializers: Any = None
        self.on_error = "message"
        self.context: dict[str, Any] | None = None
        self.size: int | None = None
        self.budget: int | None = None
        self.spent = 0
        #: id of a wrapper -> the wrapper (kept alive), its header and frames
        self.finished: dict[int, tuple[Any, Any, Any]] | None = None

    def place(self, mark: str, header: dict[str, Any], frames: Sequence[Any]) -> dict[str, int]:
        """Append a payload's frames; returns the map that stands for it in frame 0."""
        index = len(self.frames)
        self.frames.append(_pack_header({**header, "num-sub-frames": len(frames)}))
        self.frames.extend(frames)
        return {mark: index}

    def spend(self, size: int) -> None:
        """Account for a payload that is about to be serialised."""
        assert self.budget is not None, "sizes are only asked for when there is a budget"
        self.spent += size
        if self.spent > self.budget:
            raise PayloadBudgetExceeded(self.finished or {})

    def default(self, obj: Any) -> Any:
        """The hook: what msgpack cannot pack."""
        typ = type(obj)
        if typ is Serialized:
            if self.budget is not None:
                self.spend(frames_nbytes(obj.frames))
            return self.place("__Serialized__", obj.header, obj.frames)
        if typ is Serialize:
            header, frames = self.once(obj, obj.data, self.serialize)
            return self.place("__Serialized__", header, frames)
        if typ is ToPickle:
            header, frames = self.once(obj, obj.data, self.pickle)
            return self.place("__Pickled__", header, frames)
        if typ is Pickled:
            return self.place("__Pickled__", obj.header, obj.frames)
        if typ is set:
            return {"__Set__": True, "as-list": list(obj)}
        if isinstance(obj, Enum):
            return {
                "__Enum__": True,
                "name": obj.name,
                "__module__": obj.__module__,
                "__name__": typ.__name__,
            }
        header, frames = self.once(obj, obj, self.pickle)
        return self.place("__Pickled__", header, frames)

    def once(self, wrapper: Any, data: Any, encode: Any) -> tuple[Any, Any]:
        """Serialise a payload, unless an earlier pass over the same message has done it."""
        finished = self.finished
        if finished is not None:
            done = finished.get(id(wrapper))
            if done is not None:
                return done[1], done[2]
        if self.budget is not None:
            self.spend(payload_nbytes(data))
        header, frames = encode(data)
        if finished is not None:
            finished[id(wrapper)] = (wrapper, header, frames)
        return header, frames

    def serialize(self, data: Any) -> tuple[Any, Any]:
        return serialize_and_split(Serialize(data), self.serializers, self.on_error, self.context, self.size)

    def pickle(self, data: Any) -> tuple[Any, Any]:
        buffers: list[Any] = []
        pickled = pickle.dumps(data, buffer_callback=lambda buffer: buffers.append(buffer.raw()))
        compression = self.context.get("compression") if self.context else None
        names: list[str | None] = [None] * len(buffers)
        if compression:
            for i, buffer in enumerate(buffers):
                names[i], buffers[i] = maybe_compress(buffer, compression)
        return {"pickled-obj": pickled, "compression": names}, buffers

    def encode(self, msg: Any) -> list[Any]:
        self.frames = frames = [b""]
        try:
            frames[0] = self.packer.pack(msg)
        except BaseException:
            self.packer.reset()
            raise
        finally:
            self.frames = []
        return frames


_encoders: list[_Encoder] = []


def _header_default(obj: Any) -> Any:
    """What may occur in the header of a payload besides plain data."""
    if type(obj) is Serialize:
        obj = Serialized(*serialize_and_split(obj))
    if type(obj) is Serialized:
        return {"__Serialized__": True, "data": (obj.header, list(obj.frames))}
    if type(obj) is set:
        return {"__Set__": True, "as-list": list(obj)}
    if isinstance(obj, Enum):
        return {
            "__Enum__": True,
            "name": obj.name,
            "__module__": obj.__module__,
            "__name__": type(obj).__name__,
        }
    item = getattr(obj, "item", None)
    if item is not None:  # numpy scalars
        return item()
    raise TypeError(f"a payload's header must be plain data, it holds {obj!r}")


def _pack_header(header: dict[str, Any]) -> bytes:
    return msgpack.packb(header, default=_header_default, use_bin_type=True)  # type: ignore[no-any-return]


def dumps(
    msg: Any,
    *,
    serializers: Sequence[str] | None = None,
    on_error: str = "message",
    context: dict[str, Any] | None = None,
    frame_split_size: int | None = None,
    payload_budget: int | None = None,
    finished: dict[int, tuple[Any, Any, Any]] | None = None,
) -> list[Any]:
    """Encode a message.

    Parameters
    ----------
    serializers, on_error, context
        See `serialize`.
    frame_split_size
        Largest frame, bytes; payload frames above are cut.
    payload_budget
        Bytes of payload that may be serialised here. None: no limit, and nothing is sized.
    finished
        From the `PayloadBudgetExceeded` of an earlier pass over the same message.

    Returns
    -------
    Frames: bytes-like, frame 0 is the control part.

    Raises
    ------
    PayloadBudgetExceeded
        Encode it again, in a thread, without budget and with its ``finished``.
    TypeError
        A payload cannot be serialised and `on_error` is ``"raise"``.
    """
    encoder = _encoders.pop() if _encoders else _Encoder()
    encoder.serializers = serializers
    encoder.on_error = on_error
    encoder.context = context
    encoder.size = frame_split_size
    encoder.budget = payload_budget
    encoder.spent = 0
    encoder.finished = {} if finished is None and payload_budget is not None else finished
    try:
        return encoder.encode(msg)
    finally:
        encoder.finished = None
        encoder.context = None
        if len(_encoders) < 4:
            _encoders.append(encoder)


def _bad_index(kind: str, index: Any, count: int) -> ValueError:
    return ValueError(f"malformed message: a {kind} payload refers to frame {index!r} of {count}")


def _decode_enum(obj: dict[str, Any]) -> Any:
    module, name = obj["__module__"], obj["__name__"]
    if str(module).partition(".")[0] not in _allowed_imports:
        raise RuntimeError(
            f"Importing {module!r} is not allowed, please add it to the list of allowed modules: distributed.scheduler.allowed-imports"
        )
    cls = getattr(importlib.import_module(module), name)
    if not (isinstance(cls, type) and issubclass(cls, Enum)):
        raise ValueError(f"malformed message: {module}.{name} is not an enum")
    return cls[obj["name"]]


def _plain_hook(obj: dict[Any, Any]) -> Any:
    """Marks that need no further frames."""
    if "__Set__" in obj:
        return set(obj["as-list"])
    if "__Enum__" in obj:
        return _decode_enum(obj)
    if "__Serialized__" in obj:
        if obj["__Serialized__"] is not True or "data" not in obj:
            raise _bad_index("Serialized", obj["__Serialized__"], 1)
        header, frames = obj["data"]
        return Serialized(header, frames)
    if "__Pickled__" in obj:
        raise _bad_index("Pickled", obj["__Pickled__"], 1)
    return obj


def _unpack_header(frame: Any) -> dict[str, Any]:
    header = msgpack.unpackb(frame, object_hook=_plain_hook, use_list=False, raw=False, strict_map_key=False)
    if type(header) is not dict or not isinstance(header.get("num-sub-frames"), int):
        raise ValueError("malformed message: the header of a payload is no map with num-sub-frames")
    return header


def loads(
    frames: Sequence[Any],
    *,
    deserialize: bool = True,
    deserializers: Sequence[str] | None = None,
    pickled: Literal["load", "opaque"] = "load",
) -> Any:
    """Decode a message. Lists arrive as tuples.

    Parameters
    ----------
    deserialize
        False: payloads stay `Serialized`.
    deserializers
        Families that are accepted.
    pickled
        ``"opaque"``: pickled payloads stay `Pickled`, nothing is unpickled.

    Raises
    ------
    ValueError
        Malformed.
    Exception
        What a payload raises while it is deserialised.
    """
    control = frames[0]
    if len(frames) == 1:
        data = bytes(control)
        if b"__" not in data:
            return msgpack.unpackb(data, use_list=False, raw=False, strict_map_key=False)
        return msgpack.unpackb(data, object_hook=_plain_hook, use_list=False, raw=False, strict_map_key=False)
    count = len(frames)

    def payload(kind: str, index: Any) -> tuple[dict[str, Any], Sequence[Any]]:
        if not isinstance(index, int) or not 0 < index < count:
            raise _bad_index(kind, index, count)
        header = _unpack_header(frames[index])
        n = header.pop("num-sub-frames")
        if not 0 <= n < count - index:
            raise _bad_index(kind, index, count)
        return header, frames[index + 1 : index + 1 + n]

    def hook(obj: dict[Any, Any]) -> Any:
        index = obj.get("__Serialized__")
        if index is not None and index is not True:
            header, parts = payload("Serialized", index)
            return (
                merge_and_deserialize(header, parts, deserializers)
                if deserialize
                else Serialized(header, parts)
            )
        index = obj.get("__Pickled__")
        if index is not None:
            header, parts = payload("Pickled", index)
            if pickled == "opaque":
                return Pickled(header, parts)
            return pickle.loads(header["pickled-obj"], buffers=decompress(header, parts))
        return _plain_hook(obj)

    return msgpack.unpackb(control, object_hook=hook, use_list=False, raw=False, strict_map_key=False)


def load_pickled(payload: Pickled) -> Any:
    """Unpickle a payload that was kept opaque."""
    return pickle.loads(payload.header["pickled-obj"], buffers=decompress(payload.header, payload.frames))
