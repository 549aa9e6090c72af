"""The scheduler's part in shuffles: answers workers, watches barrier tasks, restarts runs that lost a worker. Decisions are in `_scheduler_runs`.

Costs nothing while there is no shuffle: transitions are observed only as long as one is defined.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Any

from distributed.comm import CommClosedError
from distributed.protocol import ToPickle, pickle
from distributed.scheduler_state_machine import events as ev
from distributed.shuffle._core import PickledSpec, ShuffleId, ShuffleRunSpec, barrier_key, id_from_key
from distributed.shuffle._exceptions import P2PConsistencyError, P2PIllegalStateError, ShuffleClosedError
from distributed.shuffle._scheduler_runs import Definition, Run, ShuffleRuns
from distributed.shuffle._worker_plugin import ShuffleWorkerPlugin

logger = logging.getLogger("distributed.shuffle")


class ShuffleSchedulerPlugin:
    """Extension ``shuffle`` of a scheduler."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.runs = ShuffleRuns()
        #: worker -> what it last said of its runs
        self.heartbeats: dict[str, dict[str, Any]] = {}
        #: transfers that wait for the row of their barrier, which comes in a later message
        self._undefined: dict[ShuffleId, asyncio.Event] = {}
        self._observing = False
        scheduler.handlers.update(
            {
                "shuffle_get": self.get,
                "shuffle_get_or_create": self.get_or_create,
                "shuffle_barrier": self.barrier,
                "shuffle_restrict_task": self.restrict_task,
            }
        )
        scheduler.worker_plugins["shuffle"] = pickle.dumps(ShuffleWorkerPlugin())

    def heartbeat(self, worker: str, report: dict[str, Any]) -> None:
        """How far a worker's runs are."""
        self.heartbeats[worker] = report

    # --- definitions ---------------------------------------------------------------------------------------

    def rows_added(self, rows: Collection[Any]) -> None:
        """Rows of a graph have become tasks: those of barriers define shuffles."""
        for row in rows:
            extra = row[4]
            if extra is not None and "shuffle" in extra:
                shuffle = extra["shuffle"]
                id = ShuffleId(shuffle["id"])
                if barrier_key(id) not in self.scheduler.tasks:
                    continue
                self.runs.define(Definition(id, shuffle["partitions"], bytes(shuffle["spec"])))
                waiting = self._undefined.get(id)
                if waiting is not None:
                    waiting.set()
        self._observe()

    def _observe(self) -> None:
        wanted = bool(self.runs.definitions or self._undefined)
        if wanted is not self._observing:
            self._observing = wanted
            self.scheduler.observe(self._transition, wanted)

    def _transition(self, key: Any, start: str, finish: str, *, stimulus_id: str, **_: Any) -> None:
        """A task changes its state; nothing that the machine would notice may happen here."""
        id = id_from_key(key)
        if id is None:
            return
        if finish == "forgotten":
            self._end(self.runs.forget(id), "")
            self._wake(id)
            # the observers are being iterated over
            self.scheduler.loop.add_callback(self._observe)
        elif finish in ("released", "erred"):
            self._end(
                self.runs.end(id),
                "the barrier task is no longer needed" if finish == "released" else "failed",
            )

    def _wake(self, id: ShuffleId) -> None:
        waiting = self._undefined.get(id)
        if waiting is not None:
            waiting.set()

    # --- ends ----------------------------------------------------------------------------------------------

    def _end(self, run: Run | None, message: str) -> None:
        """Tell the participants; their files and buffers go."""
        if run is None:
            return
        id = run.definition.id
        for worker in run.participants:
            peer = self.scheduler.outbox.workers.get(worker)
            if peer is not None:
                peer.send({"op": "shuffle-fail", "shuffle_id": id, "run_id": run.run_id, "message": message})
        self.scheduler.loop.add_callback(self._restore, run)
        self._log("shuffle-end", run, message)

    def _restore(self, run: Run) -> None:
        """Output tasks get back the restrictions that they had."""
        if run.restricted:
            self.scheduler.deliver(ev.RestrictionsSet(run.restricted))

    def _log(self, action: str, run: Run, message: str = "") -> None:
        self.scheduler.log_event(
            ["shuffle", "p2p"],
            {
                "action": action,
                "id": run.definition.id,
                "run-id": run.run_id,
                "outputs": len(run.worker_for),
                "participants": sorted(run.participants),
                "message": message,
            },
        )

    def worker_lost(self, address: str, stimulus_id: str) -> None:
        """A worker is gone, and the machine knows."""
        self.heartbeats.pop(address, None)
        for run in self.runs.worker_lost(address):
            self._restart(run, f"worker {address} was lost", stimulus_id)

    def _restart(self, run: Run, message: str, stimulus_id: str) -> None:
        """The run has ended without success: transfers and barrier run again."""
        logger.info("Run %d of shuffle %s starts again: %s", run.run_id, run.definition.id, message)
        self._end(run, message)
        # first the restrictions: outputs must not wait for an owner that is gone
        self._restore(run)
        run.restricted = {}
        barrier = self.scheduler.tasks.get(barrier_key(run.definition.id))
        if barrier is not None:
            keys = [ts.key for ts in barrier.dependencies]
            self.scheduler.deliver(ev.ResultsVoided([*keys, barrier.key], stimulus_id))

    # --- what workers ask ----------------------------------------------------------------------------------

    def _reply(self, run: Run) -> dict[str, Any]:
        spec = ShuffleRunSpec(run.run_id, PickledSpec(run.definition.spec), run.worker_for, None)  # type: ignore[arg-type]
        return {"status": "OK", "run_spec": ToPickle(spec)}

    async def get(self, id: ShuffleId, worker: str) -> dict[str, Any]:
        """The current run."""
        return self._reply(self.runs.get(id, worker))

    async def get_or_create(self, shuffle_id: ShuffleId, key: Any, worker: str) -> dict[str, Any]:
        """The run for a transfer task, which is begun if there is none."""
        while True:
            ts = self.scheduler.tasks.get(key)
            if ts is None or ts.state != "processing" or ts.processing_on.address != worker:
                raise ShuffleClosedError(
                    f"shuffle {shuffle_id}: {key!r} is not to be run on {worker} any more"
                )
            if shuffle_id in self.runs.definitions:
                break
            if any(cs.intakes for cs in self.scheduler.clients.values()):
                await self._defined(shuffle_id)
            else:
                raise P2PIllegalStateError(
                    f"shuffle {shuffle_id} is unknown: there is no barrier task {barrier_key(shuffle_id)!r}"
                )
        known = self.runs.active.get(shuffle_id)
        run = known or self.runs.get_or_create(
            shuffle_id, worker, self._owners(shuffle_id), self._partners(shuffle_id)
        )
        run.participants.add(worker)
        if known is None:
            self._log("shuffle-begin", run)
        return self._reply(run)

    async def _defined(self, id: ShuffleId) -> None:
        """Wait for more rows of a graph."""
        event = self._undefined.setdefault(id, asyncio.Event())
        try:
            await asyncio.wait_for(event.wait(), 1)
        except TimeoutError:
            logger.debug("Still no barrier of shuffle %s", id)
        finally:
            self._undefined.pop(id, None)

    def _owners(self, id: ShuffleId) -> list[str]:
        """Workers that may own outputs: those that may run the barrier, all running ones if that says nothing."""
        running = [ws.address for ws in self.scheduler.machine.running_order]
        barrier = self.scheduler.tasks.get(barrier_key(id))
        allowed = barrier.worker_restrictions if barrier is not None else None
        chosen = [address for address in running if address in allowed] if allowed else running
        return chosen or running

    def _partners(self, id: ShuffleId) -> list[ShuffleId]:
        """Other shuffles that the same outputs read, as both sides of a merge."""
        barrier = self.scheduler.tasks.get(barrier_key(id))
        if barrier is None:
            return []
        output = next(iter(barrier.dependents), None)
        if output is None:
            return []
        ids = (id_from_key(ts.key) for ts in output.dependencies)
        return [other for other in ids if other is not None and other != id]

    async def barrier(self, id: ShuffleId, run_id: int, consistent: bool) -> None:
        """All transfers are done: every worker sends what it still holds."""
        run = self.runs.check(id, run_id)
        if not consistent:
            self.runs.end(id)
            self._restart(run, "transfers belong to different runs", f"shuffle-inconsistent-{run_id}")
            return
        results = await asyncio.gather(
            *(self._inputs_done(worker, run) for worker in sorted(run.participants)), return_exceptions=True
        )
        errors = [result for result in results if isinstance(result, BaseException)]
        # whatever the errors: if the run was restarted meanwhile, they are those of a past run
        self.runs.check(id, run_id)
        for exc in errors:
            if not isinstance(exc, (CommClosedError, P2PConsistencyError)):
                raise exc
        if errors:
            self.runs.end(id)
            self._restart(run, repr(errors[0]), f"shuffle-unreachable-{run_id}")
            return
        run.inputs_done = True
        self._log("shuffle-inputs-done", run)

    async def _inputs_done(self, worker: str, run: Run) -> None:
        await self.scheduler.rpc(worker).shuffle_inputs_done(shuffle_id=run.definition.id, run_id=run.run_id)

    async def restrict_task(self, id: ShuffleId, run_id: int, key: Any, worker: str) -> dict[str, str]:
        """An output task is to run where its data is."""
        run = self.runs.check(id, run_id)
        ts = self.scheduler.tasks.get(key)
        if ts is None:
            raise P2PConsistencyError(f"shuffle {id}: the output task {key!r} is gone")
        run.restricted.setdefault(key, ts.worker_restrictions and set(ts.worker_restrictions))
        self.scheduler.deliver(ev.RestrictionsSet({key: {worker}}))
        return {"status": "OK"}
