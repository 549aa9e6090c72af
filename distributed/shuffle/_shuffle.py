"""Shuffles of dataframes: the spec, how a worker treats the data, and the two tasks that dask puts into its graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from distributed.shuffle._arrow import (
    concat,
    cut,
    cut_by_worker,
    dump_table,
    load_table,
    partition_ids,
    to_frame,
    to_table,
)
from distributed.shuffle._core import ShuffleCodec, ShuffleId, ShuffleSpec, shuffle_plugin


class DataFrameCodec(ShuffleCodec):
    """Shards are Arrow streams of all rows for one worker, pieces are tables of one output."""

    def __init__(self, spec: DataFrameShuffleSpec) -> None:
        self.column = spec.column
        self.npartitions = spec.npartitions
        self.drop_column = spec.drop_column
        self.meta = spec.meta.drop(columns=spec.column) if spec.drop_column else spec.meta

    def shard(
        self, data: Any, input_partition: Any, worker_for: Mapping[Any, str]
    ) -> dict[str, tuple[Any, Any]]:
        if not len(data):
            return {}
        table = to_table(data, input_partition)
        return {
            worker: (input_partition, dump_table(rows))
            for worker, rows in cut_by_worker(table, self.column, worker_for).items()
        }

    def sizeof(self, shard: tuple[Any, Any]) -> int:
        return len(shard[1])

    def split(self, shards: Sequence[tuple[Any, Any]]) -> dict[Any, tuple[Any, int]]:
        table = concat([load_table(payload) for _, payload in shards])
        # one output usually ends up in many small batches: rows are counted out once, and bytes follow from the share of rows
        per_row = table.nbytes / max(table.num_rows, 1)
        pieces = cut(table, partition_ids(table, self.column), self.npartitions)
        return {partition: (rows, int(per_row * rows.num_rows)) for partition, rows in pieces.items()}

    def dump(self, piece: Any) -> bytes:
        return dump_table(piece)

    def load(self, data: memoryview) -> Any:
        return load_table(data)

    def assemble(self, partition: Any, pieces: Sequence[Any], **kwargs: Any) -> Any:
        if not pieces:
            return self.meta.copy()
        table = concat(pieces)
        if self.drop_column:
            table = table.drop([self.column])
        return to_frame(table, self.meta)


@dataclasses.dataclass(frozen=True)
class DataFrameShuffleSpec(ShuffleSpec):
    """Rows go to the output that their integer `column` names; `parts_out` are the outputs that are wanted, an int for all of the first."""

    npartitions: int
    column: str
    meta: Any
    parts_out: int | Sequence[int]
    drop_column: bool

    @property
    def output_partitions(self) -> Iterable[int]:
        return range(self.parts_out) if isinstance(self.parts_out, int) else self.parts_out

    def plain_partitions(self) -> int | list[int]:
        if isinstance(self.parts_out, int):
            return self.parts_out
        return [int(partition) for partition in self.parts_out]

    def codec(self) -> DataFrameCodec:
        return DataFrameCodec(self)


def shuffle_transfer(input: Any, id: ShuffleId, input_partition: int) -> int:
    """A task: send one partition's rows to the workers that own their outputs. Returns the run's id."""
    return shuffle_plugin().transfer(ShuffleId(id), input, int(input_partition))  # type: ignore[no-any-return]


def shuffle_unpack(id: ShuffleId, output_partition: int, barrier_run_id: int) -> Any:
    """A task: one output partition."""
    return shuffle_plugin().unpack(ShuffleId(id), int(output_partition), barrier_run_id)
