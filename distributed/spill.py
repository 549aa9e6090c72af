"""`SpillBuffer`: the results of a worker, the oldest of them on disk when they are more than memory is to hold.

Built on `zict.AsyncBuffer`: values are written and read in a thread of its own, never on the event loop. Small values stay in a plain dict, which costs
nothing; they are not worth a file. A value that cannot be pickled stays in memory, and so does everything once the disk is full or the
allowed space is used up; both are said in the log, once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import Collection, Iterator, MutableMapping
from itertools import chain
from typing import Any

import zict
from dask.utils import format_bytes

from distributed.metrics import monotonic
from distributed.protocol import deserialize_bytes, serialize_bytelist
from distributed.protocol.compression import resolve_compression
from distributed.sizeof import safe_sizeof

logger = logging.getLogger(__name__)

Key = Any

#: smaller values are never written to disk, bytes
SMALL_BYTES = 1024
#: the same trouble with the disk is logged again after this time, seconds
LOG_INTERVAL_S = 60.0


class CannotSpill(TypeError):
    """A value cannot be pickled, hence not be written; names its key."""


class MaxSpillExceeded(OSError):
    """The space for spilled values is used up."""


class Disk(MutableMapping[Key, Any]):
    """Values as files of one directory. Reading and writing may happen in a thread; everything else is fast.

    Parameters
    ----------
    max_bytes
        For all files together; None: no limit.
    """

    def __init__(self, directory: str, max_bytes: int | None = None, compression: str | None = None) -> None:
        self.directory = directory
        self.max_bytes = max_bytes
        self._context = {
            "compression": resolve_compression(compression, "distributed.worker.memory.spill-compression")
        }
        #: key -> path and size, bytes
        self._files: dict[Key, tuple[str, int]] = {}
        #: bytes of all files
        self.nbytes = 0
        self._counter = 0

    def __setitem__(self, key: Key, value: Any) -> None:
        try:
            frames = serialize_bytelist(value, on_error="raise", context=self._context)
        except Exception as exc:  # user code in pickling
            raise CannotSpill(
                f"the result of {key!r}, a {type(value).__name__}, cannot be pickled: {exc}"
            ) from exc
        size = sum(memoryview(frame).nbytes for frame in frames)
        if self.max_bytes is not None and self.nbytes + size > self.max_bytes:
            raise MaxSpillExceeded(
                f"{format_bytes(size)} more than the {format_bytes(self.nbytes)} on disk would exceed "
                f"distributed.worker.memory.max-spill, {format_bytes(self.max_bytes)}"
            )
        self._counter += 1
        path = os.path.join(self.directory, str(self._counter))
        try:
            with open(path, "wb", buffering=0) as file:
                for frame in frames:
                    view = memoryview(frame).cast("B")
                    while view.nbytes:
                        view = view[file.write(view) :]
        except OSError:
            # what was written of it is of no use, and the disk may be full
            if os.path.exists(path):
                os.remove(path)
            raise
        self.pop(key, None)
        self._files[key] = (path, size)
        self.nbytes += size

    def __getitem__(self, key: Key) -> Any:
        path, size = self._files[key]
        # writable, so that arrays in it are
        buffer = bytearray(size)
        with open(path, "rb", buffering=0) as file:
            view = memoryview(buffer)
            while view.nbytes:
                n = file.readinto(view)
                if not n:
                    raise OSError(f"the file of the spilled result {key!r} is shorter than it was: {path}")
                view = view[n:]
        return deserialize_bytes(buffer)

    def __delitem__(self, key: Key) -> None:
        path, size = self._files.pop(key)
        self.nbytes -= size
        os.remove(path)

    def pop(self, key: Key, default: Any = None) -> Any:
        """Remove a value without reading it; returns the default."""
        if key in self._files:
            del self[key]
        return default

    def __contains__(self, key: object) -> bool:
        return key in self._files

    def __iter__(self) -> Iterator[Key]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


class _Memory(zict.LRU[Key, Any]):
    """Keeps values in memory that cannot go to disk, and says so."""

    def __init__(self, target: float, **kwargs: Any) -> None:
        super().__init__(target, {}, **kwargs)
        self.unspillable: set[Key] = set()
        #: the last eviction ended because nothing more could be written
        self.stuck = False
        self._logged_at = float("-inf")

    def evict_until_below_target(self, n: float | None = None) -> None:
        limit = self.n if n is None else n
        self.stuck = False
        while self.total_weight + self.offset > limit and not self.closed:
            if self.evict_one() is None:
                self.stuck = True
                return

    def evict_one(self) -> float | None:
        """Write the oldest value; its bytes. None: there is nothing more that could be written."""
        with self.lock:
            key = next((k for k in chain(self.heavy, self.order) if k not in self.unspillable), None)
        if key is None:
            return None
        try:
            return float(self.evict(key)[2])
        except KeyError:
            return 0.0  # let go of meanwhile
        except CannotSpill as exc:
            self.unspillable.add(key)
            logger.warning("Not spilled, stays in memory: %s", exc)
            return 0.0
        except OSError as exc:
            if monotonic() - self._logged_at > LOG_INTERVAL_S:
                self._logged_at = monotonic()
                logger.warning("Cannot spill, results stay in memory: %s", exc)
            return None


class _Buffer(zict.AsyncBuffer[Key, Any]):
    """Memory before a disk."""

    fast: _Memory

    def __init__(self, disk: Disk, target: float, weight: Any) -> None:
        super().__init__({}, disk, target, weight=weight)  # type: ignore[arg-type]
        self.fast = _Memory(
            target, weight=weight, on_evict=self.fast_to_slow, on_cancel_evict=self._cancel_evict
        )
        self._evicting = False

    def async_evict_until_below_target(self, n: float | None = None) -> None:
        limit = self.n if n is None else n
        if self._evicting or self.fast.total_weight <= limit or self.fast.closed:
            return
        self._evicting = True
        self._offload(self.evict_until_below_target, limit).add_done_callback(self._evicted)

    def _evicted(self, future: asyncio.Future[None]) -> None:
        self._evicting = False
        if not future.cancelled() and not self.fast.stuck:
            # for what was stored when the thread had looked for the last time
            self.async_evict_until_below_target()


class SpillBuffer(MutableMapping[Key, Any]):
    """Results by key. Use it from one event loop.

    Parameters
    ----------
    directory
        Where a directory of its own is made.
    target
        Bytes to hold in memory; infinity: only what `evict` asks for goes to disk.
    """

    def __init__(
        self,
        directory: str,
        target: float,
        max_spill: int | None = None,
        compression: str | None = None,
    ) -> None:
        #: small values
        self._small: dict[Key, Any] = {}
        #: bytes of each other value
        self._sizes: dict[Key, int] = {}
        self._disk = Disk(tempfile.mkdtemp(prefix="spill-", dir=directory), max_spill, compression)
        self._buffer = _Buffer(self._disk, target, self._weigh)

    def _weigh(self, key: Key, value: Any) -> int:
        size = self._sizes.get(key)
        return safe_sizeof(value) if size is None else size

    # --- the mapping ---------------------------------------------------------------------------------------

    def store(self, key: Key, value: Any, nbytes: int) -> None:
        """Set a value whose size is known."""
        if nbytes < SMALL_BYTES:
            if key in self._sizes:
                del self[key]
            self._small[key] = value
            return
        self._small.pop(key, None)
        self._buffer.fast.unspillable.discard(key)
        self._sizes[key] = nbytes
        self._buffer[key] = value

    def __setitem__(self, key: Key, value: Any) -> None:
        self.store(key, value, safe_sizeof(value))

    def __getitem__(self, key: Key) -> Any:
        """The value; blocks while it is read from disk. See `get_many`."""
        small = self._small
        return small[key] if key in small else self._buffer[key]

    def __delitem__(self, key: Key) -> None:
        if key in self._small:
            del self._small[key]
        else:
            del self._sizes[key]
            self._buffer.fast.unspillable.discard(key)
            del self._buffer[key]

    def drop(self, key: Key) -> None:
        """Let go of a value, if it is there, without reading it."""
        if key in self._small:
            del self._small[key]
        elif key in self._sizes:
            del self[key]

    def __contains__(self, key: object) -> bool:
        return key in self._small or key in self._sizes

    def __iter__(self) -> Iterator[Key]:
        return chain(list(self._small), list(self._sizes))

    def __len__(self) -> int:
        return len(self._small) + len(self._sizes)

    # --- without blocking ----------------------------------------------------------------------------------

    def get_now(self, keys: Collection[Key]) -> dict[Key, Any] | None:
        """Values that are all in memory; None if one of them is on disk. KeyError if one is not there."""
        small, fast = self._small, self._buffer.fast
        values = {}
        for key in keys:
            if key in small:
                values[key] = small[key]
                continue
            try:
                values[key] = fast[key]
            except KeyError:
                if key not in self._sizes:
                    raise
                return None
        return values

    async def get_many(self, keys: Collection[Key]) -> dict[Key, Any]:
        """Values of those keys that are there; read from disk in a thread if need be."""
        small = self._small
        values = {key: small[key] for key in keys if key in small}
        values.update(await self._buffer.async_get([k for k in keys if k in self._sizes], missing="omit"))
        return values

    async def evict(self, nbytes: float) -> float:
        """Write the oldest values until `nbytes` are freed; how many were. Less than asked for: there is no more, or the disk is full."""
        buffer = self._buffer

        def run() -> float:
            freed = 0.0
            while freed < nbytes and not buffer.fast.closed:
                n = buffer.fast.evict_one()
                if n is None:
                    break
                freed += n
            return freed

        return await buffer._offload(run)

    async def settled(self) -> None:
        """Wait for what is being written or read."""
        while self._buffer.futures:
            await asyncio.wait(list(self._buffer.futures))

    # --- facts ---------------------------------------------------------------------------------------------

    def on_disk(self) -> Collection[Key]:
        """Keys whose values are on disk."""
        return self._disk

    @property
    def memory_bytes(self) -> int:
        """Bytes of the values in memory, but for small ones."""
        return int(self._buffer.fast.total_weight)

    @property
    def spilled_memory(self) -> int:
        """Bytes that the values on disk would take in memory."""
        return sum(self._sizes.get(key, 0) for key in list(self._disk))

    @property
    def spilled_disk(self) -> int:
        """Bytes of the files."""
        return self._disk.nbytes

    def close(self) -> None:
        """Stop writing. The files go with the worker's directory."""
        self._buffer.close()

    def __repr__(self) -> str:
        return f"<SpillBuffer: {len(self) - len(self._disk)} in memory, {len(self._disk)} on disk ({format_bytes(self._disk.nbytes)})>"
