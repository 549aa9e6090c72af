"""What every kind of shuffle has in common: ids, the barrier task, and the two interfaces that a kind implements.

A *spec* describes one shuffle and travels (`ShuffleSpec`); a *codec* (`ShuffleCodec`), which a worker makes of it, turns one input into shards and
shards into outputs. Runs, buffers and transfer are the same for all kinds. Imports neither arrays nor dataframes: schedulers load this module.

The ways of data: input -> `shard` -> one payload per worker -> transfer -> `split` -> pieces per output -> (`dump`, disk, `load`) -> `assemble`.
"""

from __future__ import annotations

import abc
import dataclasses
import pickle as stdlib_pickle
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NewType

from dask._task_spec import Task

from distributed.context import current_worker
from distributed.protocol import pickle

ShuffleId = NewType("ShuffleId", str)
ShuffleId.__module__ = __name__
#: output partition: an int for dataframes, a tuple of ints for arrays
PartitionId = Any

_BARRIER = "shuffle-barrier-"


def barrier_key(shuffle_id: ShuffleId) -> str:
    """Key of a shuffle's barrier task."""
    return _BARRIER + shuffle_id


def id_from_key(key: Any) -> ShuffleId | None:
    """The shuffle whose barrier has this key; None if it is not a barrier's."""
    if isinstance(key, str) and key.startswith(_BARRIER):
        return ShuffleId(key[len(_BARRIER) :])
    return None


def place(partitions: Collection[PartitionId], workers: Sequence[str]) -> dict[PartitionId, str]:
    """Which worker has which output: ranges of neighbours, as even as possible."""
    if not workers:
        raise ValueError("outputs of a shuffle need at least one worker")
    n_workers, n = len(workers), len(partitions)
    return {partition: workers[i * n_workers // n] for i, partition in enumerate(partitions)}


class ShuffleCodec(abc.ABC):
    """What a worker does with the data of one run. Methods are called in threads, possibly at the same time: no mutable state.

    Shards are what crosses the wire: ``(input partition, payload)``. Pieces are parts of one output.
    """

    @abc.abstractmethod
    def shard(
        self, data: Any, input_partition: Any, worker_for: Mapping[PartitionId, str]
    ) -> dict[str, tuple[Any, Any]]:
        """Cut one input: worker address -> (input_partition, payload), empty ones left out."""

    @abc.abstractmethod
    def sizeof(self, shard: tuple[Any, Any]) -> int:
        """Bytes of a shard."""

    @abc.abstractmethod
    def split(self, shards: Sequence[tuple[Any, Any]]) -> dict[PartitionId, tuple[Any, int]]:
        """Sort received shards by output: partition -> (piece, bytes)."""

    @abc.abstractmethod
    def dump(self, piece: Any) -> bytes | memoryview:
        """One piece for the disk; pieces of an output are appended to one file, and `load` gets them back one by one."""

    @abc.abstractmethod
    def load(self, data: memoryview) -> Any:
        """The inverse of `dump`."""

    @abc.abstractmethod
    def assemble(self, partition: PartitionId, pieces: Sequence[Any], **kwargs: Any) -> Any:
        """One output of all its pieces, in any order; there may be none."""


@dataclasses.dataclass(frozen=True)
class ShuffleSpec(abc.ABC):
    """One shuffle. `disk`: received shards may go to disk; otherwise all stays in memory."""

    id: ShuffleId
    disk: bool

    @property
    @abc.abstractmethod
    def output_partitions(self) -> Iterable[PartitionId]:
        """All outputs, in the order in which neighbours belong together."""

    @abc.abstractmethod
    def codec(self) -> ShuffleCodec:
        """How a worker treats the data."""

    def plain_partitions(self) -> int | list[PartitionId]:
        """The outputs as plain data for the scheduler; an int means ``range(n)``."""
        return list(self.output_partitions)

    def validate_data(self, data: Any) -> None:  # noqa: B027
        """Raise if an input is not what the spec says."""


class PickledSpec:
    """A pickled spec that is passed on unopened: whoever unpickles this gets the spec itself."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return stdlib_pickle.loads, (self.data,)

    def load(self) -> Any:
        """The spec, where no pickling has come between: in the same process."""
        return pickle.loads(self.data)


@dataclasses.dataclass(frozen=True, eq=False)
class ShuffleRunSpec:
    """One attempt at a shuffle: the scheduler makes it, and every participant gets it."""

    run_id: int
    spec: ShuffleSpec
    worker_for: dict[PartitionId, str]
    span_id: str | None

    @property
    def id(self) -> ShuffleId:
        return self.spec.id


class P2PBarrierTask(Task):  # type: ignore[misc]
    """The task between transfers and outputs. Carries the spec, so that whoever expands a graph can tell the scheduler."""

    spec: ShuffleSpec

    __slots__ = ("spec",)

    def __init__(
        self, key: Any, func: Callable[..., Any], /, *args: Any, spec: ShuffleSpec, **kwargs: Any
    ) -> None:
        self.spec = spec
        super().__init__(key, func, *args, **kwargs)

    def copy(self) -> P2PBarrierTask:
        return P2PBarrierTask(self.key, self.func, *self.args, spec=self.spec, **self.kwargs)

    @property
    def block_fusion(self) -> bool:
        return True

    def row_extra(self) -> dict[str, Any]:
        """What the scheduler must know (docs/protocol.md, rows of a graph)."""
        return {
            "shuffle": {
                "id": self.spec.id,
                "partitions": self.spec.plain_partitions(),
                "spec": pickle.dumps(self.spec),
            }
        }


def shuffle_plugin() -> Any:
    """The shuffle plugin of the worker that runs the calling task."""
    worker = current_worker.get()
    if worker is None:
        raise RuntimeError(
            "tasks of a peer-to-peer shuffle run on workers only; compute the collection with a distributed Client"
        )
    try:
        return worker.plugins["shuffle"]
    except KeyError:
        raise RuntimeError(f"worker {worker.address} has no plugin 'shuffle'; was it unregistered?") from None


def p2p_barrier(id: ShuffleId, *run_ids: int) -> int:
    """A task: ends the transfers of a shuffle. Returns the id of the run that all of them belong to."""
    return shuffle_plugin().barrier(id, run_ids)  # type: ignore[no-any-return]
