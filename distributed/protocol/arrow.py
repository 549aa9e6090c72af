"""pyarrow tables and record batches as Arrow IPC streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow

from distributed.protocol.serialize import dask_deserialize, dask_serialize

Header = dict[str, Any]


def _stream(schema: Any, write: Any) -> list[Any]:
    sink = pyarrow.BufferOutputStream()
    writer = pyarrow.RecordBatchStreamWriter(sink, schema)
    write(writer)
    writer.close()
    return [memoryview(sink.getvalue())]


@dask_serialize.register(pyarrow.RecordBatch)
def serialize_batch(batch: Any) -> tuple[Header, list[Any]]:
    return {}, _stream(batch.schema, lambda writer: writer.write_batch(batch))


@dask_deserialize.register(pyarrow.RecordBatch)
def deserialize_batch(header: Header, frames: Sequence[Any]) -> Any:
    return pyarrow.RecordBatchStreamReader(pyarrow.BufferReader(frames[0])).read_next_batch()


@dask_serialize.register(pyarrow.Table)
def serialize_table(table: Any) -> tuple[Header, list[Any]]:
    return {}, _stream(table.schema, lambda writer: writer.write_table(table))


@dask_deserialize.register(pyarrow.Table)
def deserialize_table(header: Header, frames: Sequence[Any]) -> Any:
    return pyarrow.RecordBatchStreamReader(pyarrow.BufferReader(frames[0])).read_all()
