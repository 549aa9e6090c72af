"""Merges of dataframes: two shuffles by the same hash, joined output by output."""

from __future__ import annotations

from typing import Any

from dask.dataframe.multi import merge_chunk

from distributed.shuffle._core import ShuffleId, shuffle_plugin
from distributed.shuffle._shuffle import shuffle_transfer


def merge_transfer(input: Any, id: ShuffleId, input_partition: int) -> int:
    """A task: `shuffle_transfer` under a name of its own, so that merges are told from shuffles."""
    return shuffle_transfer(input, id, input_partition)


def merge_unpack(
    shuffle_id_left: ShuffleId,
    shuffle_id_right: ShuffleId,
    output_partition: int,
    barrier_left: int,
    barrier_right: int,
    how: str,
    left_on: Any,
    right_on: Any,
    result_meta: Any,
    suffixes: Any,
    left_index: bool,
    right_index: bool,
    indicator: bool = False,
) -> Any:
    """A task: join one output of both sides."""
    plugin = shuffle_plugin()
    # both are placed alike if both runs began with the same workers; otherwise the second side is fetched from where it lies
    left = plugin.unpack(ShuffleId(shuffle_id_left), output_partition, barrier_left)
    right = plugin.unpack(ShuffleId(shuffle_id_right), output_partition, barrier_right)
    return merge_chunk(
        left,
        right,
        how=how,
        result_meta=result_meta,
        left_on=left_on,
        right_on=right_on,
        suffixes=suffixes,
        left_index=left_index,
        right_index=right_index,
        indicator=indicator,
    )
