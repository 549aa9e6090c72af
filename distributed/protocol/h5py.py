"""h5py files opened for reading travel as their path, which must exist on the receiving side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import h5py

from distributed.protocol.serialize import dask_deserialize, dask_serialize

Header = dict[str, Any]


@dask_serialize.register(h5py.File)
def serialize_h5py_file(f: Any) -> tuple[Header, list[Any]]:
    if f.mode != "r":
        raise ValueError("Can only serialize read-only h5py files")
    return {"filename": f.filename}, []


@dask_deserialize.register(h5py.File)
def deserialize_h5py_file(header: Header, frames: Sequence[Any]) -> Any:
    return h5py.File(header["filename"], mode="r")


@dask_serialize.register((h5py.Group, h5py.Dataset))
def serialize_h5py_dataset(x: Any) -> tuple[Header, list[Any]]:
    header, _ = serialize_h5py_file(x.file)
    return {**header, "name": x.name}, []


@dask_deserialize.register((h5py.Group, h5py.Dataset))
def deserialize_h5py_dataset(header: Header, frames: Sequence[Any]) -> Any:
    return h5py.File(header["filename"], mode="r")[header["name"]]
