"""sparse.COO arrays: coordinates and data out of band."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sparse

from distributed.protocol.serialize import dask_deserialize, dask_serialize, deserialize, serialize

Header = dict[str, Any]


@dask_serialize.register(sparse.COO)
def serialize_coo(x: Any) -> tuple[Header, list[Any]]:
    coords_header, coords_frames = serialize(x.coords)
    data_header, data_frames = serialize(x.data)
    header = {
        "coords-header": coords_header,
        "data-header": data_header,
        "shape": x.shape,
        "nframes": [len(coords_frames), len(data_frames)],
    }
    return header, [*coords_frames, *data_frames]


@dask_deserialize.register(sparse.COO)
def deserialize_coo(header: Header, frames: Sequence[Any]) -> Any:
    n, m = header["nframes"]
    coords = deserialize(header["coords-header"], frames[:n])
    data = deserialize(header["data-header"], frames[n : n + m])
    return sparse.COO(coords, data, shape=tuple(header["shape"]))
