"""Rechunking peer to peer: the function that dask calls, its layer, the spec, and how a worker treats the data.

Only parts in which several old chunks meet several new ones are shuffled; the others are slices or concatenations (`_rechunk_plan`).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import dask.array as da
import dask.config
import numpy as np
from dask._task_spec import Alias, GraphNode, List, Task, TaskRef
from dask.array.chunk import getitem
from dask.array.core import concatenate3, new_da_object
from dask.highlevelgraph import HighLevelGraph
from dask.layers import Layer
from dask.tokenize import tokenize

from distributed.protocol import pickle
from distributed.shuffle._core import (
    P2PBarrierTask,
    ShuffleCodec,
    ShuffleId,
    ShuffleSpec,
    barrier_key,
    p2p_barrier,
    shuffle_plugin,
)
from distributed.shuffle._rechunk_plan import Chunks, Index, Part, axis_offsets, axis_pieces, check, parts

Key = Any
#: (number of the piece along each axis, the piece)
Shard = tuple[Index, Any]


def rechunk_p2p(
    x: Any,
    chunks: Chunks,
    *,
    threshold: int | None = None,
    block_size_limit: int | None = None,
    balance: bool = False,
) -> Any:
    """An array with other chunks, whose pieces go from worker to worker.

    Parameters
    ----------
    x
        A dask array.
    chunks
        Sizes along each axis, as dask normalises them. Axes of unknown sizes must stay as they are (ValueError).
    threshold, block_size_limit, balance
        Have no meaning here: pieces are never chunks of their own, and `chunks` are balanced already.
    """
    check(x.chunks, chunks)
    if x.ndim == 0 or x.chunks == chunks:
        return x
    if 0 in x.shape and not any(map(math.isnan, x.shape)):
        return da.empty(x.shape, chunks=chunks, dtype=x.dtype, meta=x._meta)
    token = tokenize(x, chunks)
    layer = P2PRechunkLayer(
        name=f"rechunk-p2p-{token}",
        token=token,
        chunks=chunks,
        chunks_input=x.chunks,
        name_input=x.name,
        disk=dask.config.get("distributed.p2p.storage.disk"),
    )
    graph = HighLevelGraph.from_collections(layer.name, layer, [x])
    return new_da_object(graph, layer.name, chunks, meta=x._meta, dtype=x.dtype)


class P2PRechunkLayer(Layer):  # type: ignore[misc]
    """The tasks of one rechunk, made when they are asked for.

    Parameters
    ----------
    keepmap
        Which outputs are wanted, an array of booleans by output chunk; default all.
    """

    def __init__(
        self,
        name: str,
        token: str,
        chunks: Chunks,
        chunks_input: Chunks,
        name_input: str,
        disk: bool,
        keepmap: Any = None,
        annotations: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.token = token
        self.chunks = chunks
        self.chunks_input = chunks_input
        self.name_input = name_input
        self.disk = disk
        shape = tuple(len(sizes) for sizes in chunks)
        self.keepmap = np.ones(shape, dtype=bool) if keepmap is None else keepmap
        self._cached_dict: dict[Key, GraphNode] | None = None
        super().__init__(annotations=annotations)

    def __repr__(self) -> str:
        return f"{type(self).__name__}<name={self.name!r}, chunks={self.chunks}>"

    def get_output_keys(self) -> set[Key]:
        return {(self.name, *map(int, index)) for index in np.argwhere(self.keepmap)}

    def is_materialized(self) -> bool:
        return self._cached_dict is not None

    @property
    def _dict(self) -> dict[Key, GraphNode]:
        if self._cached_dict is None:
            self._cached_dict = self._construct_graph()
        return self._cached_dict

    def __getitem__(self, key: Key) -> GraphNode:
        return self._dict[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._dict)

    def __len__(self) -> int:
        return len(self._dict)

    def cull(
        self, keys: Collection[Key], all_keys: Collection[Key]
    ) -> tuple[P2PRechunkLayer, dict[Key, set[Key]]]:
        """The same for these outputs only, and the inputs that each of them needs."""
        keepmap = np.zeros_like(self.keepmap)
        for key in keys:
            if isinstance(key, tuple) and key[0] == self.name:
                keepmap[key[1:]] = True
        dependencies: dict[Key, set[Key]] = {}
        for part in self._parts(keepmap):
            inputs = {(self.name_input, *index) for index in part.old_indices()}
            for index in part.new_indices():
                if keepmap[index]:
                    dependencies[(self.name, *index)] = inputs
        if np.array_equal(keepmap, self.keepmap):
            return self, dependencies
        culled = P2PRechunkLayer(
            self.name,
            self.token,
            self.chunks,
            self.chunks_input,
            self.name_input,
            self.disk,
            keepmap,
            self.annotations,
        )
        return culled, dependencies

    def _parts(self, keepmap: Any) -> Iterator[Part]:
        """Parts of which something is wanted."""
        for part in parts(self.chunks_input, self.chunks):
            if keepmap[tuple(slice(unit.new_start, unit.new_stop) for unit in part.units)].any():
                yield part

    def _construct_graph(self) -> dict[Key, GraphNode]:
        graph: dict[Key, GraphNode] = {}
        for part in self._parts(self.keepmap):
            if math.prod(part.new_shape) == 1:
                self._concatenate(part, graph)
            elif math.prod(part.old_shape) == 1:
                self._split(part, graph)
            else:
                self._shuffle(part, graph)
        return graph

    def _input(self, index: Index) -> TaskRef:
        return TaskRef((self.name_input, *index))

    def _concatenate(self, part: Part, graph: dict[Key, GraphNode]) -> None:
        """One new chunk of one or more old ones."""
        (index,) = part.new_indices()
        key = (self.name, *index)
        inputs = list(part.old_indices())
        if len(inputs) == 1:
            graph[key] = Alias(key, (self.name_input, *inputs[0]))
            return

        def nested(prefix: Index, units: Sequence[Any]) -> Any:
            if not units:
                return self._input(prefix)
            return List(
                *(nested((*prefix, i), units[1:]) for i in range(units[0].old_start, units[0].old_stop))
            )

        graph[key] = Task(key, concatenate3, nested((), part.units))

    def _split(self, part: Part, graph: dict[Key, GraphNode]) -> None:
        """Several new chunks of one old one."""
        (index,) = part.old_indices()
        old, new = part.old_chunks(self.chunks_input), part.new_chunks(self.chunks)
        pieces = [axis_pieces(*axis)[0] for axis in zip(old, new, strict=True)]
        start = tuple(unit.new_start for unit in part.units)
        for combination in itertools.product(*pieces):
            output = tuple(first + piece.new for first, piece in zip(start, combination, strict=True))
            if self.keepmap[output]:
                key = (self.name, *output)
                graph[key] = Task(
                    key, getitem, self._input(index), tuple(piece.where for piece in combination)
                )

    def _shuffle(self, part: Part, graph: dict[Key, GraphNode]) -> None:
        """Several new chunks of several old ones."""
        token = tokenize(self.token, part.units)
        id = ShuffleId(token)
        barrier = barrier_key(id)
        transfers = []
        for local, index in zip(np.ndindex(part.old_shape), part.old_indices(), strict=True):
            key = (f"rechunk-transfer-{token}", *local)
            graph[key] = Task(key, rechunk_transfer, self._input(index), id, local)
            transfers.append(TaskRef(key))
        spec = ArrayRechunkSpec(
            id=id,
            disk=self.disk,
            new=part.new_chunks(self.chunks),
            old=part.old_chunks(self.chunks_input),
        )
        graph[barrier] = P2PBarrierTask(barrier, p2p_barrier, id, *transfers, spec=spec)
        for local, index in zip(np.ndindex(part.new_shape), part.new_indices(), strict=True):
            if self.keepmap[index]:
                key = (self.name, *index)
                graph[key] = Task(key, rechunk_unpack, id, local, TaskRef(barrier))


class RechunkCodec(ShuffleCodec):
    """Shards are all pieces of one input for one worker; pieces are lists of (number along each axis, array)."""

    def __init__(self, spec: ArrayRechunkSpec) -> None:
        axes = list(zip(spec.old, spec.new, strict=True))
        self._pieces = [axis_pieces(*axis) for axis in axes]
        self._offsets = [axis_offsets(*axis) for axis in axes]
        self._new = spec.new

    def shard(
        self, data: Any, input_partition: Index, worker_for: Mapping[Any, str]
    ) -> dict[str, tuple[Any, Any]]:
        out: dict[str, tuple[Any, list[tuple[Index, Shard]]]] = {}
        pieces = [axis[i] for axis, i in zip(self._pieces, input_partition, strict=True)]
        whole = all(len(axis) == 1 for axis in pieces)
        for combination in itertools.product(*pieces):
            output = tuple(piece.new for piece in combination)
            part = data[tuple(piece.where for piece in combination)]
            # a view would keep the whole input in memory
            part = part if whole else part.copy()
            shards = out.setdefault(worker_for[output], (input_partition, []))[1]
            shards.append((output, (tuple(piece.number for piece in combination), part)))
        return out

    def sizeof(self, shard: tuple[Any, Any]) -> int:
        return sum(part.nbytes for _, (_, part) in shard[1])

    def split(self, shards: Sequence[tuple[Any, Any]]) -> dict[Any, tuple[Any, int]]:
        found: dict[Index, list[Shard]] = {}
        for _, items in shards:
            for output, (number, part) in items:
                found.setdefault(tuple(output), []).append((tuple(number), part))
        return {output: (piece, sum(part.nbytes for _, part in piece)) for output, piece in found.items()}

    def dump(self, piece: Any) -> bytes:
        return pickle.dumps(piece)

    def load(self, data: memoryview) -> Any:
        return pickle.loads(data)

    def assemble(self, partition: Index, pieces: Sequence[Any], **kwargs: Any) -> Any:
        shards = {number: part for piece in pieces for number, part in piece}
        offsets = [axis[i] for axis, i in zip(self._offsets, partition, strict=True)]
        numbers = list(np.ndindex(*(len(axis) for axis in offsets)))
        missing = [number for number in numbers if number not in shards]
        assert not missing, (
            f"output {partition} lacks the pieces {missing}: the barrier was passed without them"
        )
        first = shards[numbers[0]]
        if len(numbers) == 1:
            return first
        if not all(type(part) is np.ndarray for part in shards.values()):
            return concatenate3(_nested(shards, [len(axis) for axis in offsets]))
        sizes = (axis[i] for axis, i in zip(self._new, partition, strict=True))
        # along axes of unknown size there is one piece
        shape = tuple(first.shape[axis] if math.isnan(size) else int(size) for axis, size in enumerate(sizes))
        result = np.empty(shape, dtype=first.dtype)
        for number in numbers:
            result[tuple(axis[i] for axis, i in zip(offsets, number, strict=True))] = shards[number]
        return result


def _nested(shards: Mapping[Index, Any], shape: Sequence[int], prefix: Index = ()) -> Any:
    """Pieces as lists of lists, as `concatenate3` takes them."""
    if len(prefix) == len(shape):
        return shards[prefix]
    return [_nested(shards, shape, (*prefix, i)) for i in range(shape[len(prefix)])]


@dataclasses.dataclass(frozen=True)
class ArrayRechunkSpec(ShuffleSpec):
    """Sizes of chunks along each axis, after and before."""

    new: Chunks
    old: Chunks

    @property
    def output_partitions(self) -> Iterable[Index]:
        return itertools.product(*(range(len(sizes)) for sizes in self.new))

    def codec(self) -> RechunkCodec:
        return RechunkCodec(self)


def rechunk_transfer(input: Any, id: ShuffleId, input_chunk: Index) -> int:
    """A task: send the pieces of one old chunk to the workers that own the new ones. Returns the run's id."""
    return shuffle_plugin().transfer(ShuffleId(id), input, tuple(input_chunk))  # type: ignore[no-any-return]


def rechunk_unpack(id: ShuffleId, output_chunk: Index, barrier_run_id: int) -> Any:
    """A task: one new chunk."""
    return shuffle_plugin().unpack(ShuffleId(id), tuple(output_chunk), barrier_run_id)
