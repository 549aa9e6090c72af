"""`MachineCore`: the tables, and the mutators that transitions and event handlers are made of. Decides nothing."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from distributed.scheduler_state_machine.instructions import (
    ComputeTask,
    DefineFunction,
    ForgetFunctions,
    FreeKeys,
    Instruction,
    ReportErred,
    ReportInMemory,
)
from distributed.scheduler_state_machine.settings import SchedulerSettings
from distributed.scheduler_state_machine.state import (
    ClientState,
    FunctionEntry,
    TaskGroup,
    TaskPrefix,
    TaskState,
    WorkerState,
    group_name,
    prefix_name,
)

if TYPE_CHECKING:
    from distributed.scheduler_state_machine.stealing import Steal

Key = Any

FIRE_AND_FORGET = "fire-and-forget"

Observer = Callable[..., None]

#: in the records of stories: recommendations are drained elsewhere, the field is there for those who know the format
NO_RECOMMENDATIONS: Mapping[Any, str] = MappingProxyType({})


class InvalidTransition(Exception):
    """A bug: no such edge in the table. Carries the task's story."""

    def __init__(self, key: Key, start: str, finish: str, story: list[Any]) -> None:
        super().__init__(key, start, finish, story)
        self.key = key
        self.start = start
        self.finish = finish
        self.story = story

    def __str__(self) -> str:
        lines = "\n  ".join(map(str, self.story))
        return f"impossible transition of {self.key!r}: {self.start} -> {self.finish}\n  {lines}"


