"""`WorkerMachine`: what runs here, what is fetched, what is reported. Knows keys and sizes, never values.

A task to run goes *waiting* (for data) -> *ready* (or *constrained*, when it needs resources) -> *executing* -> *memory* or *error*. Data goes *fetch* ->
*flight* -> *memory*, or *missing* when nobody is known to have it. What cannot be interrupted - an execution, a transfer - and is not wanted any
more is *cancelled* until it ends; *resumed* when something else is wanted of it meanwhile. The scheduler sees these names in stories and steal responses.

The shell keeps its threads fed from a queue of tasks that were offered (`Execute`), somewhat more of them than there are threads when tasks
are short. Taking one back is the shell's: events say in ``withdrawn`` which offers it won back before a thread did.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from heapq import heappop, heappush
from random import Random
from typing import Any

from distributed.worker_state_machine import events as ev
from distributed.worker_state_machine.instructions import (
    DropData,
    Execute,
    GatherData,
    Instruction,
    SendAddKeys,
    SendLongRunning,
    SendRefreshRequest,
    SendReleased,
    SendReschedule,
    SendStealResponse,
    SendTaskErred,
    SendTaskFinished,
)
from distributed.worker_state_machine.invariants import check
from distributed.worker_state_machine.settings import WorkerSettings
from distributed.worker_state_machine.state import NONE, TaskState

Key = Any

#: what is offered ahead of the threads must last for one trip through the loop, seconds
OFFER_AHEAD_S = 0.002
OFFER_AHEAD_MAX = 64
#: weight of the newest duration in the average
SMOOTHING = 0.2

#: where a task can be when it is offered or runs
RUNNING_STATES = ("executing", "long-running")


class InvalidTransition(Exception):
    """A bug: this cannot happen to a task in this state. Carries its story."""

    def __init__(self, key: Key, start: str, finish: str, story: list[Any]) -> None:
        super().__init__(key, start, finish, story)
        self.key = key
        self.start = start
        self.finish = finish
        self.story = story


#: direct edges between states; everything else is a bug
EDGES: dict[str, frozenset[str]] = {
    "released": frozenset(("waiting", "fetch", "missing", "memory", "forgotten", "error")),
    "waiting": frozenset(("ready", "constrained", "released")),
    "ready": frozenset(("executing", "released")),
    "constrained": frozenset(("executing", "released")),
    "executing": frozenset(("memory", "error", "long-running", "released", "cancelled")),
    "long-running": frozenset(("memory", "error", "released", "cancelled")),
    "memory": frozenset(("released",)),
    "error": frozenset(("released",)),
    "fetch": frozenset(("flight", "missing", "released")),
    "flight": frozenset(("memory", "error", "fetch", "missing", "released", "cancelled")),
    "missing": frozenset(("fetch", "released")),
    "cancelled": frozenset(("released", "executing", "long-running", "resumed", "flight")),
    "resumed": frozenset(
        (
            "memory",
            "error",
            "released",
            "executing",
            "long-running",
            "cancelled",
            "fetch",
            "waiting",
            "flight",
        )
    ),
}


class WorkerMachine:
    """The state of one worker.

    Parameters
    ----------
    seed
        For the choice between peers; the same seed and events give the same instructions.
    """

    def __init__(
        self,
        settings: WorkerSettings | None = None,
        *,
        address: str = "",
        nthreads: int = 1,
        resources: Mapping[str, float] | None = None,
        seed: int | Random = 0,
    ) -> None:
        self.settings = settings or WorkerSettings()
        self.address = address
        self.nthreads = nthreads
        self.random = seed if isinstance(seed, Random) else Random(seed)
        self.tasks: dict[Key, TaskState] = {}
        #: runnable, by priority: (priority, tie-breaker, run_id, task); entries of tasks that left the state are skipped when met
        self.ready: list[tuple[Any, int, TaskState]] = []
        self.constrained: list[tuple[Any, int, TaskState]] = []
        #: offered or running, long-running ones excluded
        self.executing: set[TaskState] = set()
        self.long_running: set[TaskState] = set()
        self.total_resources: dict[str, float] = dict(resources or {})
        self.available_resources: dict[str, float] = dict(resources or {})
        #: peer -> tasks in state fetch that it holds
        self.needed_from: dict[str, dict[TaskState, None]] = {}
        #: peer -> keys on their way from it
        self.in_flight_workers: dict[str, tuple[Key, ...]] = {}
        self.inflight_bytes = 0
        #: peer -> when it may be asked again, seconds
        self.busy_until: dict[str, float] = {}
        self.missing: dict[TaskState, None] = {}
        self.running = True
        #: bytes in memory
        self.nbytes = 0
        #: seconds that an execution takes; None: nothing has run
        self.average_duration: float | None = None
        #: (key, start, finish, stimulus_id, time)
        self.log: deque[tuple[Any, ...]] = deque(maxlen=self.settings.story_length)
        self.observers: list[Callable[..., None]] = []
        self.now = 0.0
        self.stimulus_id = ""
        self.out: list[Instruction] = []
        self._next_find_missing: float | None = None
        #: later arrivals of equal priority run first
        self._tie_breaker = 0
        self._handlers: dict[type, Callable[[Any], None]] = {
            ev.ComputeTask: self._on_compute_task,
            ev.FreeKeys: self._on_free_keys,
            ev.RemoveReplicas: self._on_remove_replicas,
            ev.AcquireReplicas: self._on_acquire_replicas,
            ev.RefreshWhoHas: self._on_refresh_who_has,
            ev.PeerRemoved: self._on_peer_removed,
            ev.StealRequested: self._on_steal_requested,
            ev.Paused: self._on_paused,
            ev.Resumed: self._on_resumed,
            ev.Executed: self._on_executed,
            ev.ExecutionFailed: self._on_execution_failed,
            ev.ExecutionRescheduled: self._on_rescheduled,
            ev.Seceded: self._on_seceded,
            ev.GatherDone: self._on_gather_done,
            ev.DataStored: self._on_data_stored,
            ev.DeadlineReached: self._on_deadline,
        }

    # --- driving -------------------------------------------------------------------------------------------

    def handle(self, event: ev.Event, *, now: float) -> list[Instruction]:
        """React to one event; returns what is to be done, in order."""
        self.feed(event, now=now)
        return self.settle()

    def feed(self, event: ev.Event, *, now: float) -> None:
        """React to one event of a burst; `settle` ends the burst."""
        self.now = now
        self.stimulus_id = getattr(event, "stimulus_id", "") or self.stimulus_id
        self._handlers[type(event)](event)

    def settle(self) -> list[Instruction]:
        """Offer what can run, fetch what is needed; returns all instructions since the last time."""
        if self.running:
            if self.ready or self.constrained:
                self._offer()
            if self.needed_from:
                self._start_transfers()
        out, self.out = self.out, []
        if self.settings.validate:
            check(self)
        return out

    def next_deadline(self) -> float | None:
        """When the next `DeadlineReached` is due, seconds; None if there is nothing to wait for."""
        times = []
        if self.missing:
            if self._next_find_missing is None:
                self._next_find_missing = self.now + self.settings.find_missing_s
            times.append(self._next_find_missing)
        else:
            self._next_find_missing = None
        times.extend(until for worker, until in self.busy_until.items() if worker in self.needed_from)
        return min(times, default=None)

    def story(self, *keys: Key) -> list[Any]:
        """Remembered transitions of these keys."""
        wanted = {key.key if isinstance(key, TaskState) else key for key in keys}
        return [record for record in self.log if record[0] in wanted or record[3] in wanted]

    def set_state(self, ts: TaskState, state: str) -> None:
        """One step along an edge."""
        start = ts.state
        if state not in EDGES[start]:
            raise InvalidTransition(ts.key, start, state, self.story(ts.key))
        ts.state = state
        self.log.append((ts.key, start, state, self.stimulus_id, self.now))
        if self.observers:
            for observer in self.observers:
                observer(ts.key, start, state)

    # --- pieces --------------------------------------------------------------------------------------------

    def _ensure_task(self, key: Key, priority: tuple[float, ...]) -> TaskState:
        ts = self.tasks.get(key)
        if ts is None:
            ts = self.tasks[key] = TaskState(key)
            ts.priority = priority
        return ts

    def _forget_if_unneeded(self, ts: TaskState) -> None:
        if ts.state == "released" and not ts.dependents and self.tasks.get(ts.key) is ts:
            self.log.append((ts.key, "released", "forgotten", self.stimulus_id, self.now))
            if self.observers:
                for observer in self.observers:
                    observer(ts.key, "released", "forgotten")
            ts.state = "forgotten"
            del self.tasks[ts.key]

    def _set_holders(self, ts: TaskState, holders: Collection[str]) -> None:
        """Replace who is known to hold a task's data."""
        fresh = {worker for worker in holders if worker != self.address}
        if ts.state == "fetch":
            for worker in ts.who_has - fresh:
                self._not_needed_from(ts, worker)
            for worker in fresh - ts.who_has:
                self.needed_from.setdefault(worker, {})[ts] = None
        ts.who_has = fresh

    def _not_needed_from(self, ts: TaskState, worker: str) -> None:
        needed = self.needed_from.get(worker)
        if needed is not None:
            needed.pop(ts, None)
            if not needed:
                del self.needed_from[worker]

    def _to_fetch(self, ts: TaskState) -> None:
        """Its data is needed here: from *released*, *flight* or *missing* to *fetch*, or to *missing* if nobody has it."""
        if not ts.who_has:
            if ts.state != "missing":
                self.set_state(ts, "missing")
                self.missing[ts] = None
            return
        if ts.state == "missing":
            del self.missing[ts]
        self.set_state(ts, "fetch")
        for worker in ts.who_has:
            self.needed_from.setdefault(worker, {})[ts] = None

    def _leave_fetch(self, ts: TaskState) -> None:
        for worker in ts.who_has:
            self._not_needed_from(ts, worker)

    def _need_data(self, ts: TaskState) -> None:
        """A dependent needs this task's data here."""
        state = ts.state
        if state == "released":
            self._to_fetch(ts)
        elif state == "cancelled":
            if ts.previous == "flight":
                self.set_state(ts, "flight")
                ts.previous = None
            else:
                self.set_state(ts, "resumed")
                ts.next = "fetch"
        elif state == "error":
            self.set_state(ts, "released")
            self._to_fetch(ts)

    def _detach(self, ts: TaskState) -> None:
        """The task no longer needs its dependencies."""
        deps = ts.dependencies
        if not deps:
            return
        ts.dependencies = ts.waiting_for = NONE
        for dts in deps:
            dts.dependents.discard(ts)  # type: ignore[union-attr]
            if dts.dependents:
                continue
            # data that nobody needs: what is here stays until the scheduler frees it
            if dts.state in ("fetch", "missing", "flight", "released") or (
                dts.state == "resumed" and dts.next == "fetch"
            ):
                self._release(dts)

    def _release(self, ts: TaskState, withdrawn: bool = False) -> None:
        """Bring a task to *released*, or *cancelled* if that has to wait for something to end; then forget it if nobody needs it."""
        state = ts.state
        if state in ("executing", "long-running") and not withdrawn:
            self.set_state(ts, "cancelled")
            ts.previous = state
            return
        if state == "flight":
            self.set_state(ts, "cancelled")
            ts.previous = "flight"
            return
        if state == "cancelled":
            return
        if state == "resumed":
            self.set_state(ts, "cancelled")
            ts.next = None
            self._detach(ts)
            return
        if state == "executing":
            self.executing.discard(ts)
            self._return_resources(ts)
        elif state == "memory":
            self.nbytes -= ts.nbytes
            self.out.append(DropData((ts.key,)))
        elif state == "fetch":
            self._leave_fetch(ts)
        elif state == "missing":
            del self.missing[ts]
        if state != "released":
            self.set_state(ts, "released")
        ts.result = ts.failure = None
        self._detach(ts)
        if state == "memory" and ts.dependents:
            self._lack_again(ts)
        self._forget_if_unneeded(ts)

    def _lack_again(self, ts: TaskState) -> None:
        """Data was freed that tasks here still count on. The scheduler is about to free those too, or will be asked for the data."""
        needed = False
        for dts in ts.dependents:
            if dts.state in ("ready", "constrained"):
                self.set_state(dts, "released")
                self.set_state(dts, "waiting")
            if dts.state == "waiting" or (dts.state == "resumed" and dts.next == "waiting"):
                if type(dts.waiting_for) is not set:
                    dts.waiting_for = set()
                dts.waiting_for.add(ts)
                needed = True
        if needed:
            self._to_fetch(ts)

    def _return_resources(self, ts: TaskState) -> None:
        if ts.resources:
            for name, amount in ts.resources.items():
                self.available_resources[name] += amount

    def _into_memory(self, ts: TaskState, nbytes: int) -> None:
        """The value is here: start those who waited for it."""
        if ts.state == "fetch":
            self._leave_fetch(ts)
        elif ts.state == "missing":
            del self.missing[ts]
        if ts.state in ("fetch", "missing", "waiting", "ready", "constrained", "error"):
            self.set_state(ts, "released")
        self.set_state(ts, "memory")
        ts.previous = ts.next = None
        ts.nbytes = nbytes
        self.nbytes += nbytes
        ts.coming_from = None
        for dts in ts.dependents:
            waiting_for = dts.waiting_for
            if waiting_for and ts in waiting_for:
                waiting_for.discard(ts)  # type: ignore[union-attr]
                if not waiting_for and dts.state == "waiting":
                    self._to_ready(dts)

    def _to_ready(self, ts: TaskState) -> None:
        if ts.resources:
            self.set_state(ts, "constrained")
            heappush(self.constrained, (ts.priority, self._next_tie(), ts))
        else:
            self.set_state(ts, "ready")
            heappush(self.ready, (ts.priority, self._next_tie(), ts))

    def _next_tie(self) -> int:
        self._tie_breaker -= 1
        return self._tie_breaker

    # --- running -------------------------------------------------------------------------------------------

    def _slots(self) -> int:
        """How many tasks may be offered or running."""
        average = self.average_duration
        if average is None or average >= OFFER_AHEAD_S:
            return self.nthreads
        ahead = (
            OFFER_AHEAD_MAX if average * OFFER_AHEAD_MAX <= OFFER_AHEAD_S else int(OFFER_AHEAD_S / average)
        )
        return self.nthreads * (1 + ahead)

    def _offer(self) -> None:
        """Offer runnable tasks to the threads, by priority; constrained ones when their resources are free."""
        ready, constrained, executing = self.ready, self.constrained, self.executing
        free = self._slots() - len(executing)
        while free > 0:
            while ready and ready[0][2].state != "ready":
                heappop(ready)
            while constrained and constrained[0][2].state != "constrained":
                heappop(constrained)
            heap = ready
            if constrained and (not ready or constrained[0][0] < ready[0][0]):
                needed = constrained[0][2].resources or {}
                fits = len(executing) < self.nthreads and all(
                    self.available_resources.get(n, 0) >= a for n, a in needed.items()
                )
                if fits:
                    for name, amount in needed.items():
                        self.available_resources[name] -= amount
                    heap = constrained
            if not heap:
                return
            ts = heappop(heap)[2]
            self.set_state(ts, "executing")
            executing.add(ts)
            free -= 1
            deps = [dts.key for dts in ts.dependencies] if ts.dependencies else ()
            self.out.append(Execute(ts.key, ts.run_id, ts.run_spec, deps, ts.actor, ts.annotations))

    def _on_compute_task(self, event: ev.ComputeTask) -> None:
        key, run_id, priority, spec, deps, resources, actor, annotations, _ = event
        ts = self.tasks.get(key)
        if ts is None:
            ts = self.tasks[key] = TaskState(key)
        ts.run_id = run_id
        state = ts.state
        if state != "released":
            if state in ("waiting", "ready", "constrained", "executing", "long-running"):
                return
            if state == "memory":
                self.out.append(SendTaskFinished(self._known_result(ts)))
                return
            if (state == "cancelled" and ts.previous != "flight") or (
                state == "resumed" and ts.next == "fetch"
            ):
                previous = ts.previous
                assert previous is not None, "what is cancelled is still going on"
                self.set_state(ts, previous)
                ts.previous = ts.next = None
                if previous == "long-running":
                    self.out.append(SendLongRunning(key, run_id, None))
                return
            if state == "resumed":
                return
        ts.priority = priority
        ts.run_spec = spec
        ts.resources = resources
        ts.actor = actor
        ts.annotations = annotations
        if state == "cancelled" or state == "flight":
            if state == "flight":
                self.set_state(ts, "cancelled")
                ts.previous = "flight"
            self.set_state(ts, "resumed")
            ts.next = "waiting"
            self._attach(ts, deps)
            return
        if state == "fetch":
            self._leave_fetch(ts)
        elif state == "missing":
            del self.missing[ts]
        if state != "released":
            self.set_state(ts, "released")
        self.set_state(ts, "waiting")
        if deps:
            self._attach(ts, deps)
        if not ts.waiting_for:
            self._to_ready(ts)

    def _attach(self, ts: TaskState, deps: Collection[tuple[Key, int, Collection[str]]]) -> None:
        """Link a task to what it needs, and see that it comes."""
        if not deps:
            return
        dependencies = ts.dependencies = set()
        waiting_for = set()
        for key, nbytes, holders in deps:
            dts = self._ensure_task(key, ts.priority)
            dependencies.add(dts)
            if type(dts.dependents) is not set:
                dts.dependents = set()
            dts.dependents.add(ts)
            if dts.state == "memory":
                continue
            if nbytes >= 0:
                dts.nbytes = nbytes
            if ts.priority < dts.priority:
                dts.priority = ts.priority
            self._set_holders(dts, holders)
            if dts.state == "missing" and dts.who_has:
                self._to_fetch(dts)
            else:
                self._need_data(dts)
            waiting_for.add(dts)
        ts.waiting_for = waiting_for

    def _known_result(self, ts: TaskState) -> ev.Executed:
        """What to report of a value that is here already."""
        result: ev.Executed | None = ts.result
        if result is None:
            return ev.Executed(
                ts.key, ts.run_id, ts.nbytes, "object", None, None, self.now, self.now, None, None, None
            )
        return result._replace(run_id=ts.run_id)

    def _execution_ended(self, ts: TaskState) -> None:
        if ts in self.executing:
            self.executing.discard(ts)
        else:
            self.long_running.discard(ts)
        self._return_resources(ts)

    def _on_executed(self, event: ev.Executed) -> None:
        ts = self.tasks.get(event.key)
        assert ts is not None, "what runs is known until it ends"
        duration = event.stop - event.start
        average = self.average_duration
        self.average_duration = duration if average is None else average + SMOOTHING * (duration - average)
        self._execution_ended(ts)
        state = ts.state
        if state == "executing" or state == "long-running":
            ts.result = event
            self._into_memory(ts, event.nbytes)
            self._detach(ts)
            self.out.append(SendTaskFinished(event))
        elif state == "resumed":
            self._into_memory(ts, event.nbytes)
            self._detach(ts)
            self.out.append(SendAddKeys((event.key,)))
        elif state == "cancelled":
            self.out.append(DropData((event.key,)))
            self._end_cancelled(ts)
        else:
            raise InvalidTransition(ts.key, state, "memory", self.story(ts.key))

    def _end_cancelled(self, ts: TaskState) -> None:
        """What was cancelled has ended."""
        self.set_state(ts, "released")
        ts.previous = ts.next = None
        self._detach(ts)
        self._forget_if_unneeded(ts)

    def _on_execution_failed(self, event: ev.ExecutionFailed) -> None:
        ts = self.tasks.get(event.key)
        assert ts is not None, "what runs is known until it ends"
        self._execution_ended(ts)
        if ts.state in RUNNING_STATES:
            self.set_state(ts, "error")
            ts.failure = event
            self._detach(ts)
            self.out.append(SendTaskErred(event))
        else:
            self._end_of_unwanted_run(ts)

    def _end_of_unwanted_run(self, ts: TaskState) -> None:
        """A cancelled or resumed execution has ended without a value."""
        if ts.state == "resumed":
            self.set_state(ts, "released")
            ts.previous = ts.next = None
            self._detach(ts)
            self._to_fetch(ts)
        elif ts.state == "cancelled":
            self._end_cancelled(ts)
        else:
            raise InvalidTransition(ts.key, ts.state, "error", self.story(ts.key))

    def _on_rescheduled(self, event: ev.ExecutionRescheduled) -> None:
        ts = self.tasks.get(event.key)
        assert ts is not None, "what runs is known until it ends"
        self._execution_ended(ts)
        if ts.state in RUNNING_STATES:
            self.set_state(ts, "released")
            self._detach(ts)
            self.out.append(SendReschedule(event.key))
            self._forget_if_unneeded(ts)
        else:
            self._end_of_unwanted_run(ts)

    def _on_seceded(self, event: ev.Seceded) -> None:
        ts = self.tasks.get(event.key)
        if ts is None or ts not in self.executing:
            return
        self.executing.discard(ts)
        self.long_running.add(ts)
        if ts.state == "executing":
            self.set_state(ts, "long-running")
            self.out.append(SendLongRunning(event.key, ts.run_id, event.compute_duration))
        else:
            ts.previous = "long-running"

    # --- letting go ----------------------------------------------------------------------------------------

    def _on_free_keys(self, event: ev.FreeKeys) -> None:
        tasks, withdrawn = self.tasks, event.withdrawn
        for key in event.keys:
            ts = tasks.get(key)
            if ts is None:
                continue
            if ts.state == "memory":
                self.out.append(SendReleased(key, True))
            self._release(ts, key in withdrawn)

    def _on_remove_replicas(self, event: ev.RemoveReplicas) -> None:
        rejected = []
        for key in event.keys:
            ts = self.tasks.get(key)
            if ts is None or ts.state != "memory":
                continue
            if any(
                dts.state in RUNNING_STATES or dts.state in ("ready", "constrained", "waiting")
                for dts in ts.dependents
            ):
                # a task here is about to use it: keep it and say so
                rejected.append(key)
                continue
            self.out.append(SendReleased(key, False))
            self._release(ts)
        if rejected:
            self.out.append(SendAddKeys(tuple(rejected)))

    def _on_steal_requested(self, event: ev.StealRequested) -> None:
        ts = self.tasks.get(event.key)
        if ts is None:
            self.out.append(SendStealResponse(event.key, None))
            return
        state = "ready" if event.withdrawn and ts.state == "executing" else ts.state
        self.out.append(SendStealResponse(event.key, state))
        if state in ("waiting", "ready", "constrained"):
            self._release(ts, event.withdrawn)

    def _on_paused(self, event: ev.Paused) -> None:
        self.running = False

    def _on_resumed(self, event: ev.Resumed) -> None:
        self.running = True

    # --- data ----------------------------------------------------------------------------------------------

    def _on_acquire_replicas(self, event: ev.AcquireReplicas) -> None:
        for key, holders in event.who_has.items():
            ts = self._ensure_task(key, (1.0,))
            if ts.state == "memory":
                continue
            ts.nbytes = event.nbytes.get(key, ts.nbytes)
            self._set_holders(ts, holders)
            self._need_data(ts)

    def _on_refresh_who_has(self, event: ev.RefreshWhoHas) -> None:
        for key, holders in event.who_has.items():
            ts = self.tasks.get(key)
            if ts is None:
                continue
            self._set_holders(ts, holders)
            if ts.state == "missing" and ts.who_has:
                self._to_fetch(ts)
            elif ts.state == "fetch" and not ts.who_has:
                self._to_fetch(ts)

    def _on_peer_removed(self, event: ev.PeerRemoved) -> None:
        self._lose_peer(event.worker)

    def _lose_peer(self, worker: str) -> None:
        """A peer is gone: nobody counts on its data any more."""
        self.busy_until.pop(worker, None)
        needed = self.needed_from.pop(worker, {})
        for ts in self.tasks.values():
            if worker in ts.who_has:
                ts.who_has = ts.who_has - {worker}
        for ts in needed:
            if ts.state == "fetch" and not ts.who_has:
                self._to_fetch(ts)

    def _start_transfers(self) -> None:
        """Ask peers for data: one request per peer at a time, most urgent keys first, peers in random order."""
        settings = self.settings
        candidates = [
            w
            for w in self.needed_from
            if w not in self.in_flight_workers and self.busy_until.get(w, 0.0) <= self.now
        ]
        if not candidates:
            return
        if len(candidates) > 1:
            self.random.shuffle(candidates)
        for worker in candidates:
            if (
                self.inflight_bytes > settings.gather_free_bytes
                and len(self.in_flight_workers) >= settings.connections_outgoing
            ):
                return
            needed = self.needed_from.get(worker)
            if not needed:
                continue
            room = min(settings.gather_bytes_max, settings.inflight_bytes_max - self.inflight_bytes)
            chosen: list[TaskState] = []
            size = 0
            for ts in sorted(needed, key=lambda ts: ts.priority):
                nbytes = ts.get_nbytes()
                if (chosen and size + nbytes > room) or (
                    not chosen and nbytes > room and self.inflight_bytes
                ):
                    break
                chosen.append(ts)
                size += nbytes
            if not chosen:
                continue
            for ts in chosen:
                self._leave_fetch(ts)
                self.set_state(ts, "flight")
                ts.coming_from = worker
            keys = tuple(ts.key for ts in chosen)
            self.in_flight_workers[worker] = keys
            self.inflight_bytes += size
            self.out.append(GatherData(worker, keys))

    def _on_gather_done(self, event: ev.GatherDone) -> None:
        worker = event.worker
        self.in_flight_workers.pop(worker, None)
        if event.status == "busy":
            self.busy_until[worker] = self.now + self.settings.busy_retry_s
        elif event.status == "failed":
            self._lose_peer(worker)
        arrived: list[Key] = []
        asked_elsewhere: list[Key] = []
        for key in event.keys:
            ts = self.tasks.get(key)
            assert ts is not None, "what is in flight is known until it arrives"
            self.inflight_bytes -= ts.get_nbytes()
            ts.coming_from = None
            if key in event.nbytes:
                self._data_arrived(ts, event.nbytes[key], arrived)
            elif key in event.undecodable:
                self._data_undecodable(ts, event.undecodable[key])
            else:
                if event.status == "ok":
                    # it answered, and does not have it
                    ts.who_has = ts.who_has - {worker}
                self._data_did_not_come(ts)
                if (
                    event.status == "busy"
                    and ts.state == "fetch"
                    and all(w in self.busy_until for w in ts.who_has)
                ):
                    asked_elsewhere.append(key)
        self.inflight_bytes = max(self.inflight_bytes, 0) if self.in_flight_workers else 0
        if arrived:
            self.out.append(SendAddKeys(tuple(arrived)))
        if asked_elsewhere:
            self.out.append(SendRefreshRequest(tuple(asked_elsewhere)))

    def _data_arrived(self, ts: TaskState, nbytes: int, arrived: list[Key]) -> None:
        if ts.state == "flight":
            self._into_memory(ts, nbytes)
            arrived.append(ts.key)
        elif ts.state == "resumed":
            # it was to be computed here; having the value is as good
            self._into_memory(ts, nbytes)
            self._detach(ts)
            self.out.append(SendTaskFinished(self._known_result(ts)))
        elif ts.state == "cancelled":
            self.out.append(DropData((ts.key,)))
            self._end_cancelled(ts)
        else:
            raise InvalidTransition(ts.key, ts.state, "memory", self.story(ts.key))

    def _data_undecodable(self, ts: TaskState, failure: ev.ExecutionFailed) -> None:
        """The value arrived and cannot be unpickled: reported once, for the data's own key."""
        if ts.state == "flight":
            self.set_state(ts, "error")
            ts.failure = failure
            self.out.append(SendTaskErred(failure))
        else:
            self._data_did_not_come(ts)

    def _data_did_not_come(self, ts: TaskState) -> None:
        if ts.state == "flight":
            self._to_fetch(ts)
        elif ts.state == "resumed":
            self.set_state(ts, "waiting")
            ts.previous = ts.next = None
            if not ts.waiting_for:
                self._to_ready(ts)
        elif ts.state == "cancelled":
            self._end_cancelled(ts)
        else:
            raise InvalidTransition(ts.key, ts.state, "fetch", self.story(ts.key))

    def _on_data_stored(self, event: ev.DataStored) -> None:
        for key, nbytes in event.nbytes.items():
            ts = self._ensure_task(key, (1.0,))
            if ts.state in RUNNING_STATES or ts.state in ("memory", "flight", "cancelled", "resumed"):
                # what is going on will end by itself, with the same value
                if ts.state == "memory":
                    self.nbytes += nbytes - ts.nbytes
                    ts.nbytes = nbytes
                continue
            self._into_memory(ts, nbytes)
            self._detach(ts)

    def _on_deadline(self, event: ev.DeadlineReached) -> None:
        for worker, until in list(self.busy_until.items()):
            if until <= self.now:
                del self.busy_until[worker]
        if self._next_find_missing is not None and self._next_find_missing <= self.now:
            self._next_find_missing = None
            if self.missing:
                self.out.append(SendRefreshRequest(tuple(ts.key for ts in self.missing)))
