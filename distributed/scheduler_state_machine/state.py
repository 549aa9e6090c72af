"""The scheduler's passive state: tasks, groups, prefixes, workers, clients. Only mutators here keep both sides of a relation.

Relations of a task that usually have one member (its wanting client, its holder) are frozensets that the single member owns and lends out, so
a live task costs no set of its own. Always replace such a set, through the mutators; never change it in place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from dask.utils import key_split

from distributed.scheduler_state_machine.memory import MemoryState

Key = Any

NO_TASKS: frozenset[Any] = frozenset()

ALL_STATES = ("released", "waiting", "no-worker", "queued", "processing", "memory", "erred", "forgotten")

#: weight of the newest measurement in moving averages
SMOOTHING = 0.5


class FunctionEntry:
    """A pickled function, held once whoever sent it, with the workers that have it."""

    __slots__ = ("data", "holders", "id", "owners", "users")

    def __hash__(self) -> int:
        return self.id

    def __init__(self, id: int, data: Any) -> None:
        self.id = id
        #: bytes, or a Serialized payload
        self.data = data
        #: workers that were given it
        self.holders: set[WorkerState] = set()
        #: how many clients may still refer to it by their own ids
        self.owners = 0
        #: how many tasks use it
        self.users = 0


class TaskPrefix:
    """All tasks whose keys begin alike, hence probably behave alike."""

    __slots__ = (
        "duration_average",
        "groups",
        "max_exec_time",
        "name",
        "nbytes_average",
        "state_counts",
        "suspects",
        "suspicious",
    )

    def __init__(self, name: str, duration: float | None) -> None:
        self.name = name
        self.groups: list[TaskGroup] = []
        #: seconds; None: never measured
        self.duration_average = duration
        #: bytes of a result; None: never measured
        self.nbytes_average: float | None = None
        self.max_exec_time = 0.0
        self.suspicious = 0
        #: tasks that were on a worker when it died with more of them than it ran: one of them may have killed it
        self.suspects: set[TaskState] = set()
        #: transitions into each state since the beginning
        self.state_counts = dict.fromkeys(ALL_STATES, 0)

    def cautious(self) -> bool:
        """Whether workers get no more of these tasks than they run at once, so that the next death names the culprits.

        So it is until all suspects have run, or are not to be run any more.
        """
        suspects = self.suspects
        while suspects:
            ts = next(iter(suspects))
            if ts.state not in ("memory", "erred", "forgotten") and (ts.who_wants or ts.waiters):
                return True
            suspects.discard(ts)
        return False

    def measured(self, duration: float, nbytes: int) -> None:
        """Learn from a finished task."""
        average = self.duration_average
        self.duration_average = duration if average is None else average + SMOOTHING * (duration - average)
        size = self.nbytes_average
        self.nbytes_average = float(nbytes) if size is None else size + SMOOTHING * (nbytes - size)

    @property
    def states(self) -> dict[str, int]:
        """Tasks per state, over all groups."""
        total = dict.fromkeys(ALL_STATES, 0)
        for group in self.groups:
            for state, n in group.states.items():
                total[state] += n
        return total

    def __repr__(self) -> str:
        return f"<TaskPrefix {self.name!r}>"


class TaskGroup:
    """All tasks of one submission that share a name."""

    __slots__ = (
        "_hash",
        "dependencies",
        "duration",
        "name",
        "nbytes_total",
        "prefix",
        "size",
        "states",
        "types",
    )

    def __init__(self, name: str, prefix: TaskPrefix, serial: int) -> None:
        self.name = name
        self._hash = serial
        self.prefix = prefix
        self.states = dict.fromkeys(ALL_STATES, 0)
        #: groups that tasks of this one depend on
        self.dependencies: set[TaskGroup] = set()
        self.nbytes_total = 0
        self.duration = 0.0
        self.types: set[str] = set()
        #: tasks that are not forgotten
        self.size = 0

    def __hash__(self) -> int:
        return self._hash

    def __len__(self) -> int:
        return self.size

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<TaskGroup {self.name!r}: {self.size} tasks>"


class TaskState:
    """One task."""

    __slots__ = (
        "_hash",
        "actor",
        "annotations",
        "dependencies",
        "dependents",
        "erred_on",
        "exception",
        "exception_blame",
        "exception_text",
        "group",
        "has_lost_dependencies",
        "host_restrictions",
        "key",
        "loose_restrictions",
        "metadata",
        "nbytes",
        "no_worker_since",
        "priority",
        "processing_on",
        "resource_restrictions",
        "retries",
        "run_id",
        "run_spec",
        "state",
        "suspicious",
        "traceback",
        "traceback_text",
        "type",
        "type_pickle",
        "waiters",
        "waiting_on",
        "who_has",
        "who_wants",
        "worker_restrictions",
    )

    def __init__(
        self, key: Key, run_spec: Any, group: TaskGroup, serial: int, state: str = "released"
    ) -> None:
        self.key = key
        #: a number of the machine: sets are in the same order in every process
        self._hash = serial
        #: what it does: (FunctionEntry, args, kwargs), a pickled node, a payload; None for scattered data
        self.run_spec = run_spec
        self.group = group
        self.state = state
        self.priority: tuple[float, ...] | None = None
        self.dependencies: frozenset[TaskState] | set[TaskState] = NO_TASKS
        self.dependents: frozenset[TaskState] | set[TaskState] = NO_TASKS
        #: dependencies without a replica
        self.waiting_on: frozenset[TaskState] | set[TaskState] = NO_TASKS
        #: dependents that still need the result
        self.waiters: frozenset[TaskState] | set[TaskState] = NO_TASKS
        self.who_wants: frozenset[ClientState] = NO_TASKS
        self.who_has: frozenset[WorkerState] = NO_TASKS
        self.processing_on: WorkerState | None = None
        self.run_id: int | None = None
        #: bytes of the result; -1: unknown
        self.nbytes = -1
        self.type: str | None = None
        self.type_pickle: bytes | None = None
        self.exception: Any = None
        self.traceback: Any = None
        self.exception_text = ""
        self.traceback_text = ""
        #: the task that really failed
        self.exception_blame: TaskState | None = None
        self.erred_on: frozenset[str] = NO_TASKS
        self.suspicious = 0
        self.retries = 0
        self.host_restrictions: set[str] | None = None
        self.worker_restrictions: set[str] | None = None
        self.resource_restrictions: Mapping[str, float] | None = None
        self.loose_restrictions = False
        self.actor = False
        self.annotations: dict[str, Any] | None = None
        self.metadata: dict[str, Any] | None = None
        self.has_lost_dependencies = False
        self.no_worker_since = 0.0

    def __hash__(self) -> int:
        return self._hash

    @property
    def prefix(self) -> TaskPrefix:
        """Its prefix."""
        return self.group.prefix

    @property
    def group_key(self) -> str:
        """Name of its group."""
        return self.group.name

    @property
    def restricted(self) -> bool:
        """Whether not every worker may run it."""
        return bool(self.worker_restrictions or self.host_restrictions or self.resource_restrictions)

    def get_nbytes(self, default: int) -> int:
        """Bytes of the result, or the default when unknown."""
        return self.nbytes if self.nbytes >= 0 else default

    def add_dependency(self, other: TaskState) -> None:
        """This task needs `other`."""
        if type(self.dependencies) is not set:
            self.dependencies = set()
        self.dependencies.add(other)
        if type(other.dependents) is not set:
            other.dependents = set()
        other.dependents.add(self)
        group, other_group = self.group, other.group
        if other_group is not group and other_group not in group.dependencies:
            # groups that are forgotten would otherwise collect in a group that lives long
            group.dependencies = {g for g in group.dependencies if g.size}
            group.dependencies.add(other_group)

    def add_waiter(self, other: TaskState) -> None:
        if type(self.waiters) is not set:
            self.waiters = set()
        self.waiters.add(other)

    def discard_waiter(self, other: TaskState) -> None:
        if type(self.waiters) is set:
            self.waiters.discard(other)
            if not self.waiters:
                self.waiters = NO_TASKS

    def __repr__(self) -> str:
        return f"<TaskState {self.key!r} {self.state}>"


class WorkerState:
    """One worker as the scheduler sees it."""

    __slots__ = (
        "_hash",
        "actors",
        "address",
        "bandwidth",
        "blocked_for",
        "extra",
        "functions",
        "has_what",
        "host",
        "last_seen",
        "local_directory",
        "long_running",
        "memory_limit",
        "memory_process",
        "memory_spilled",
        "metrics",
        "name",
        "nanny",
        "nbytes",
        "nthreads",
        "occupancy",
        "only",
        "pid",
        "processing",
        "resources",
        "server_id",
        "services",
        "status",
        "time_delay",
        "unmanaged_history",
        "used_resources",
        "versions",
    )

    def __init__(
        self, address: str, name: Any, host: str, nthreads: int, memory_limit: int | None, serial: int
    ) -> None:
        self.address = address
        self._hash = serial
        self.name = name
        self.host = host
        self.nthreads = nthreads
        self.memory_limit = memory_limit
        self.status = "init"
        self.server_id = ""
        self.nanny: str | None = None
        self.pid = 0
        self.local_directory = ""
        self.services: Mapping[str, Any] = {}
        self.versions: Mapping[str, Any] = {}
        self.extra: Mapping[str, Any] = {}
        self.metrics: Mapping[str, Any] = {}
        self.last_seen = 0.0
        self.time_delay = 0.0
        self.bandwidth = 0.0
        self.resources: dict[str, float] = {}
        self.used_resources: dict[str, float] = {}
        #: tasks sent here -> seconds that they are expected to take
        self.processing: dict[TaskState, float] = {}
        #: tasks in `processing` that have left their thread slot
        self.long_running: set[TaskState] = set()
        self.has_what: set[TaskState] = set()
        self.actors: set[TaskState] = set()
        #: bytes of `has_what`
        self.nbytes = 0
        #: measured by the worker: bytes of its process, and of results that it has on disk
        self.memory_process = self.memory_spilled = 0
        #: (time, bytes besides results) of the last while, oldest first
        self.unmanaged_history: deque[tuple[float, int]] = deque()
        #: sum of `processing`
        self.occupancy = 0.0
        #: seconds for which all its threads have been busy with the tasks that they run now; 0: not long
        self.blocked_for = 0.0
        self.functions: set[FunctionEntry] = set()
        #: the ``who_has`` of tasks that only this worker holds
        self.only: frozenset[WorkerState] = frozenset((self,))

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"<WorkerState {self.address!r}, name: {self.name}, status: {self.status}, memory: {len(self.has_what)}, processing: {len(self.processing)}>"

    @property
    def executing(self) -> dict[TaskState, float]:
        """Tasks sent here; which of them run is the worker's to know."""
        return self.processing

    @property
    def memory(self) -> MemoryState:
        """What its memory is made of."""
        managed = max(0, min(self.nbytes - self.memory_spilled, self.memory_process))
        old = min((unmanaged for _, unmanaged in self.unmanaged_history), default=0)
        return MemoryState(
            self.memory_process, min(old, self.memory_process - managed), managed, self.memory_spilled
        )

    def measured_memory(self, now: float, process: int, spilled: int, recent_to_old_s: float) -> None:
        """A measurement of the worker."""
        self.memory_process, self.memory_spilled = process, spilled
        history = self.unmanaged_history
        while history and history[0][0] < now - recent_to_old_s:
            history.popleft()
        history.append((now, max(0, process - max(0, self.nbytes - spilled))))

    def add_replica(self, ts: TaskState) -> None:
        """This worker holds the result of a task."""
        if self in ts.who_has:
            return
        self.has_what.add(ts)
        ts.who_has = self.only if not ts.who_has else ts.who_has | self.only
        if ts.nbytes > 0:
            self.nbytes += ts.nbytes

    def remove_replica(self, ts: TaskState) -> None:
        """It holds it no longer."""
        self.has_what.discard(ts)
        ts.who_has = NO_TASKS if len(ts.who_has) <= 1 else ts.who_has - self.only
        if ts.nbytes > 0:
            self.nbytes -= ts.nbytes

    def start_processing(self, ts: TaskState, cost: float) -> None:
        self.processing[ts] = cost
        self.occupancy += cost
        ts.processing_on = self
        if ts.resource_restrictions:
            for name, amount in ts.resource_restrictions.items():
                self.used_resources[name] = self.used_resources.get(name, 0) + amount

    def stop_processing(self, ts: TaskState) -> None:
        cost = self.processing.pop(ts)
        ts.processing_on = None
        if self.processing:
            self.occupancy -= cost
            if self.occupancy < 0:
                self.occupancy = 0.0
        else:
            # no drift of sums of floats
            self.occupancy = 0.0
        if self.long_running:
            self.long_running.discard(ts)
        if ts.resource_restrictions:
            for name, amount in ts.resource_restrictions.items():
                self.used_resources[name] = self.used_resources.get(name, 0) - amount


