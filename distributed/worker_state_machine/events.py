"""What can happen to a worker: messages of the scheduler, outcomes of executions and transfers. Frozen records with named fields."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

Key = Any


class ComputeTask(NamedTuple):
    """The scheduler wants a task run. `deps`: (key, nbytes, holders)."""

    key: Key
    run_id: int
    priority: tuple[float, ...]
    spec: Any
    deps: Sequence[tuple[Key, int, Collection[str]]]
    resources: Mapping[str, float] | None
    actor: bool
    annotations: Mapping[str, Any] | None
    stimulus_id: str


class FreeKeys(NamedTuple):
    """The scheduler does not want these any more. `withdrawn`: offered tasks that the shell took back before a thread started them."""

    keys: Collection[Key]
    withdrawn: Collection[Key]
    stimulus_id: str


class RemoveReplicas(NamedTuple):
    keys: Collection[Key]
    stimulus_id: str


class AcquireReplicas(NamedTuple):
    who_has: Mapping[Key, Collection[str]]
    nbytes: Mapping[Key, int]
    stimulus_id: str


class RefreshWhoHas(NamedTuple):
    who_has: Mapping[Key, Collection[str]]
    stimulus_id: str


class PeerRemoved(NamedTuple):
    worker: str
    stimulus_id: str


class StealRequested(NamedTuple):
    key: Key
    withdrawn: bool
    stimulus_id: str


class Paused(NamedTuple):
    """No new executions and no new transfers from now on."""

    stimulus_id: str


class Resumed(NamedTuple):
    stimulus_id: str


class Executed(NamedTuple):
    """A task has returned; its value is stored. Times in seconds, scheduler clock."""

    key: Key
    run_id: int
    nbytes: int
    typename: str
    type_pickle: bytes | None
    thread: int | None
    start: float
    stop: float
    startstops: Sequence[Mapping[str, Any]] | None
    metadata: Mapping[str, Any] | None
    #: the value itself in a tuple, if it is so small that it travels with the report
    inline: tuple[Any] | None


class ExecutionFailed(NamedTuple):
    """A task has raised; the payloads are pickled."""

    key: Key
    run_id: int
    exception: Any
    traceback: Any
    exception_text: str
    traceback_text: str
    thread: int | None
    start: float
    stop: float


class ExecutionRescheduled(NamedTuple):
    key: Key
    run_id: int


class Seceded(NamedTuple):
    """A running task has left its thread slot."""

    key: Key
    compute_duration: float


class GatherDone(NamedTuple):
    """A transfer has ended. `status`: ok, busy or failed (the peer could not be reached).

    `nbytes`: sizes of what arrived, which is stored. `undecodable`: what arrived and could not be unpickled.
    """

    worker: str
    keys: Collection[Key]
    status: str
    nbytes: Mapping[Key, int]
    undecodable: Mapping[Key, ExecutionFailed]


class DataStored(NamedTuple):
    """Values were put here by somebody else."""

    nbytes: Mapping[Key, int]


class DeadlineReached(NamedTuple):
    stimulus_id: str


Event = (
    ComputeTask
    | FreeKeys
    | RemoveReplicas
    | AcquireReplicas
    | RefreshWhoHas
    | PeerRemoved
    | StealRequested
    | Paused
    | Resumed
    | Executed
    | ExecutionFailed
    | ExecutionRescheduled
    | Seceded
    | GatherDone
    | DataStored
    | DeadlineReached
)
