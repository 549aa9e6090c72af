"""Graphs arrive: rows become tasks (docs/protocol.md, ``graph-table``).

An intake may come in several messages, and its work starts with the first one. While more is to come a pseudo client holds
what has arrived, so nothing that finishes early is released and computed again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from distributed.scheduler_state_machine import events as ev
from distributed.scheduler_state_machine.core import MachineCore
from distributed.scheduler_state_machine.instructions import ReportCancelled, ReportErred, ReportInMemory
from distributed.scheduler_state_machine.state import ClientState, Intake, TaskState
from distributed.scheduler_state_machine.transitions import drain

Key = Any

#: tasks that a task submits come before everything of the same user priority that is not its own
SUBTASK_ADVANCE = 0.01

DEFAULT_PORT_SCHEME = "tcp://"


class MalformedGraph(ValueError):
    """Rows that contradict each other or refer to nothing; says which."""


class IntakeHandlers(MachineCore):
    """Handlers of graph events."""

    _generation = 0.0
    _generation_time = float("-inf")

    # --- functions -----------------------------------------------------------------------------------------

    def _on_functions_defined(self, event: ev.FunctionsDefined) -> None:
        cs = self.clients.get(event.client)
        if cs is not None:
            for id, data in event.functions:
                self.define_function(cs, id, data)

    def _on_functions_forgotten(self, event: ev.FunctionsForgotten) -> None:
        cs = self.clients.get(event.client)
        if cs is not None:
            for id in event.ids:
                self.disown_function(cs, id)

    # --- intakes -------------------------------------------------------------------------------------------

    def _next_generation(self, fifo_timeout: float, submitting_task: Key | None) -> float:
        """Submissions within `fifo_timeout` share a generation; what a task submits comes ahead."""
        parent = None if submitting_task is None else self.tasks.get(submitting_task)
        if parent is not None and parent.priority is not None:
            return parent.priority[0] - SUBTASK_ADVANCE
        if self.now - self._generation_time >= fifo_timeout:
            self._generation += 1
            self._generation_time = self.now
        return self._generation

    def _on_graph_started(self, event: ev.GraphStarted | ev.GraphAdded) -> None:
        cs = self.clients.get(event.client)
        if cs is None:
            return
        generation = self._next_generation(event.fifo_timeout, event.submitting_task)
        cs.intakes[event.intake] = Intake(event.intake, generation, event.user_priority, event.stimulus_id)

    def _on_graph_added(self, event: ev.GraphAdded) -> None:
        cs = self.clients.get(event.client)
        if cs is None:
            return
        self._on_graph_started(event)
        intake = cs.intakes[event.intake]
        self._add_rows(cs, intake, event.rows, event.wants)
        drain(self)
        self._commit(cs, intake, event.keys)

    def _on_graph_rows(self, event: ev.GraphRowsAdded) -> None:
        cs = self.clients.get(event.client)
        intake = None if cs is None else cs.intakes.get(event.intake)
        if cs is None or intake is None:
            # aborted, or the client is gone: what it still sends has no meaning
            return
        self.stimulus_id = intake.stimulus_id
        if not event.last and intake.holder is None:
            intake.holder = ClientState(
                f"intake-{cs.client_key}-{intake.number}", next(self._serials), pseudo=True
            )
        self._add_rows(cs, intake, event.rows, event.wants)

    def _add_rows(self, cs: ClientState, intake: Intake, rows: Sequence[ev.Row], wants: Any) -> None:
        tasks = self.tasks
        known_rows = intake.rows
        wants_all = wants is True
        wanted = frozenset() if wants_all else frozenset(wants)
        generation, user_priority = intake.generation, -intake.user_priority
        holder = intake.holder
        new: list[TaskState] = []
        functions = cs.functions
        # most tasks of most graphs: nothing to wait for, nothing special. They go where the transitions would bring them, unless somebody watches those
        straight = not self.observers and self.settings.worker_saturation != math.inf
        for i, (key, spec, deps, order, extra) in enumerate(rows):
            ts = tasks.get(key)
            if type(spec) is tuple:
                entry = functions.get(spec[0])
                if entry is None:
                    raise MalformedGraph(
                        f"the row of {key!r} uses function {spec[0]!r}, which was not defined"
                    )
                spec = (entry, spec[1], spec[2])
            if deps:
                self._check_numbers(key, deps, len(known_rows))
            if ts is None:
                ts = self.new_task(key, spec)
                # filed first: if the rest of the row is malformed, aborting the intake finds the task
                known_rows.append(ts)
                if extra is None:
                    ts.priority = (user_priority, generation, order)
                    if deps:
                        self._link(ts, deps, known_rows, None)
                else:
                    self._link(ts, deps, known_rows, extra)
                    priority = user_priority
                    annotations = extra.get("annotations")
                    if annotations:
                        priority = self._annotate(ts, annotations, user_priority)
                    ts.actor = bool(extra.get("actor"))
                    ts.priority = (priority, generation, order)
                if holder is not None:
                    holder.want(ts)
                if wants_all or i in wanted:
                    cs.want(ts)
                    intake.wanted.append(key)
                if straight and not deps and extra is None and ts.who_wants:
                    self.enqueue(ts)
                    self.refill_all = True
                else:
                    new.append(ts)
            else:
                known_rows.append(ts)
                self._meet_again(ts, spec, deps, known_rows, extra, (user_priority, generation, order), new)
                if holder is not None:
                    holder.want(ts)
                if wants_all or i in wanted:
                    cs.want(ts)
                    intake.wanted.append(key)
                    self._report_done(cs, ts)
        recommendations = self.recommendations
        # drained last-in first-out: the most urgent comes last
        for ts in reversed(new):
            if ts.state == "released" and (ts.who_wants or ts.waiters):
                recommendations[ts] = "waiting"

    @staticmethod
    def _check_numbers(key: Key, deps: Any, n_known: int) -> None:
        for number in deps:
            if not 0 <= number < n_known:
                raise MalformedGraph(f"the row of {key!r} depends on row {number}, which has not arrived")

    def _link(
        self, ts: TaskState, deps: Any, known_rows: list[TaskState], extra: Mapping[str, Any] | None
    ) -> None:
        if deps:
            for number in deps:
                other = known_rows[number]
                if other.state == "forgotten":
                    # cancelled, or its data was lost, since its message arrived
                    ts.has_lost_dependencies = True
                else:
                    ts.add_dependency(other)
        if extra is not None:
            for key in extra.get("keys", ()):
                other = self.tasks.get(key)
                if other is None:
                    ts.has_lost_dependencies = True
                else:
                    ts.add_dependency(other)

    def _meet_again(
        self,
        ts: TaskState,
        spec: Any,
        deps: Any,
        known_rows: list[TaskState],
        extra: Mapping[str, Any] | None,
        priority: tuple[float, ...],
        new: list[TaskState],
    ) -> None:
        """A row whose key is known: the old definition stays; a task that had none gains it."""
        if ts.run_spec is None and ts.state != "memory":
            ts.run_spec = spec
            if type(spec) is tuple:
                spec[0].users += 1
            self._link(ts, deps, known_rows, extra)
        if ts.priority is None:
            ts.priority = priority
        if ts.state == "released":
            new.append(ts)

    def _report_done(self, cs: ClientState, ts: TaskState) -> None:
        if ts.state == "memory":
            self.out.append(ReportInMemory(cs.client_key, ts.key, ts.type_pickle))
        elif ts.state == "erred":
            blame = ts.exception_blame or ts
            self.out.append(ReportErred(cs.client_key, ts.key, blame.exception, blame.traceback))

    def _annotate(self, ts: TaskState, annotations: Mapping[str, Any], user_priority: float) -> float:
        """Apply annotations; returns the first element of the priority."""
        ts.annotations = dict(annotations)
        workers = annotations.get("workers", annotations.get("restrictions"))
        if workers is not None:
            if isinstance(workers, (str, int)):
                workers = (workers,)
            for worker in workers:
                if worker in self.aliases or (isinstance(worker, str) and "://" in worker):
                    ts.worker_restrictions = (ts.worker_restrictions or set()) | {worker}
                elif isinstance(worker, str) and worker.rpartition(":")[2].isdigit() and ":" in worker:
                    ts.worker_restrictions = (ts.worker_restrictions or set()) | {
                        DEFAULT_PORT_SCHEME + worker
                    }
                elif isinstance(worker, str):
                    ts.host_restrictions = (ts.host_restrictions or set()) | {worker}
                    # it may also be the name of a worker that is still to come
                    ts.worker_restrictions = (ts.worker_restrictions or set()) | {worker}
                else:
                    ts.worker_restrictions = (ts.worker_restrictions or set()) | {worker}
        ts.loose_restrictions = bool(
            annotations.get("allow_other_workers", annotations.get("loose_restrictions", False))
        )
        resources = annotations.get("resources")
        if resources:
            ts.resource_restrictions = dict(resources)
        ts.retries = int(annotations.get("retries") or 0)
        priority = annotations.get("priority")
        return user_priority if priority is None else -priority

    def _on_graph_committed(self, event: ev.GraphCommitted) -> None:
        cs = self.clients.get(event.client)
        intake = None if cs is None else cs.intakes.get(event.intake)
        if cs is None or intake is None:
            return
        self.stimulus_id = intake.stimulus_id
        self._commit(cs, intake, event.keys)

    def _commit(self, cs: ClientState, intake: Intake, keys: Collection[Key]) -> None:
        lost = []
        for key in keys:
            ts = self.tasks.get(key)
            if ts is None:
                lost.append(key)
                continue
            cs.want(ts)
            if ts.state == "released":
                self.recommend(ts, "waiting")
            self._report_done(cs, ts)
        if lost:
            self.out.append(ReportCancelled(cs.client_key, tuple(lost), "lost dependencies", None))
        for ts in intake.rows:
            if ts.state == "released" and not ts.who_wants and not ts.dependents:
                # nobody wants it, and now it is known that nothing needs it
                self.recommend(ts, "forgotten")
        self.end_intake(cs, intake)

    def end_intake(self, cs: ClientState, intake: Intake) -> None:
        """Nothing more will come: what only the intake held is released."""
        del cs.intakes[intake.number]
        holder = intake.holder
        if holder is None:
            return
        drain(self)
        for ts in list(holder.wants_what):
            holder.unwant(ts)
            self.maybe_let_go(ts)

    def _on_graph_aborted(self, event: ev.GraphAborted) -> None:
        cs = self.clients.get(event.client)
        if cs is None:
            return
        intake = cs.intakes.get(event.intake)
        keys = dict.fromkeys(event.keys)
        if intake is not None:
            keys.update(dict.fromkeys(intake.wanted))
            rows = list(intake.rows)
            wanted = set(intake.wanted)
            self.end_intake(cs, intake)
            for ts in rows:
                # a row may also be an older key that the client still holds: it loses what it is told that it loses
                if ts.key in wanted and cs in ts.who_wants:
                    cs.unwant(ts)
                self.maybe_let_go(ts)
        if event.exception is None:
            self.out.append(ReportCancelled(cs.client_key, tuple(keys), event.reason, None))
        else:
            for key in keys:
                self.out.append(ReportErred(cs.client_key, key, event.exception, event.traceback))
