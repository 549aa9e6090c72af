"""`SchedulerMachine`: what each event does.

Driven by one shell: `handle` takes one event and returns the instructions that follow; `next_deadline` says when to send a `DeadlineReached`.
Each handler gathers nothing and awaits nothing; it changes state, recommends, and the end of `handle` drains recommendations and fills free slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from distributed.scheduler_state_machine import events as ev
from distributed.scheduler_state_machine.core import FIRE_AND_FORGET, MachineCore
from distributed.scheduler_state_machine.errors import KilledWorker, NoValidWorkerError, NoWorkerError
from distributed.scheduler_state_machine.instructions import (
    FreeKeys,
    Instruction,
    RefreshWhoHas,
    RemoveReplicas,
    ReportCancelled,
    ReportErred,
    ReportInMemory,
    ReportRestart,
    RequestSteal,
    TellWorkerRemoved,
)
from distributed.scheduler_state_machine.intake import IntakeHandlers
from distributed.scheduler_state_machine.invariants import check
from distributed.scheduler_state_machine.placement import free_slots, share_out
from distributed.scheduler_state_machine.settings import SchedulerSettings
from distributed.scheduler_state_machine.state import ClientState, TaskState, WorkerState
from distributed.scheduler_state_machine.stealing import LEAVING, Steal, free_threads, plan_steals
from distributed.scheduler_state_machine.transitions import drain

Key = Any


class SchedulerMachine(IntakeHandlers, MachineCore):
    """Tasks, workers and clients, and every decision about them.

    Parameters
    ----------
    seed
        For the few choices that chance makes; the same seed and events give the same instructions.
    """

    def __init__(self, settings: SchedulerSettings | None = None, *, seed: int | Random = 0) -> None:
        super().__init__(settings or SchedulerSettings(), seed)
        self._handlers: dict[type, Callable[[Any], None]] = {
            ev.WorkerAdded: self._on_worker_added,
            ev.WorkerRemoved: self._on_worker_removed,
            ev.WorkerStatusChanged: self._on_worker_status,
            ev.WorkerHeartbeat: self._on_heartbeat,
            ev.WorkerResourcesSet: self._on_resources,
            ev.TasksFinished: self._on_tasks_finished,
            ev.TaskErred: self._on_task_erred,
            ev.TaskRescheduled: self._on_rescheduled,
            ev.TaskLongRunning: self._on_long_running,
            ev.BalanceDue: self._on_balance_due,
            ev.StealAnswered: self._on_steal_answered,
            ev.ReplicasAdded: self._on_replicas_added,
            ev.ReplicaReleased: self._on_replica_released,
            ev.WhoHasRequested: self._on_who_has_requested,
            ev.ClientAdded: self._on_client_added,
            ev.ClientRemoved: self._on_client_removed,
            ev.KeysDesired: self._on_keys_desired,
            ev.KeysReleased: self._on_keys_released,
            ev.KeyReportRequested: self._on_report_requested,
            ev.KeysCancelled: self._on_keys_cancelled,
            ev.KeysRetried: self._on_keys_retried,
            ev.ResultsVoided: self._on_results_voided,
            ev.GraphStarted: self._on_graph_started,
            ev.GraphAdded: self._on_graph_added,
            ev.FunctionsDefined: self._on_functions_defined,
            ev.FunctionsForgotten: self._on_functions_forgotten,
            ev.GraphRowsAdded: self._on_graph_rows,
            ev.GraphCommitted: self._on_graph_committed,
            ev.GraphAborted: self._on_graph_aborted,
            ev.DataAdded: self._on_data_added,
            ev.RestrictionsSet: self._on_restrictions_set,
            ev.Restarted: self._on_restarted,
            ev.DeadlineReached: self._on_deadline,
        }

    def handle(self, event: ev.Event, *, now: float) -> list[Instruction]:
        """React to one event at a time `now` (seconds, any epoch, never going back); returns what is to be sent, in order."""
        self.now = now
        self.stimulus_id = getattr(event, "stimulus_id", "")
        self._handlers[type(event)](event)
        if self.recommendations:
            drain(self)
        if self.refill or self.refill_all:
            self._fill_slots()
        out, self.out = self.out, []
        if self.settings.validate:
            check(self)
        return out

    def next_deadline(self) -> float | None:
        """When the next `DeadlineReached` is due; None if there is nothing to wait for."""
        timeout = self.settings.no_workers_timeout_s
        if timeout is None:
            return None
        # both are in the order of time
        since = next(iter(self.unrunnable.values()), None)
        head = self.stranded_head()
        if head is not None and (since is None or head[0] < since):
            since = head[0]
        return None if since is None else since + timeout

    # --- slots ---------------------------------------------------------------------------------------------

    def _fill_slots(self) -> None:
        """Hand queued tasks to the workers that may have free slots."""
        refill_all, self.refill_all = self.refill_all, False
        refill, self.refill = self.refill, set()
        if refill_all:
            refill = self.running
        if self.n_queued:
            self._hand_out(refill)
        # as many tasks as threads need no balance; more may be unevenly spread
        if not self.n_queued and len(self.tasks) > self.total_nthreads and self.settings.work_stealing:
            self.starving = self.starving or any(free_threads(ws) > 0 for ws in refill)

    def _hand_out(self, refill: set[WorkerState]) -> None:
        while self.n_queued:
            head = self.queue_head()
            assert head is not None, "the count of queued tasks is right"
            candidates: Iterable[WorkerState] = (ws for ws in refill if ws in self.running)
            shares = share_out(self, candidates, head.group.prefix)
            if not shares:
                return
            for ws, n in shares:
                prefix = head.group.prefix
                for _ in range(n):
                    ts = self.queue_head()
                    if ts is None:
                        return
                    if ts.group.prefix is not prefix:
                        # slots are counted for one kind of task: short ones must not pull in long ones
                        prefix = ts.group.prefix
                        if free_slots(self, ws, prefix) <= 0:
                            break
                    self.leave_queue()
                    self.send_to_worker(ws, ts)

    # --- workers -------------------------------------------------------------------------------------------

    def _on_worker_added(self, event: ev.WorkerAdded) -> None:
        if event.address in self.workers:
            raise AssertionError(f"worker {event.address} is known; remove it first")
        ws = WorkerState(
            event.address, event.name, event.host, event.nthreads, event.memory_limit, next(self._serials)
        )
        ws.server_id = event.server_id
        ws.nanny = event.nanny
        ws.pid = event.pid
        ws.local_directory = event.local_directory
        ws.services = event.services
        ws.versions = event.versions
        ws.extra = event.extra
        ws.resources = dict(event.resources)
        ws.used_resources = dict.fromkeys(ws.resources, 0.0)
        ws.bandwidth = self.bandwidth
        self.workers[event.address] = ws
        self.stranded.clear()
        self.aliases[event.name] = event.address
        self.total_nthreads += event.nthreads
        self._set_worker_status(ws, event.status)

    def _set_worker_status(self, ws: WorkerState, status: str) -> None:
        ws.status = status
        if status in LEAVING and ws.processing and self.settings.work_stealing:
            # what it has not started can go elsewhere
            self.starving = True
        if status == "running":
            if ws not in self.running:
                self.running.add(ws)
                self.running_order.append(ws)
            self._offer_worker(ws)
        else:
            self._stop_running(ws)

    def _stop_running(self, ws: WorkerState) -> None:
        if ws in self.running:
            self.running.discard(ws)
            self.running_order.remove(ws)

    def _offer_worker(self, ws: WorkerState) -> None:
        """A worker can take work: what nobody could run, and what is queued."""
        for ts in sorted(self.unrunnable, key=lambda ts: ts.priority or (), reverse=True):
            self.recommend(ts, "processing")
        self.refill.add(ws)

    def _on_worker_status(self, event: ev.WorkerStatusChanged) -> None:
        ws = self.workers.get(event.address)
        if ws is not None and ws.status != event.status:
            self._set_worker_status(ws, event.status)

    def _on_resources(self, event: ev.WorkerResourcesSet) -> None:
        ws = self.workers.get(event.address)
        if ws is not None:
            ws.resources.update(event.resources)
            for name in event.resources:
                ws.used_resources.setdefault(name, 0.0)
            if ws in self.running:
                self._offer_worker(ws)

    def _on_heartbeat(self, event: ev.WorkerHeartbeat) -> None:
        ws = self.workers.get(event.address)
        if ws is None:
            return
        if event.bandwidth:
            ws.bandwidth = event.bandwidth
            self.bandwidth += 0.1 * (event.bandwidth - self.bandwidth)
        running = []
        for key, seconds in event.executing.items():
            ts = self.tasks.get(key)
            if ts is not None and ts.processing_on is ws and ts not in ws.long_running:
                running.append(seconds)
                self.known_running[ts] = ts.run_id
        ws.blocked_for = min(running) if len(running) >= ws.nthreads else 0.0
        if ws.blocked_for and free_threads(ws) < 0 and self.settings.work_stealing:
            self.starving = True
        ws.measured_memory(self.now, event.memory, event.spilled, self.settings.recent_to_old_time_s)
        for key, seconds in event.executing.items():
            ts = self.tasks.get(key)
            if ts is None or ts.processing_on is not ws or ts in ws.long_running:
                continue
            prefix = ts.group.prefix
            if prefix.duration_average is not None and seconds > 2 * prefix.duration_average:
                # longer than any estimate: what is known of this kind of task is out of date
                prefix.duration_average = seconds

    def _on_worker_removed(self, event: ev.WorkerRemoved) -> None:
        ws = self.workers.pop(event.address, None)
        if ws is None:
            return
        self._stop_running(ws)
        self.refill.discard(ws)
        if not self.workers:
            for _, _, ts in self.queue:
                if ts.state == "queued":
                    self.strand(ts)
        if self.aliases.get(ws.name) == ws.address:
            del self.aliases[ws.name]
        self.total_nthreads -= ws.nthreads
        for ts in [ts for ts, steal in self.stealing.items() if steal.victim is ws]:
            del self.stealing[ts]
        for entry in ws.functions:
            entry.holders.discard(ws)
        ws.functions.clear()
        self._reconsider_processing(ws, event.expected)
        for ts in list(ws.has_what):
            ws.remove_replica(ts)
            if ts.who_has:
                continue
            if ts.actor:
                ts.exception = RuntimeError(f"Worker {ws.address} holding the actor {ts.key!r} was lost")
                ts.exception_text = str(ts.exception)
                self.recommend(ts, "erred")
            else:
                self.recommend(ts, "released")
        for other in self.workers.values():
            self.out.append(TellWorkerRemoved(other.address, ws.address))

    def _reconsider_processing(self, ws: WorkerState, expected: bool) -> None:
        """Tasks of a lost worker run again elsewhere, unless they may be what kills workers.

        A worker is sent more tasks than it runs. When one died with more of a kind than it could run at once, none of them is blamed yet; from
        then on, until all of them have run, workers get no more of that kind than they run (`TaskPrefix.cautious`), and the next death names the culprits.
        """
        processing = list(ws.processing)
        n_running = len(processing) - len(ws.long_running)
        ambiguous = n_running > ws.nthreads
        fresh = (
            {ts.group.prefix for ts in processing if not ts.group.prefix.cautious()} if ambiguous else set()
        )
        for ts in processing:
            blamed = not expected and (ts.group.prefix not in fresh or ts in ws.long_running)
            if blamed:
                ts.suspicious += 1
                ts.group.prefix.suspicious += 1
            if blamed and ts.suspicious > self.settings.allowed_failures:
                ts.exception = KilledWorker(ts.key, ws.address, self.settings.allowed_failures)
                ts.exception_text = str(ts.exception)
                self.recommend(ts, "erred")
            else:
                self.recommend(ts, "released")
        if not expected:
            for ts in processing:
                if ts.group.prefix in fresh:
                    ts.group.prefix.suspects.add(ts)

    # --- results -------------------------------------------------------------------------------------------

    def _on_tasks_finished(self, event: ev.TasksFinished) -> None:
        ws = self.workers.get(event.worker)
        if ws is None:
            return
        ws.blocked_for = 0.0
        tasks = self.tasks
        for finished in event.tasks:
            key = finished.key
            ts = tasks.get(key)
            if ts is None or ts.state in ("released", "queued", "no-worker", "erred"):
                self.out.append(FreeKeys(ws.address, (key,)))
            elif ts.run_id != finished.run_id:
                if ts.processing_on is ws:
                    self.recommend(ts, "released")
                else:
                    self.out.append(FreeKeys(ws.address, (key,)))
            elif ts.state == "processing":
                if ts.processing_on is ws:
                    self._finish(ts, ws, finished)
                else:
                    self.out.append(FreeKeys(ws.address, (key,)))
            elif ts.state == "memory":
                ws.add_replica(ts)
            # waiting: a free-keys is on its way
        self.refill.add(ws)

    def _finish(self, ts: TaskState, ws: WorkerState, finished: ev.TaskFinished) -> None:
        """processing -> memory."""
        duration = finished.stop - finished.start
        group = ts.group
        group.duration += duration
        group.prefix.measured(duration, finished.nbytes)
        if finished.metadata:
            if ts.metadata is None:
                ts.metadata = {}
            ts.metadata.update(finished.metadata)
        ws.stop_processing(ts)
        nbytes = finished.nbytes
        ts.nbytes = nbytes
        if nbytes > 0:
            group.nbytes_total += nbytes
        typename = finished.typename
        if ts.type is not typename:
            ts.type = typename
            group.types.add(typename)
        ts.type_pickle = finished.type_pickle
        ws.add_replica(ts)
        self.set_state(ts, "memory")
        self._after_memory(ts, finished.inline)

    def _after_memory(self, ts: TaskState, inline: tuple[Any] | None = None) -> None:
        """A result exists: start those who waited for it, let go of what it needed, tell those who want it."""
        recommendations = self.recommendations
        if ts.dependencies:
            ts.waiting_on = frozenset()
            for dts in ts.dependencies:
                dts.discard_waiter(ts)
                if not dts.waiters and not dts.who_wants and dts.state != "erred":
                    recommendations[dts] = "released"
        if ts.waiters:
            ready = []
            for dts in ts.waiters:
                waiting_on = dts.waiting_on
                if waiting_on:
                    waiting_on.discard(ts)  # type: ignore[union-attr]
                    if not waiting_on:
                        ready.append(dts)
            if ready:
                # drained last-in first-out: the most urgent comes last
                ready.sort(key=lambda dts: dts.priority or (), reverse=True)
                for dts in ready:
                    recommendations[dts] = "processing"
        if ts.who_wants:
            for cs in ts.who_wants:
                if not cs.pseudo:
                    self.out.append(ReportInMemory(cs.client_key, ts.key, ts.type_pickle, inline))
            if FIRE_AND_FORGET in self.clients:
                self.end_fire_and_forget(ts)
        if not ts.who_wants and not ts.waiters:
            recommendations[ts] = "released" if ts.dependents else "forgotten"

    def _on_task_erred(self, event: ev.TaskErred) -> None:
        ts = self.tasks.get(event.key)
        if ts is None or ts.processing_on is None:
            # the error of fetching a dependency names that dependency, which is in memory elsewhere
            if ts is not None and ts.state == "memory" and ts.run_id is not None:
                self._on_undecodable(ts, event)
            return
        if ts.processing_on.address != event.worker:
            return
        self.refill.add(ts.processing_on)
        if ts.run_id != event.run_id:
            self.recommend(ts, "released")
            return
        if ts.retries > 0:
            ts.retries -= 1
            self.recommend(ts, "waiting")
            return
        self._blame(ts, event)
        self.recommend(ts, "erred")

    def _blame(self, ts: TaskState, event: ev.TaskErred) -> None:
        ts.exception = event.exception
        ts.traceback = event.traceback
        ts.exception_text = event.exception_text
        ts.traceback_text = event.traceback_text
        ts.exception_blame = ts
        ts.erred_on = ts.erred_on | {event.worker}

    def _on_undecodable(self, ts: TaskState, event: ev.TaskErred) -> None:
        """A result that exists but cannot be unpickled by a worker that needs it: its dependents there err, once."""
        ws = self.workers.get(event.worker)
        if ws is None:
            return
        for dts in list(ts.waiters):
            if dts.processing_on is ws:
                self._blame(dts, event)
                self.recommend(dts, "erred")

    def _on_rescheduled(self, event: ev.TaskRescheduled) -> None:
        ts = self.tasks.get(event.key)
        if ts is not None and ts.processing_on is not None and ts.processing_on.address == event.worker:
            self.recommend(ts, "released")

    def _on_long_running(self, event: ev.TaskLongRunning) -> None:
        ts = self.tasks.get(event.key)
        if ts is None or ts.run_id != event.run_id:
            return
        ws = ts.processing_on
        if ws is None or ws.address != event.worker:
            return
        if event.compute_duration is not None:
            prefix = ts.group.prefix
            average = prefix.duration_average
            prefix.duration_average = (
                event.compute_duration if average is None else (average + event.compute_duration) / 2
            )
        ws.occupancy = max(0.0, ws.occupancy - ws.processing[ts])
        ws.processing[ts] = 0.0
        ws.long_running.add(ts)
        self.refill.add(ws)

    # --- balance -------------------------------------------------------------------------------------------

    def _on_balance_due(self, event: ev.BalanceDue) -> None:
        self.starving = False
        if self.n_queued or not self.settings.work_stealing:
            return
        for ts, victim, thief in list(plan_steals(self)):
            stimulus_id = f"steal-{next(self._counter)}"
            self.stealing[ts] = Steal(victim, thief, ts.run_id, stimulus_id)
            self.out.append(RequestSteal(victim.address, ts.key, stimulus_id))

    def _on_steal_answered(self, event: ev.StealAnswered) -> None:
        ts = next((ts for ts, steal in self.stealing.items() if steal.stimulus_id == event.stimulus_id), None)
        if ts is None:
            return
        _, thief, run_id, _ = self.stealing.pop(ts)
        ws = ts.processing_on
        if ws is None or ws.address != event.worker or ts.run_id != run_id:
            # finished, freed or sent elsewhere meanwhile
            return
        if event.state in ("waiting", "ready", "constrained"):
            self.refill.add(ws)
            if thief in self.running and self.workers.get(thief.address) is thief:
                self.move_to_worker(thief, ts)
            else:
                self.recommend(ts, "released")
        elif event.state is None or event.state == "released":
            self.recommend(ts, "released")
        else:
            # it runs, or is done: not asked for again, but perhaps another one is to be had
            self.known_running[ts] = run_id
            self.starving = True

    # --- replicas ------------------------------------------------------------------------------------------

    def _on_replicas_added(self, event: ev.ReplicasAdded) -> None:
        ws = self.workers.get(event.worker)
        if ws is None:
            return
        unwanted = []
        for key in event.keys:
            ts = self.tasks.get(key)
            if ts is not None and ts.state == "memory":
                ws.add_replica(ts)
            else:
                unwanted.append(key)
        if unwanted:
            self.out.append(RemoveReplicas(ws.address, tuple(unwanted)))

    def _on_replica_released(self, event: ev.ReplicaReleased) -> None:
        ws = self.workers.get(event.worker)
        ts = self.tasks.get(event.key)
        if ws is None or ts is None or ws not in ts.who_has:
            return
        ws.remove_replica(ts)
        if not ts.who_has:
            self.recommend(ts, "released")

    def _on_who_has_requested(self, event: ev.WhoHasRequested) -> None:
        who_has, unknown = {}, []
        for key in event.keys:
            ts = self.tasks.get(key)
            if ts is None:
                unknown.append(key)
            else:
                who_has[key] = [ws.address for ws in ts.who_has]
        if unknown:
            self.out.append(FreeKeys(event.worker, tuple(unknown)))
        if who_has:
            self.out.append(RefreshWhoHas(event.worker, who_has))

    def _on_data_added(self, event: ev.DataAdded) -> None:
        cs = None if event.client is None else self._client(event.client)
        for key, addresses in event.who_has.items():
            holders = [self.workers[address] for address in addresses if address in self.workers]
            ts = self.tasks.get(key)
            if ts is None:
                ts = self.new_task(key, None)
            if ts.nbytes < 0 and event.nbytes.get(key, -1) >= 0:
                ts.nbytes = event.nbytes[key]
            if holders and ts.state in ("released", "memory"):
                for ws in holders:
                    ws.add_replica(ts)
                if ts.state == "released":
                    self.set_state(ts, "memory")
            elif holders:
                # being computed meanwhile: the copies are not needed
                for ws in holders:
                    self.out.append(FreeKeys(ws.address, (key,)))
            if cs is not None:
                cs.want(ts)
            if ts.state == "memory":
                if ts.waiters:
                    self._after_memory(ts)
                else:
                    self.report_in_memory(ts)
            elif ts.state == "released":
                # its workers left meanwhile: computed, if that is possible, or reported as lost, or nobody would ever hear of it
                self.recommend(ts, "waiting" if ts.who_wants else "forgotten")
            elif cs is not None:
                self._report(cs, ts)

    # --- clients -------------------------------------------------------------------------------------------

    def _client(self, name: str) -> ClientState:
        """A client, or the pseudo client of that name, which exists from its first use."""
        cs = self.clients.get(name)
        if cs is None:
            cs = self.clients[name] = ClientState(name, next(self._serials), pseudo=True)
        return cs

    def _on_client_added(self, event: ev.ClientAdded) -> None:
        known = self.clients.get(event.client)
        if known is not None:
            # the same client came back: what it wants is what it says from now on
            known.pseudo = False
            known.versions = event.versions
        else:
            self.clients[event.client] = ClientState(event.client, next(self._serials), event.versions)

    def _on_client_removed(self, event: ev.ClientRemoved) -> None:
        cs = self.clients.get(event.client)
        if cs is None:
            return
        for intake in list(cs.intakes.values()):
            self.end_intake(cs, intake)
        cs.pseudo = True
        self._release(cs, list(cs.wants_what))
        for id in list(cs.functions):
            self.disown_function(cs, id)
        del self.clients[event.client]

    def _on_keys_desired(self, event: ev.KeysDesired) -> None:
        cs = self._client(event.client)
        for key in event.keys:
            ts = self.tasks.get(key)
            if ts is None:
                # a future of something that is forgotten: say so, or it would wait for ever
                if not cs.pseudo:
                    self.out.append(ReportCancelled(cs.client_key, (key,), "lost dependencies", None))
                continue
            if event.client == FIRE_AND_FORGET and ts.state in ("memory", "erred"):
                continue
            cs.want(ts)
            if ts.state == "released":
                self.recommend(ts, "waiting")
            self._report(cs, ts)

    def _report(self, cs: ClientState, ts: TaskState) -> None:
        """Tell one client about a task that is done."""
        if cs.pseudo:
            return
        if ts.state == "memory":
            self.out.append(ReportInMemory(cs.client_key, ts.key, ts.type_pickle))
        elif ts.state == "erred":
            blame = ts.exception_blame or ts
            self.out.append(ReportErred(cs.client_key, ts.key, blame.exception, blame.traceback))

    def _on_report_requested(self, event: ev.KeyReportRequested) -> None:
        cs = self.clients.get(event.client)
        if cs is None:
            return
        ts = self.tasks.get(event.key)
        if ts is None:
            self.out.append(ReportCancelled(cs.client_key, (event.key,), None, None))
        else:
            self._report(cs, ts)

    def _on_keys_released(self, event: ev.KeysReleased) -> None:
        cs = self.clients.get(event.client)
        if cs is not None:
            tasks = self.tasks
            self._release(cs, [ts for key in event.keys if (ts := tasks.get(key)) is not None])

    def _release(self, cs: ClientState, tasks: Iterable[TaskState]) -> None:
        """A client lets go of tasks."""
        recommendations = self.recommendations
        for ts in tasks:
            if cs not in ts.who_wants:
                continue
            cs.unwant(ts)
            if not ts.who_wants:
                if not ts.dependents:
                    recommendations[ts] = "forgotten"
                elif ts.state != "erred" and not ts.waiters:
                    recommendations[ts] = "released"

    def _on_keys_cancelled(self, event: ev.KeysCancelled) -> None:
        cs = self.clients.get(event.client)
        cancelled: dict[Key, None] = {}
        stack = [ts for key in event.keys if (ts := self.tasks.get(key)) is not None]
        seen: set[TaskState] = set()
        order = []
        named = set(event.keys)
        taken_along: list[Key] = []
        while stack:
            ts = stack.pop()
            if ts in seen:
                continue
            seen.add(ts)
            if event.force or (cs is not None and ts.who_wants <= cs.only):
                order.append(ts)
                stack.extend(ts.dependents)
            elif cs is not None:
                if cs in ts.who_wants and ts.key not in named:
                    # others keep it, but this client does not, and did not say so itself
                    taken_along.append(ts.key)
                self._release(cs, (ts,))
        if taken_along and cs is not None and not cs.pseudo:
            self.out.append(ReportCancelled(cs.client_key, tuple(taken_along), event.reason, event.msg))
        for ts in reversed(order):
            cancelled[ts.key] = None
            for wanting in list(ts.who_wants) if event.force else [cs]:
                if wanting is not None:
                    self._release(wanting, (ts,))
        for key in event.keys:
            if key not in self.tasks:
                cancelled[key] = None
        if cancelled:
            for client in self.clients.values():
                if not client.pseudo:
                    self.out.append(
                        ReportCancelled(client.client_key, tuple(cancelled), event.reason, event.msg)
                    )

    def erred_ancestors(self, keys: Iterable[Key]) -> list[Key]:
        """Keys visited on the way to what failed first; KeyError names an unknown key."""
        seen: dict[Key, None] = {}
        stack = list(keys)
        while stack:
            key = stack.pop()
            if key in seen:
                continue
            seen[key] = None
            ts = self.tasks[key]
            stack.extend(dts.key for dts in ts.dependencies if dts.state == "erred")
        return list(seen)

    def _on_keys_retried(self, event: ev.KeysRetried) -> None:
        for key in self.erred_ancestors(event.keys):
            ts = self.tasks[key]
            if ts.state == "erred" and not any(dts.state == "erred" for dts in ts.dependencies):
                # what nobody wants is started by those that need it, which follow in the cascade
                self.recommend(ts, "waiting" if ts.who_wants else "released")

    def _on_results_voided(self, event: ev.ResultsVoided) -> None:
        for key in event.keys:
            ts = self.tasks.get(key)
            if ts is None:
                continue
            for ws in list(ts.who_has):
                ws.remove_replica(ts)
                self.free_on(ws, ts)
            if ts.state in ("memory", "processing"):
                self.recommend(ts, "released")

    def _on_restrictions_set(self, event: ev.RestrictionsSet) -> None:
        for key, workers in event.worker_restrictions.items():
            ts = self.tasks.get(key)
            if ts is not None:
                ts.worker_restrictions = set(workers) if workers else None

    def _on_restarted(self, event: ev.Restarted) -> None:
        for cs in list(self.clients.values()):
            for intake in list(cs.intakes.values()):
                self.end_intake(cs, intake)
            self._release(cs, list(cs.wants_what))
        drain(self)
        # results that no client asked for by name are results of the past as well
        for ts in list(self.tasks.values()):
            if ts.key in self.tasks:
                self.recommend(ts, "forgotten")
        drain(self)
        for cs in self.clients.values():
            if not cs.pseudo:
                self.out.append(ReportRestart(cs.client_key))

    def _on_deadline(self, event: ev.DeadlineReached) -> None:
        timeout = self.settings.no_workers_timeout_s
        if timeout is None:
            return
        for ts, since in list(self.unrunnable.items()):
            if since + timeout <= self.now:
                if self.workers:
                    ts.exception = NoValidWorkerError(
                        ts.key,
                        ts.host_restrictions,
                        ts.worker_restrictions,
                        ts.resource_restrictions,
                        timeout,
                    )
                else:
                    ts.exception = NoWorkerError(ts.key, timeout)
                ts.exception_text = str(ts.exception)
                self.recommend(ts, "erred")
        while (head := self.stranded_head()) is not None and head[0] + timeout <= self.now:
            self.stranded.popleft()
            ts = head[1]
            ts.exception = NoWorkerError(ts.key, timeout)
            ts.exception_text = str(ts.exception)
            self.recommend(ts, "erred")