class ClientState:
    """One client, or a pseudo client (fire-and-forget, an intake)."""

    __slots__ = (
        "_hash",
        "client_key",
        "functions",
        "intakes",
        "last_seen",
        "only",
        "pseudo",
        "versions",
        "wants_what",
    )

    def __init__(
        self, client: str, serial: int, versions: Mapping[str, Any] | None = None, pseudo: bool = False
    ) -> None:
        self.client_key = client
        self._hash = serial
        self.versions: Mapping[str, Any] = versions or {}
        #: nobody to report to
        self.pseudo = pseudo
        self.last_seen = 0.0
        self.wants_what: set[TaskState] = set()
        #: the client's ids of functions
        self.functions: dict[int, FunctionEntry] = {}
        self.intakes: dict[int, Intake] = {}
        #: the ``who_wants`` of tasks that only this client wants
        self.only: frozenset[ClientState] = frozenset((self,))

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"<Client {self.client_key!r}>"

    def want(self, ts: TaskState) -> None:
        """This client wants a task."""
        wants = ts.who_wants
        if self not in wants:
            ts.who_wants = self.only if not wants else wants | self.only
            self.wants_what.add(ts)

    def unwant(self, ts: TaskState) -> None:
        """It wants it no longer."""
        ts.who_wants = NO_TASKS if len(ts.who_wants) <= 1 else ts.who_wants - self.only
        self.wants_what.discard(ts)


