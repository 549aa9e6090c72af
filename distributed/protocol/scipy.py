"""scipy sparse matrices and arrays: their component arrays out of band."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import scipy.sparse

from distributed.protocol.serialize import dask_deserialize, dask_serialize, register_generic

Header = dict[str, Any]

register_generic(scipy.sparse.spmatrix)


@dask_serialize.register(scipy.sparse.dok_matrix)
def serialize_dok(x: Any) -> tuple[Header, list[Any]]:
    """A dict of keys is no memory: it travels in coordinate form."""
    coo = x.tocoo()
    coo_header, frames = dask_serialize(coo)
    return {"coo_header": coo_header}, frames


@dask_deserialize.register(scipy.sparse.dok_matrix)
def deserialize_dok(header: Header, frames: Sequence[Any]) -> Any:
    coo = dask_deserialize.dispatch(scipy.sparse.coo_matrix)(header["coo_header"], frames)
    return coo.todok()
