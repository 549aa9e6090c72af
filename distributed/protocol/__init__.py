"""Objects and messages to frames and back. Pure: no sockets, no event loop, no threads.

Reading order: `core` (messages), `serialize` (objects and payload marks), `specs` (tasks that a scheduler forwards unread),
`framing` (frames on a byte stream), `sizing` (who measures what), `limits`.
"""

from __future__ import annotations

from distributed.protocol import pickle
from distributed.protocol.compression import codecs, decompress, maybe_compress, resolve_compression
from distributed.protocol.core import (
    PayloadBudgetExceeded,
    dumps,
    load_pickled,
    loads,
    set_allowed_imports,
)
from distributed.protocol.cuda import cuda_deserialize, cuda_serialize
from distributed.protocol.serialize import (
    Pickled,
    Serialize,
    Serialized,
    ToPickle,
    dask_deserialize,
    dask_serialize,
    deserialize,
    deserialize_bytes,
    ensure_writeable,
    merge_and_deserialize,
    nested_deserialize,
    register_generic,
    register_serialization,
    register_serialization_family,
    serialize,
    serialize_and_split,
    serialize_bytelist,
    serialize_bytes,
    to_serialize,
)

__all__ = [
    "PayloadBudgetExceeded",
    "Pickled",
    "Serialize",
    "Serialized",
    "ToPickle",
    "codecs",
    "cuda_deserialize",
    "cuda_serialize",
    "dask_deserialize",
    "dask_serialize",
    "decompress",
    "deserialize",
    "deserialize_bytes",
    "dumps",
    "ensure_writeable",
    "load_pickled",
    "loads",
    "maybe_compress",
    "merge_and_deserialize",
    "nested_deserialize",
    "pickle",
    "register_generic",
    "register_serialization",
    "register_serialization_family",
    "resolve_compression",
    "serialize",
    "serialize_and_split",
    "serialize_bytelist",
    "serialize_bytes",
    "set_allowed_imports",
    "to_serialize",
]