class Intake:
    """A graph that is arriving."""

    __slots__ = ("generation", "holder", "number", "rows", "stimulus_id", "user_priority", "wanted")

    def __init__(self, number: int, generation: float, user_priority: float, stimulus_id: str) -> None:
        self.number = number
        self.generation = generation
        self.user_priority = user_priority
        self.stimulus_id = stimulus_id
        #: tasks by row number; rows refer to earlier ones
        self.rows: list[TaskState] = []
        self.wanted: list[Key] = []
        #: pseudo client that holds what has arrived until the commit; None while there is only one message
        self.holder: ClientState | None = None


#: the part of a key before its token -> its prefix; bounded
_heads: dict[str, str] = {}
_HEADS_MAX = 100_000


def group_name(key: Key) -> str:
    """Name of a key's group: the first element of a tuple, the prefix of a text.

    dask's own splitting costs 2 us; keys that end in a token (nearly all) are looked up by what precedes it.
    """
    if type(key) is tuple and key:
        return str(key[0])
    if type(key) is str:
        head, _, tail = key.rpartition("-")
        if head and not tail.isalpha():
            name = _heads.get(head)
            if name is None:
                if len(_heads) > _HEADS_MAX:
                    _heads.clear()
                name = _heads[head] = str(key_split(head))
            return name
    return str(key_split(key))


def prefix_name(group: str) -> str:
    """Name of the prefix that a group belongs to."""
    return str(key_split(group))
