"""One run of a shuffle on one worker: inputs are cut and sent, shards are received, outputs are assembled.

`add_input`, `receive` and `output` are called in threads, the coroutines on the worker's loop. A run ends once, with the exception
that everybody who still works for it gets.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from distributed.protocol import pickle
from distributed.shuffle._core import PartitionId, ShuffleRunSpec
from distributed.shuffle._exceptions import P2PConsistencyError, P2POutOfDiskError, ShuffleClosedError
from distributed.shuffle._outgoing import Outgoing, SendBudget
from distributed.shuffle._settings import ShuffleSettings
from distributed.shuffle._store import ShardStore

logger = logging.getLogger("distributed.shuffle")

#: below this mean size of a shard a message is one pickle, above it shards are frames of their own
SMALL_SHARD = 64 * 2**10

#: (worker, shards or their pickle) -> when it is received
Send = Callable[[str, Any], Awaitable[None]]


class ShuffleRun:
    """State of a run on this worker.

    Parameters
    ----------
    send
        Delivers a message; OSError is worth another try.
    directory
        For the files of this run.
    """

    def __init__(
        self,
        spec: ShuffleRunSpec,
        *,
        address: str,
        loop: asyncio.AbstractEventLoop,
        send: Send,
        slots: asyncio.Semaphore,
        budget: SendBudget,
        settings: ShuffleSettings,
        directory: str,
    ) -> None:
        self.id = spec.id
        self.run_id = spec.run_id
        self.spec = spec.spec
        self.worker_for = spec.worker_for
        self.codec = spec.spec.codec()
        self.store = ShardStore(self.codec, directory if spec.spec.disk else None, settings.storage_buffer)
        self.sent_bytes = 0
        self._address = address
        self._loop = loop
        self._send = send
        self._slots = slots
        self._budget = budget
        self._settings = settings
        self._outgoing = Outgoing()
        self._senders: dict[str, asyncio.Task[None]] = {}
        self._inputs_done = False
        self._ended: BaseException | None = None

    @property
    def ended(self) -> bool:
        return self._ended is not None

    def raise_if_ended(self) -> None:
        """Raise what ended the run."""
        if self._ended is not None:
            raise self._ended

    # --- in threads ----------------------------------------------------------------------------------------

    def add_input(self, data: Any, input_partition: Any) -> int:
        """Cut one input and put its shards on their way. Blocks while too much is waiting to be sent."""
        self.raise_if_ended()
        if self._inputs_done:
            raise ShuffleClosedError(f"shuffle {self.id}: all inputs of run {self.run_id} have been sent")
        self.spec.validate_data(data)
        own = None
        for worker, shard in self.codec.shard(data, input_partition, self.worker_for).items():
            if worker == self._address:
                own = shard
                continue
            nbytes = self.codec.sizeof(shard)
            self._budget.take(nbytes, self.raise_if_ended)
            self._outgoing.put(worker, shard, nbytes)
            self._loop.call_soon_threadsafe(self._start_sender, worker)
        if own is not None:
            self.receive([own])
        return self.run_id

    def receive(self, shards: Sequence[tuple[Any, Any]]) -> None:
        """Store shards. What goes wrong is the end of the run, or part of its outputs would be missing."""
        self.raise_if_ended()
        try:
            self.store.add(shards)
        except ShuffleClosedError:
            raise
        except Exception as exc:
            self._loop.call_soon_threadsafe(self.end, exc)
            raise

    def output(self, partition: PartitionId, **kwargs: Any) -> Any:
        """Assemble one output."""
        self.raise_if_ended()
        return self.codec.assemble(partition, self.store.read(partition), **kwargs)

    # --- on the loop ---------------------------------------------------------------------------------------

    def _start_sender(self, worker: str) -> None:
        if worker not in self._senders and self._ended is None:
            self._senders[worker] = asyncio.ensure_future(self._send_all(worker))
        elif self._ended is not None:
            self._drop_outgoing()

    def _drop_outgoing(self) -> None:
        dropped = self._outgoing.clear()
        if dropped:
            self._budget.give_back(dropped)

    async def _send_all(self, worker: str) -> None:
        """Send what there is for a worker, and what comes meanwhile."""
        try:
            while True:
                async with self._slots:
                    shards, nbytes = self._outgoing.take(worker, self._settings.message_bytes)
                    if not shards:
                        return
                    try:
                        await self._send_with_retries(worker, shards, nbytes)
                    finally:
                        self._budget.give_back(nbytes)
        except Exception as exc:
            self.end(exc)
        finally:
            del self._senders[worker]

    async def _send_with_retries(self, worker: str, shards: list[Any], nbytes: int) -> None:
        data = pickle.dumps(shards) if nbytes < SMALL_SHARD * len(shards) else shards
        for attempt in range(self._settings.retry_count + 1):
            self.raise_if_ended()
            try:
                await self._send(worker, data)
                break
            except P2POutOfDiskError:
                # an OSError of the peer's disk, not of the way to it
                raise
            except OSError as exc:
                if attempt == self._settings.retry_count:
                    raise RuntimeError(
                        f"shuffle {self.id}: shards could not be sent to {worker} in {attempt + 1} attempts; the last one failed with {exc!r}"
                    ) from exc
                delay = min(self._settings.retry_delay_min * 2**attempt, self._settings.retry_delay_max)
                logger.info("Sending shards of %s to %s failed, next try follows: %r", self.id, worker, exc)
                await asyncio.sleep(delay * random.uniform(0.8, 1.2))
        self.sent_bytes += nbytes

    async def inputs_done(self) -> None:
        """No input follows: everything is sent. Raises what kept it from being sent."""
        self._inputs_done = True
        while self._senders:
            await asyncio.wait(list(self._senders.values()))
        if self._ended is not None:
            raise self._ended

    def end(self, exc: BaseException) -> None:
        """The run is over here; calling it again changes nothing."""
        if self._ended is not None:
            return
        if isinstance(exc, P2PConsistencyError) and not isinstance(exc, ShuffleClosedError):
            # a peer knows a later run: whoever works for this one is to try again, with that one
            exc = ShuffleClosedError(str(exc))
        self._ended = exc
        for task in self._senders.values():
            if task is not asyncio.current_task():
                task.cancel()
        self._drop_outgoing()
        self._budget.wake()

    def heartbeat(self) -> dict[str, Any]:
        """How far it is."""
        return {
            "run_id": self.run_id,
            "comm": {"memory": self._outgoing.nbytes, "written": self.sent_bytes},
            "disk": {"memory": self.store.memory_bytes, "written": self.store.disk_bytes},
            "read": self.store.received_bytes,
        }
