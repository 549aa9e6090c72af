"""`ShuffleWorkerPlugin`: a worker's runs, the messages about them, and what tasks of a shuffle call. Pickles without state."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import uuid
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dask.context import thread_state

from distributed.exceptions import Reschedule
from distributed.plugins import WorkerPlugin
from distributed.protocol import pickle, to_serialize
from distributed.shuffle._core import PartitionId, PickledSpec, ShuffleId, ShuffleRunSpec
from distributed.shuffle._exceptions import P2PConsistencyError, ShuffleClosedError
from distributed.shuffle._outgoing import SendBudget
from distributed.shuffle._run import ShuffleRun
from distributed.shuffle._settings import ShuffleSettings

logger = logging.getLogger("distributed.shuffle")


class ShuffleWorkerPlugin(WorkerPlugin):
    """Keeps at most one run per shuffle: the latest that this worker has heard of."""

    name = "shuffle"

    def setup(self, worker: Any) -> None:
        self.worker = worker
        self.settings = ShuffleSettings.from_config()
        self.runs: dict[ShuffleId, ShuffleRun] = {}
        self._locks: dict[ShuffleId, asyncio.Lock] = {}
        self._budget = SendBudget(self.settings.send_buffer)
        self._slots = asyncio.Semaphore(self.settings.concurrency)
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(
            self.settings.threads or worker.nthreads, thread_name_prefix="Dask-Shuffle"
        )
        worker.handlers["shuffle_receive"] = self.shuffle_receive
        worker.handlers["shuffle_inputs_done"] = self.shuffle_inputs_done
        worker.stream_handlers["shuffle-fail"] = self.on_shuffle_fail
        worker.extensions["shuffle"] = self

    def __getstate__(self) -> dict[str, Any]:
        return {}

    async def teardown(self, worker: Any) -> None:
        for run in list(self.runs.values()):
            await self._end(run, ShuffleClosedError(f"worker {worker.address_safe} closes"))
        self._executor.shutdown(wait=False)

    def heartbeat(self) -> dict[str, Any]:
        """Shuffle id -> how far its run is."""
        return {id: run.heartbeat() for id, run in self.runs.items()}

    # --- messages ------------------------------------------------------------------------------------------

    async def shuffle_receive(self, shuffle_id: ShuffleId, run_id: int, data: Any) -> dict[str, str]:
        """Shards from a peer."""
        run = await self._get_run(shuffle_id, run_id)
        await self._loop.run_in_executor(self._executor, self._receive, run, data)
        return {"status": "OK"}

    @staticmethod
    def _receive(run: ShuffleRun, data: Any) -> None:
        run.receive(pickle.loads(data) if isinstance(data, (bytes, bytearray, memoryview)) else data)

    async def shuffle_inputs_done(self, shuffle_id: ShuffleId, run_id: int) -> None:
        """The scheduler says that all transfers of a run have finished; returns when all shards of this worker have been received."""
        await (await self._get_run(shuffle_id, run_id)).inputs_done()

    def on_shuffle_fail(self, shuffle_id: ShuffleId, run_id: int, message: str) -> None:
        """A run has ended, well or not."""
        run = self.runs.get(shuffle_id)
        if run is not None and run.run_id <= run_id:
            self.worker.run_in_background(
                self._end(run, ShuffleClosedError(message or f"shuffle {shuffle_id} has ended")),
                name=f"end of shuffle {shuffle_id}",
            )

    async def _end(self, run: ShuffleRun, exc: BaseException) -> None:
        if self.runs.get(run.id) is run:
            del self.runs[run.id]
        run.end(exc)
        remove = run.store.close()
        await self._loop.run_in_executor(self._executor, remove)

    # --- runs ----------------------------------------------------------------------------------------------

    async def _get_run(self, id: ShuffleId, run_id: int | None, key: Any = None) -> ShuffleRun:
        """The run that is meant; the scheduler is asked if it is not known here.

        Parameters
        ----------
        run_id
            None: the latest one.
        key
            Of the transfer task that needs the run, which is begun if there is none.
        """
        run = self.runs.get(id)
        if run is None or (run_id is not None and run.run_id < run_id):
            lock = self._locks.setdefault(id, asyncio.Lock())
            async with lock:
                run = self.runs.get(id)
                if run is None or (run_id is not None and run.run_id < run_id):
                    run = await self._fetch_run(id, key)
            if not lock.locked():
                self._locks.pop(id, None)
        if run_id is not None and run.run_id != run_id:
            raise P2PConsistencyError(
                f"shuffle {id}: run {run_id} is over; worker {self.worker.address} takes part in run {run.run_id}"
            )
        return run

    async def _fetch_run(self, id: ShuffleId, key: Any) -> ShuffleRun:
        address = self.worker.address
        if key is not None:
            reply = await self.worker.scheduler.shuffle_get_or_create(shuffle_id=id, key=key, worker=address)
        else:
            reply = await self.worker.scheduler.shuffle_get(id=id, worker=address)
        spec: ShuffleRunSpec = reply["run_spec"]
        if isinstance(spec.spec, PickledSpec):
            spec = dataclasses.replace(spec, spec=spec.spec.load())
        old = self.runs.get(id)
        if old is not None:
            await self._end(old, ShuffleClosedError(f"shuffle {id}: run {spec.run_id} follows"))
        run = self.runs[id] = ShuffleRun(
            spec,
            address=address,
            loop=self._loop,
            send=self._sender(id, spec.run_id),
            slots=self._slots,
            budget=self._budget,
            settings=self.settings,
            directory=os.path.join(self.worker.local_directory, f"shuffle-{uuid.uuid4().hex}"),
        )
        return run

    def _sender(self, id: ShuffleId, run_id: int) -> Any:
        async def send(worker: str, data: Any) -> None:
            await self.worker.rpc(worker).shuffle_receive(
                data=to_serialize(data), shuffle_id=id, run_id=run_id
            )

        return send

    # --- what tasks call, in threads -----------------------------------------------------------------------

    def _wait(self, coro: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coro, self._loop).result()

    @contextlib.contextmanager
    def _phase(self, phase: str, id: ShuffleId) -> Any:
        """A run that has ended means that the task is to be run again."""
        try:
            yield
        except (ShuffleClosedError, P2PConsistencyError) as exc:
            logger.debug("The %s of shuffle %s is to be run again: %s", phase, id, exc)
            raise Reschedule from exc

    def transfer(self, id: ShuffleId, data: Any, input_partition: Any) -> int:
        """Send one input; returns the run's id."""
        with self._phase("transfer", id):
            run = self._wait(self._get_run(id, None, thread_state.key))
            return run.add_input(data, input_partition)  # type: ignore[no-any-return]

    def barrier(self, id: ShuffleId, run_ids: Sequence[int]) -> int:
        """All inputs are in; returns the run's id."""
        run_id = max(run_ids)
        with self._phase("barrier", id):
            self._wait(
                self.worker.scheduler.shuffle_barrier(id=id, run_id=run_id, consistent=min(run_ids) == run_id)
            )
        return run_id

    def unpack(self, id: ShuffleId, partition: PartitionId, barrier_run_id: int, **kwargs: Any) -> Any:
        """One output, on the worker that it belongs to; elsewhere the task is sent there."""
        with self._phase("unpack", id):
            run = self._wait(self._get_run(id, barrier_run_id))
            owner = run.worker_for[partition]
            if owner != self.worker.address:
                self._wait(
                    self.worker.scheduler.shuffle_restrict_task(
                        id=id, run_id=barrier_run_id, key=thread_state.key, worker=owner
                    )
                )
                raise Reschedule
            return run.output(partition, **kwargs)
