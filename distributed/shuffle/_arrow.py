"""Dataframes as Arrow tables: conversion that keeps index and dtypes, cutting by partition, and the stream format that shards travel in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from dask.dataframe.dispatch import from_pyarrow_table_dispatch, to_pyarrow_table_dispatch

#: oldest pyarrow that `concat_tables` with promotion of types works with
MINIMAL_ARROW = (14, 0, 1)


def check_minimal_arrow_version() -> None:
    """RuntimeError if pyarrow is too old."""
    version = tuple(int(part) for part in pa.__version__.split(".")[:3] if part.isdigit())
    if version < MINIMAL_ARROW:
        wanted = ".".join(map(str, MINIMAL_ARROW))
        raise RuntimeError(f"peer-to-peer shuffles need pyarrow {wanted} or newer, not {pa.__version__}")


def check_dtype_support(meta: Any) -> None:
    """TypeError names the first column that cannot be shuffled peer to peer."""
    check_minimal_arrow_version()
    for name in meta.columns:
        dtype = meta[name].dtype
        if isinstance(dtype, pd.SparseDtype) or dtype.kind == "c":
            kind = "sparse" if isinstance(dtype, pd.SparseDtype) else "complex"
            raise TypeError(
                f"p2p does not support {kind} data of dtype {dtype} in column {name!r}; use another shuffle method, such as 'tasks'"
            )


def to_table(df: Any, input_partition: Any = None) -> pa.Table:
    """A dataframe as a table, index included. TypeError says what cannot be converted."""
    try:
        return to_pyarrow_table_dispatch(df, preserve_index=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as exc:
        raise TypeError(
            f"partition {input_partition!r} of a peer-to-peer shuffle cannot be converted to Arrow: {exc}; use another shuffle method, such as 'tasks'"
        ) from exc


def to_frame(table: pa.Table, meta: Any) -> Any:
    """A table as a dataframe with the dtypes of `meta`."""
    df = from_pyarrow_table_dispatch(meta, table)
    different = {}
    for name, dtype in meta.dtypes.items():
        if df.dtypes[name] == dtype or isinstance(dtype, pd.CategoricalDtype):
            # categories belong to the data: those of an empty frame need not be the ones that partitions have
            continue
        different[name] = dtype
    return df.astype(different) if different else df


def concat(tables: Sequence[pa.Table]) -> pa.Table:
    """One table of several. A column may have no type yet where a part had only missing values."""
    if len(tables) == 1:
        return tables[0]
    return pa.concat_tables(tables, promote_options="permissive")


def dump_table(table: pa.Table) -> bytes:
    """Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def load_table(data: Any) -> pa.Table:
    """The inverse of `dump_table`; shares the memory of `data`."""
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_all()


def cut(table: pa.Table, labels: np.ndarray[Any, Any], n_labels: int) -> dict[int, pa.Table]:
    """Sort rows by label and cut where it changes: label -> rows. Negative labels are dropped."""
    if not len(labels):
        return {}
    if n_labels == 1 and labels.min() == 0:
        return {0: table}
    if (labels[1:] < labels[:-1]).any():
        order = np.argsort(labels, kind="stable")
        table = table.take(pa.array(order))
        labels = labels[order]
    edges = np.searchsorted(labels, np.arange(n_labels + 1))
    return {
        label: table.slice(start, stop - start)
        for label, (start, stop) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
        if stop > start
    }


def cut_by_worker(table: pa.Table, column: str, worker_for: Mapping[int, str]) -> dict[str, pa.Table]:
    """Rows of a table by the worker that their partition lies on, those of one partition together."""
    groups: dict[str, list[int]] = {}
    for partition, worker in worker_for.items():
        groups.setdefault(worker, []).append(partition)
    size = 1 + max(worker_for, default=-1)
    label_of = np.full(size + 1, -1, dtype=np.int64)
    for label, partitions in enumerate(groups.values()):
        label_of[partitions] = label
    ids = partition_ids(table, column)
    # partitions that nobody wants, and anything beyond
    labels = label_of[np.where((ids < 0) | (ids >= size), size, ids)]
    pieces = cut(table, labels, len(groups))
    workers = list(groups)
    return {workers[label]: piece for label, piece in pieces.items()}


def partition_ids(table: pa.Table, column: str) -> np.ndarray[Any, Any]:
    """The partition of each row."""
    return np.asarray(table.column(column).to_numpy()).astype(np.int64, copy=False)
