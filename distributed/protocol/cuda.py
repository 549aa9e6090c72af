"""The registries of the ``cuda`` family. Importable without a GPU: device libraries register their own functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dask.utils import Dispatch, typename

from distributed.protocol import pickle
from distributed.protocol.serialize import register_serialization_family

cuda_serialize = Dispatch("cuda_serialize")
cuda_deserialize = Dispatch("cuda_deserialize")

Header = dict[str, Any]


def cuda_dumps(x: Any) -> tuple[Header, list[Any]]:
    """Device objects as device buffers; NotImplementedError where nothing is registered for the type."""
    typ = type(x)
    try:
        dumps = cuda_serialize.dispatch(typ)
    except TypeError:
        raise NotImplementedError(typename(typ)) from None
    sub_header, frames = dumps(x)
    header = {
        "sub-header": sub_header,
        "type-serialized": pickle.dumps(typ),
        "serializer": "cuda",
        "compression": (False,) * len(frames),
    }
    return header, frames


def cuda_loads(header: Header, frames: Sequence[Any]) -> Any:
    """Inverse of `cuda_dumps`."""
    loads = cuda_deserialize.dispatch(pickle.loads(header["type-serialized"]))
    return loads(header["sub-header"], frames)


register_serialization_family("cuda", cuda_dumps, cuda_loads)