class MachineCore:
    """Tables and mutators."""

    def __init__(self, settings: SchedulerSettings, seed: int | Random = 0) -> None:
        self.settings = settings
        self.random = seed if isinstance(seed, Random) else Random(seed)
        self.tasks: dict[Key, TaskState] = {}
        self.task_groups: dict[str, TaskGroup] = {}
        self.task_prefixes: dict[str, TaskPrefix] = {}
        #: by address
        self.workers: dict[str, WorkerState] = {}
        #: name -> address
        self.aliases: dict[Any, str] = {}
        #: workers that may be given work
        self.running: set[WorkerState] = set()
        #: the same in the order in which they became so: chance picks from a sequence
        self.running_order: list[WorkerState] = []
        self.clients: dict[str, ClientState] = {}
        self.total_nthreads = 0
        #: runnable tasks that no worker may run, with the time since when, seconds
        self.unrunnable: dict[TaskState, float] = {}
        #: (time, task) of tasks that are queued while there is no worker at all, oldest first; entries of tasks that left
        #: the queue since are skipped when met
        self.stranded: deque[tuple[float, TaskState]] = deque()
        #: (priority, counter, task); entries of tasks that left the queue are skipped when met
        self.queue: list[tuple[Any, int, TaskState]] = []
        self.n_queued = 0
        #: pickled function -> its entry
        self.functions: dict[Any, FunctionEntry] = {}
        #: called for every transition: (key, start, finish, stimulus_id=, worker=...)
        self.observers: list[Observer] = []
        #: (key, start, finish, recommendations, stimulus_id, timestamp)
        self.transition_log: deque[tuple[Any, str, str, Mapping[Any, str], str, float]] = deque(
            maxlen=settings.story_length
        )
        self._log = self.transition_log.append
        self.transition_counter = 0
        #: measured, bytes per second between workers
        self.bandwidth = settings.bandwidth
        # the event being handled
        self.now = 0.0
        self.stimulus_id = ""
        self.out: list[Instruction] = []
        #: task -> state that it is to get; drained last-in first-out
        self.recommendations: dict[TaskState, str] = {}
        #: slots may have become free on these workers
        self.refill: set[WorkerState] = set()
        #: tasks that were asked back from a worker, until it answers
        self.stealing: dict[TaskState, Steal] = {}
        #: tasks that are known to run, since the worker says so, with the run that this is about
        self.known_running: dict[TaskState, int | None] = {}
        #: some worker has nothing to do while others may have too much: a `BalanceDue` may help
        self.starving = False
        #: tasks were queued: any worker may have a slot for them
        self.refill_all = False
        self._counter = itertools.count()
        #: hashes of state objects. Hashes of keys and addresses differ between processes, and the order of sets with them:
        #: a seed would not replay
        self._serials = itertools.count()
        self._run_ids = itertools.count()
        self._function_ids = itertools.count()

    # --- tasks ---------------------------------------------------------------------------------------------

    def new_task(self, key: Key, run_spec: Any, state: str = "released") -> TaskState:
        """Create a task in its group; the key must be new."""
        name = group_name(key)
        group = self.task_groups.get(name)
        if group is None:
            group = self.new_group(name)
        ts = TaskState(key, run_spec, group, next(self._serials), state)
        group.states[state] += 1
        group.size += 1
        self.tasks[key] = ts
        if type(run_spec) is tuple:
            run_spec[0].users += 1
        return ts

    def new_group(self, name: str) -> TaskGroup:
        prefix_key = prefix_name(name)
        prefix = self.task_prefixes.get(prefix_key)
        if prefix is None:
            duration = self.settings.default_task_durations_s.get(prefix_key)
            prefix = self.task_prefixes[prefix_key] = TaskPrefix(prefix_key, duration)
        group = self.task_groups[name] = TaskGroup(name, prefix, next(self._serials))
        prefix.groups.append(group)
        return group

    def drop_task(self, ts: TaskState) -> None:
        """Take a task out of all tables; its relations are undone already."""
        del self.tasks[ts.key]
        if self.known_running:
            self.known_running.pop(ts, None)
        group = ts.group
        group.size -= 1
        if not group.size:
            del self.task_groups[group.name]
            prefix = group.prefix
            prefix.groups.remove(group)
            if not prefix.groups:
                prefix.suspects.clear()
        spec = ts.run_spec
        if type(spec) is tuple:
            spec[0].users -= 1
            if not spec[0].users and not spec[0].owners:
                self.drop_function(spec[0])

    def set_state(self, ts: TaskState, state: str) -> None:
        """Give a task a state: counters, the story, the observers."""
        start = ts.state
        ts.state = state
        group = ts.group
        states = group.states
        states[start] -= 1
        states[state] += 1
        group.prefix.state_counts[state] += 1
        self.transition_counter += 1
        self._log((ts.key, start, state, NO_RECOMMENDATIONS, self.stimulus_id, self.now))
        if self.observers:
            for observer in self.observers:
                observer(ts.key, start, state, stimulus_id=self.stimulus_id)

    def story(self, *keys_or_stimuli: Any) -> list[Any]:
        """Remembered transitions of keys, or caused by stimuli."""
        wanted = {item.key if isinstance(item, TaskState) else item for item in keys_or_stimuli}
        return [record for record in self.transition_log if record[0] in wanted or record[4] in wanted]

    def recommend(self, ts: TaskState, state: str) -> None:
        """Recommend a state, in place of an earlier recommendation; but what is to be forgotten cannot be saved."""
        if self.recommendations.get(ts) != "forgotten":
            self.recommendations[ts] = state

    def maybe_let_go(self, ts: TaskState) -> None:
        """A desire or a waiter is gone. An error stays with its dependents: to release it would mean to run it again."""
        if ts.waiters or ts.who_wants:
            return
        if not ts.dependents:
            self.recommendations[ts] = "forgotten"
        elif ts.state == "released":
            # it was about to be started for those who are gone
            if self.recommendations.get(ts) == "waiting":
                del self.recommendations[ts]
        elif ts.state != "erred":
            self.recommend(ts, "released")
        elif self.recommendations.get(ts) == "waiting":
            # it was about to be retried for those who are gone
            self.recommendations[ts] = "released"

    def detach_from_dependencies(self, ts: TaskState) -> None:
        """The task no longer waits for anything; dependencies that nobody needs any more are to be released."""
        ts.waiting_on = frozenset()
        for dts in ts.dependencies:
            dts.discard_waiter(ts)
            self.maybe_let_go(dts)

    # --- the queue -----------------------------------------------------------------------------------------

    def enqueue(self, ts: TaskState) -> None:
        """Hold a runnable task back until a worker has a slot."""
        self.set_state(ts, "queued")
        heappush(self.queue, (ts.priority, next(self._counter), ts))
        self.n_queued += 1
        if not self.workers:
            self.strand(ts)

    def strand(self, ts: TaskState) -> None:
        """A queued task has no worker to hope for from now on."""
        ts.no_worker_since = self.now
        self.stranded.append((self.now, ts))

    def stranded_head(self) -> tuple[float, TaskState] | None:
        """The task that has been stranded for the longest time, and since when."""
        stranded = self.stranded
        while stranded:
            since, ts = stranded[0]
            if ts.state == "queued" and ts.no_worker_since == since:
                return since, ts
            stranded.popleft()
        return None

    def queue_head(self) -> TaskState | None:
        """The queued task that comes next; it stays in the queue."""
        queue = self.queue
        while queue:
            ts = queue[0][2]
            if ts.state == "queued":
                return ts
            heappop(queue)
        return None

    def leave_queue(self) -> None:
        """A queued task is about to get another state."""
        self.n_queued -= 1
        if not self.n_queued:
            self.queue.clear()

    # --- functions -----------------------------------------------------------------------------------------

    def define_function(self, client: ClientState, id: int, data: Any) -> None:
        """A client defines a function; the same pickle from whomever is one entry."""
        content = bytes(data) if isinstance(data, (bytes, bytearray, memoryview)) else None
        entry = self.functions.get(content) if content is not None else None
        if entry is None:
            entry = FunctionEntry(next(self._function_ids), data)
            self.functions[content if content is not None else entry] = entry
        entry.owners += 1
        client.functions[id] = entry

    def disown_function(self, client: ClientState, id: int) -> None:
        """A client forgets a function."""
        entry = client.functions.pop(id, None)
        if entry is not None:
            entry.owners -= 1
            if not entry.owners and not entry.users:
                self.drop_function(entry)

    def drop_function(self, entry: FunctionEntry) -> None:
        for ws in entry.holders:
            ws.functions.discard(entry)
            self.out.append(ForgetFunctions(ws.address, (entry.id,)))
        entry.holders.clear()
        content = entry.data if type(entry.data) is bytes else entry
        self.functions.pop(content, None)

    # --- messages ------------------------------------------------------------------------------------------

    def send_to_worker(self, ws: WorkerState, ts: TaskState) -> None:
        """Put a runnable task on a worker."""
        prefix = ts.group.prefix
        cost = prefix.duration_average
        if cost is None:
            cost = self.settings.unknown_task_duration_s
        ws.start_processing(ts, cost)
        ts.run_id = run_id = next(self._run_ids)
        if ts.actor:
            ws.actors.add(ts)
        self.set_state(ts, "processing")
        self.send_task(ws, ts, run_id)

    def move_to_worker(self, ws: WorkerState, ts: TaskState) -> None:
        """Put a processing task on another worker; the one that had it has let go of it."""
        victim = ts.processing_on
        assert victim is not None, "a processing task is on a worker"
        cost = victim.processing[ts]
        victim.stop_processing(ts)
        ws.start_processing(ts, cost)
        ts.run_id = run_id = next(self._run_ids)
        self.send_task(ws, ts, run_id)

    def send_task(self, ws: WorkerState, ts: TaskState, run_id: int) -> None:
        """Tell a worker to run a task."""
        spec = ts.run_spec
        if type(spec) is tuple and spec[0] not in ws.functions:
            entry = spec[0]
            ws.functions.add(entry)
            entry.holders.add(ws)
            self.out.append(DefineFunction(ws.address, entry.id, entry.data))
        deps = None
        if ts.dependencies:
            size = self.settings.default_data_size
            deps = [
                (dts.key, dts.get_nbytes(size), tuple([w.address for w in dts.who_has]))
                for dts in ts.dependencies
            ]
        assert ts.priority is not None, "priorities are given when a task is made runnable"
        self.out.append(
            ComputeTask(
                ws.address,
                ts.key,
                run_id,
                ts.priority,
                spec,
                deps,
                ts.resource_restrictions,
                ts.actor,
                ts.annotations,
            )
        )

    def free_on(self, ws: WorkerState, ts: TaskState) -> None:
        self.out.append(FreeKeys(ws.address, (ts.key,)))

    def report_in_memory(self, ts: TaskState) -> None:
        for cs in ts.who_wants:
            if not cs.pseudo:
                self.out.append(ReportInMemory(cs.client_key, ts.key, ts.type_pickle))

    def report_erred(self, ts: TaskState) -> None:
        blame = ts.exception_blame or ts
        for cs in ts.who_wants:
            if not cs.pseudo:
                self.out.append(ReportErred(cs.client_key, ts.key, blame.exception, blame.traceback))

    def end_fire_and_forget(self, ts: TaskState) -> None:
        """A task that was only to be carried out has been."""
        cs = self.clients.get(FIRE_AND_FORGET)
        if cs is not None and cs in ts.who_wants:
            cs.unwant(ts)
