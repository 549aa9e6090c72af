"""numpy arrays out of band, without copies where their memory is contiguous."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from distributed.protocol import pickle
from distributed.protocol.serialize import (
    dask_deserialize,
    dask_serialize,
    deserialize,
    ensure_writeable,
    serialize,
)

Header = dict[str, Any]


def _describe_dtype(dtype: np.dtype[Any]) -> tuple[int, Any]:
    """``(0, text)`` where the text says it all, ``(1, pickle)`` for structured types."""
    if dtype.kind == "V":
        try:
            return 1, pickle.dumps(dtype)
        except Exception:  # a dtype with unpicklable metadata: its fields can still be described
            return 0, dtype.descr
    return 0, dtype.str


@dask_serialize.register(np.ndarray)
def serialize_numpy_ndarray(
    x: np.ndarray[Any, Any], context: dict[str, Any] | None = None
) -> tuple[Header, list[Any]]:
    """Raw memory, or a pickle for objects and for dtypes that a text cannot describe (datetime units, strings of numpy 2)."""
    if (
        x.dtype.hasobject
        or x.dtype.kind == "T"
        or (not x.dtype.isbuiltin and x.dtype.kind != "V" and x.dtype.isalignedstruct)
    ):
        frames: list[Any] = [None]
        protocol = (context or {}).get("pickle-protocol") or pickle.HIGHEST_PROTOCOL
        if protocol >= 5:
            frames[0] = pickle.dumps(x, buffer_callback=lambda buffer: frames.append(memoryview(buffer)))
        else:
            frames[0] = pickle.dumps(x, protocol=protocol)
        return {"pickle": True}, frames
    header: Header = {}
    shape: tuple[int, ...] = x.shape
    # zero-strided axes repeat the same memory: only the distinct part travels
    if x.size and 0 in x.strides and any(n > 1 and s == 0 for n, s in zip(x.shape, x.strides, strict=True)):
        header["broadcast_to"] = x.shape
        x = x[tuple(slice(None) if s != 0 else slice(1) for s in x.strides)]
        shape = x.shape
        strides = x.strides
        # the distinct part may lie in memory with gaps; the buffer that travels has none
        kept = [i for i, s in enumerate(strides) if s != 0]
        dense = np.ascontiguousarray(x)
        dense_strides = list(dense.strides)
        for i in range(x.ndim):
            if i not in kept:
                dense_strides[i] = 0
        strides = tuple(dense_strides)
        data = dense
    elif x.flags.c_contiguous:
        strides = x.strides
        data = x.ravel()
    elif x.flags.f_contiguous:
        strides = x.strides
        data = x.ravel(order="F")
    else:
        data = np.ascontiguousarray(x)
        strides = data.strides
        data = data.ravel()
    if not data.size:
        frame: Any = memoryview(b"")
    else:
        if not data.flags.c_contiguous:
            data = np.ascontiguousarray(data)
        frame = memoryview(data.ravel().view("u1")) if data.dtype.itemsize else memoryview(b"")  # type: ignore[arg-type]
    header.update(
        {
            "dtype": _describe_dtype(x.dtype),
            "shape": shape,
            "strides": strides,
            "writeable": [bool(x.flags.writeable)],
        }
    )
    if isinstance(x, np.matrix):
        header["matrix"] = True
    return header, [frame]


@dask_deserialize.register(np.ndarray)
def deserialize_numpy_ndarray(header: Header, frames: Sequence[Any]) -> Any:
    """Views the frame; copied only if it must become writable and is not."""
    if header.get("pickle"):
        return pickle.loads(frames[0], buffers=[memoryview(frame) for frame in frames[1:]])
    (writeable,) = header["writeable"]
    frame = ensure_writeable(frames[0], writeable)
    pickled_dtype, dtype = header["dtype"]
    if pickled_dtype:
        dtype = pickle.loads(dtype)
    elif isinstance(dtype, tuple):
        dtype = [tuple(field) if isinstance(field, (list, tuple)) else field for field in dtype]
    dt = np.dtype(dtype)
    shape = tuple(header.get("broadcast_to") or header["shape"])
    buffer: Any = frame
    if not memoryview(frame).nbytes:
        x = np.empty(shape, dtype=dt)
    else:
        needed = dt.itemsize * math.prod(header["shape"])
        if memoryview(frame).nbytes < needed:
            raise ValueError(
                f"an array of shape {header['shape']} and dtype {dt} needs {needed} bytes, its frame has {memoryview(frame).nbytes}"
            )
        x = np.ndarray(shape, dtype=dt, buffer=buffer, strides=tuple(header["strides"]))
    if header.get("matrix"):
        x = np.asmatrix(x)
    if not writeable:
        x.flags.writeable = False
    return x


@dask_serialize.register(np.ma.core.MaskedConstant)
def serialize_numpy_ma_masked(x: Any) -> tuple[Header, list[Any]]:
    """``numpy.ma.masked`` is one object."""
    return {}, []


@dask_deserialize.register(np.ma.core.MaskedConstant)
def deserialize_numpy_ma_masked(header: Header, frames: Sequence[Any]) -> Any:
    return np.ma.masked


@dask_serialize.register(np.ma.core.MaskedArray)
def serialize_numpy_maskedarray(x: Any) -> tuple[Header, list[Any]]:
    """Data and mask as two arrays."""
    data_header, frames = serialize_numpy_ndarray(x.data)
    header: Header = {"data-header": data_header, "nframes": len(frames)}
    if x.mask is not np.ma.nomask:
        mask_header, mask_frames = serialize_numpy_ndarray(x.mask)
        header["mask-header"] = mask_header
        frames = [*frames, *mask_frames]
    fill_value = x.fill_value
    if isinstance(fill_value, np.void) or getattr(fill_value, "dtype", np.dtype("f8")).hasobject:
        header["fill-value"] = (True, pickle.dumps(fill_value))
    else:
        plain = fill_value.item() if isinstance(fill_value, np.generic) else fill_value
        if isinstance(plain, (bool, int, float, str, bytes)) or plain is None:
            header["fill-value"] = (False, plain)
        else:
            header["fill-value"] = (True, pickle.dumps(fill_value))
    return header, frames


@dask_deserialize.register(np.ma.core.MaskedArray)
def deserialize_numpy_maskedarray(header: Header, frames: Sequence[Any]) -> Any:
    n = header["nframes"]
    data = deserialize_numpy_ndarray(header["data-header"], frames[:n])
    mask: Any = np.ma.nomask
    if "mask-header" in header:
        mask = deserialize_numpy_ndarray(header["mask-header"], frames[n:])
    pickled, value = header["fill-value"]
    return np.ma.masked_array(data, mask=mask, fill_value=pickle.loads(value) if pickled else value)


__all__ = ["deserialize", "serialize"]
