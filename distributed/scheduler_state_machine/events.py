"""What can happen to the scheduler. One record per kind of event: frozen, named fields, no dicts from the wire.

`NamedTuple`s, because they are built in C: at 10 us per task in all, a frozen dataclass would be a sixth of the budget. ``stimulus_id``
runs through messages, transitions and stories.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

Key = Any
#: (key, spec, numbers of earlier rows or None, order, extra or None), see docs/protocol.md
Row = tuple[Key, Any, Sequence[int] | None, int, Mapping[str, Any] | None]


class WorkerAdded(NamedTuple):
    """A worker has registered. It gets no work before it reports the status ``running``."""

    address: str
    name: Any
    host: str
    nthreads: int
    memory_limit: int | None
    resources: Mapping[str, float]
    status: str
    server_id: str
    nanny: str | None
    pid: int
    local_directory: str
    services: Mapping[str, Any]
    versions: Mapping[str, Any]
    extra: Mapping[str, Any]
    stimulus_id: str


class WorkerRemoved(NamedTuple):
    """A worker is gone. `expected`: its tasks are not to blame."""

    address: str
    expected: bool
    stimulus_id: str


class WorkerStatusChanged(NamedTuple):
    address: str
    status: str
    stimulus_id: str


class WorkerHeartbeat(NamedTuple):
    """Measurements: bytes per second to peers, how long the tasks have been running there (seconds), bytes of the process and of results on disk."""

    address: str
    bandwidth: float | None
    executing: Mapping[Key, float]
    memory: int = 0
    spilled: int = 0


class WorkerResourcesSet(NamedTuple):
    address: str
    resources: Mapping[str, float]
    stimulus_id: str


class TaskFinished(NamedTuple):
    """One task of a `TasksFinished`. Times are seconds on the scheduler's clock; nbytes -1 when unknown."""

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
    #: a very small value itself, in a tuple: passed on to whoever wants it, not kept
    inline: tuple[Any] | None = None


class TasksFinished(NamedTuple):
    worker: str
    tasks: Sequence[TaskFinished]
    stimulus_id: str


class TaskErred(NamedTuple):
    """Exception and traceback are opaque payloads."""

    worker: str
    key: Key
    run_id: int
    exception: Any
    traceback: Any
    exception_text: str
    traceback_text: str
    stimulus_id: str


class TaskRescheduled(NamedTuple):
    """The task asked to be run again."""

    worker: str
    key: Key
    stimulus_id: str


class TaskLongRunning(NamedTuple):
    """The task has left its thread slot (``secede``); duration so far in seconds, None when unknown."""

    worker: str
    key: Key
    run_id: int
    compute_duration: float | None
    stimulus_id: str


class BalanceDue(NamedTuple):
    """Time to see whether idle workers could take over tasks of others."""

    stimulus_id: str


class StealAnswered(NamedTuple):
    """A worker was asked for a task: the state that it had there, None if it was unknown. A task that waited is let go of by the worker."""

    worker: str
    key: Key
    state: str | None
    stimulus_id: str


class ReplicasAdded(NamedTuple):
    worker: str
    keys: Collection[Key]
    stimulus_id: str


class ReplicaReleased(NamedTuple):
    """The worker no longer has the data, or never had it."""

    worker: str
    key: Key
    stimulus_id: str


class WhoHasRequested(NamedTuple):
    worker: str
    keys: Collection[Key]
    stimulus_id: str


class ClientAdded(NamedTuple):
    client: str
    versions: Mapping[str, Any]


class ClientRemoved(NamedTuple):
    client: str
    stimulus_id: str


class KeysDesired(NamedTuple):
    client: str
    keys: Collection[Key]


class KeysReleased(NamedTuple):
    client: str
    keys: Collection[Key]
    stimulus_id: str


class KeyReportRequested(NamedTuple):
    client: str
    key: Key


class KeysCancelled(NamedTuple):
    client: str
    keys: Collection[Key]
    force: bool
    reason: str | None
    msg: str | None
    stimulus_id: str


class KeysRetried(NamedTuple):
    """Run erred keys again, with the ancestors that made them fail."""

    keys: Collection[Key]
    stimulus_id: str


class ResultsVoided(NamedTuple):
    """Results of these tasks are worth nothing any more, also those being computed: what needs them has them computed again."""

    keys: Collection[Key]
    stimulus_id: str


class GraphStarted(NamedTuple):
    """Begin of an intake; `fifo_timeout` in seconds."""

    client: str
    intake: int
    submitting_task: Key | None
    fifo_timeout: float
    user_priority: float
    stimulus_id: str


class FunctionsDefined(NamedTuple):
    """(id, pickled function) pairs of a client."""

    client: str
    functions: Sequence[tuple[int, Any]]


class FunctionsForgotten(NamedTuple):
    client: str
    ids: Collection[int]


class GraphRowsAdded(NamedTuple):
    """`wants`: True for every row, or numbers of rows of this event."""

    client: str
    intake: int
    rows: Sequence[Row]
    wants: Any
    #: nothing follows but the commit: results need not be held in between
    last: bool


class GraphAdded(NamedTuple):
    """A whole graph in one message: what `GraphStarted`, `GraphRowsAdded` and `GraphCommitted` say, in one step."""

    client: str
    intake: int
    submitting_task: Key | None
    fifo_timeout: float
    user_priority: float
    rows: Sequence[Row]
    wants: Any
    keys: Collection[Key]
    stimulus_id: str


class GraphCommitted(NamedTuple):
    """End of an intake; `keys` are wanted too."""

    client: str
    intake: int
    keys: Collection[Key]


class GraphAborted(NamedTuple):
    """An intake failed: everything of it is released, and its wanted keys err or are cancelled.

    `exception` None: cancelled, with `reason`.
    """

    client: str
    intake: int
    keys: Collection[Key]
    reason: str
    exception: Any
    traceback: Any
    stimulus_id: str


class DataAdded(NamedTuple):
    """Data that lies on workers already (scatter, update_data)."""

    client: str | None
    who_has: Mapping[Key, Collection[str]]
    nbytes: Mapping[Key, int]
    stimulus_id: str


class RestrictionsSet(NamedTuple):
    worker_restrictions: Mapping[Key, Collection[str] | None]


class Restarted(NamedTuple):
    """Forget everything that any client wants."""

    stimulus_id: str


class DeadlineReached(NamedTuple):
    """The time of `next_deadline` has come."""

    stimulus_id: str


Event = (
    WorkerAdded
    | WorkerRemoved
    | WorkerStatusChanged
    | WorkerHeartbeat
    | WorkerResourcesSet
    | TasksFinished
    | TaskErred
    | TaskRescheduled
    | TaskLongRunning
    | BalanceDue
    | StealAnswered
    | ReplicasAdded
    | ReplicaReleased
    | WhoHasRequested
    | ClientAdded
    | ClientRemoved
    | KeysDesired
    | KeysReleased
    | KeyReportRequested
    | KeysCancelled
    | KeysRetried
    | ResultsVoided
    | GraphStarted
    | GraphAdded
    | FunctionsDefined
    | FunctionsForgotten
    | GraphRowsAdded
    | GraphCommitted
    | GraphAborted
    | DataAdded
    | RestrictionsSet
    | Restarted
    | DeadlineReached
)
