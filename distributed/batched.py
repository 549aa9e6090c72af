"""`Stream`: the sending half of a long-lived connection.

Messages go out in order, as one list per write. When nothing is being written a message leaves in the current loop iteration together
with everything else that was sent in it, or at the end of the current batch of incoming messages; while a write is outstanding, messages collect. There is no fixed batching interval.
What could not be sent when the connection ends is kept in `unsent`: nothing disappears silently.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

from distributed.comm import Comm, CommClosedError

logger = logging.getLogger(__name__)


class _Batch(threading.local):
    """Whether the code that runs in this thread will flush by itself, and what there will be to flush."""

    active = False

    def __init__(self) -> None:
        self.dirty: list[Stream] = []


_batch = _Batch()


def begin_batch() -> bool:
    """From here to `end_batch` streams do not flush; False if that is so already. Nothing may be awaited in between.

    Flushing where the work ends, and not in the next loop iteration, makes each hop of a message shorter by one iteration.
    """
    if _batch.active:
        return False
    _batch.active = True
    return True


def end_batch() -> None:
    """Flush what was sent since `begin_batch`."""
    _batch.active = False
    dirty = _batch.dirty
    if dirty:
        _batch.dirty = []
        for stream in dirty:
            stream._flush()


class Stream:
    """Ordered, batched sending on one comm.

    Use from the loop of the comm. `send` before `start` only collects.
    """

    __slots__ = (
        "_closed",
        "_loop",
        "_scheduled",
        "_writer",
        "batch_count",
        "buffer",
        "comm",
        "message_count",
        "serializers",
        "unsent",
    )

    def __init__(self, serializers: Any = None) -> None:
        self.serializers = serializers
        self.comm: Comm | None = None
        #: waiting to be written, in order
        self.buffer: list[Any] = []
        #: messages that were not handed to the kernel when the connection ended, in order
        self.unsent: list[Any] = []
        self.message_count = 0
        self.batch_count = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scheduled = False
        self._writer: asyncio.Task[None] | None = None
        self._closed = False

    def start(self, comm: Comm) -> None:
        """Send on this comm from now on."""
        self._loop = asyncio.get_running_loop()
        self.comm = comm
        if self.buffer:
            self._schedule()

    def closed(self) -> bool:
        """Whether messages can no longer be sent."""
        return self._closed or (self.comm is not None and self.comm.closed())

    def send(self, *msgs: Any) -> None:
        """Queue messages.

        Raises
        ------
        CommClosedError
            The stream is closed; the messages are not queued.
        """
        if self._closed or (self.comm is not None and self.comm.closed()):
            raise CommClosedError(f"cannot send on a closed stream: {self.comm!r}")
        self.buffer.extend(msgs)
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        if self._loop is not None and self._writer is None:
            self._scheduled = True
            if _batch.active:
                _batch.dirty.append(self)
            else:
                self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        if self._closed or self._writer is not None or not self.buffer:
            return
        batch, self.buffer = self.buffer, []
        comm = self.comm
        assert comm is not None and self._loop is not None, "flushing starts in start()"
        try:
            taken = comm.write_nowait(batch, serializers=self.serializers)
        except CommClosedError:
            self._fail(batch)
            return
        except Exception:  # one message of the batch cannot be encoded; find it, keep the others
            self._writer = self._loop.create_task(self._write_one_by_one(batch))
            return
        if taken:
            self.message_count += len(batch)
            self.batch_count += 1
        else:
            self._writer = self._loop.create_task(self._write(batch))

    async def _write(self, batch: list[Any]) -> None:
        comm = self.comm
        assert comm is not None, "writing starts in start()"
        try:
            while batch:
                try:
                    await comm.write(batch, serializers=self.serializers)
                except CommClosedError:
                    raise
                except Exception:  # as in _flush
                    await self._encode_separately(comm, batch)
                self.message_count += len(batch)
                self.batch_count += 1
                batch, self.buffer = self.buffer, []
        except CommClosedError:
            self._fail(batch)
        finally:
            self._writer = None
            if self.buffer and not self._closed:
                self._schedule()

    async def _write_one_by_one(self, batch: list[Any]) -> None:
        comm = self.comm
        assert comm is not None, "writing starts in start()"
        try:
            await self._encode_separately(comm, batch)
            self.message_count += len(batch)
        except CommClosedError:
            self._fail(batch)
        finally:
            self._writer = None
            if self.buffer and not self._closed:
                self._schedule()

    async def _encode_separately(self, comm: Comm, batch: list[Any]) -> None:
        for msg in batch:
            try:
                await comm.write([msg], serializers=self.serializers)
            except CommClosedError:
                raise
            except Exception:  # whatever the encoder found wrong with it
                logger.exception("A message cannot be encoded and is dropped: %.500r", msg)

    def _fail(self, batch: list[Any]) -> None:
        self._closed = True
        self.unsent = [*batch, *self.buffer]
        self.buffer = []
        if self.unsent:
            logger.debug("%d messages were not sent on %r", len(self.unsent), self.comm)

    async def close(self) -> None:
        """Send what is queued, then close the comm."""
        if self._closed and (self.comm is None or self.comm.closed()):
            return
        while self.comm is not None and not self.comm.closed() and (self.buffer or self._writer is not None):
            if self._writer is None:
                self._flush()
            writer = self._writer
            if writer is not None:
                await writer
        self._closed = True
        if self.comm is not None:
            await self.comm.close()

    def abort(self) -> None:
        """Close at once; queued messages go to `unsent`."""
        if not self._closed:
            self._fail([])
        if self.comm is not None:
            self.comm.abort()

    def __repr__(self) -> str:
        state = "closed" if self.closed() else "open"
        return f"<Stream {state}, {len(self.buffer)} queued, {self.comm!r}>"
