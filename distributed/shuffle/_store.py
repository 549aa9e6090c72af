"""What a worker has received for its outputs: pieces in memory up to a limit, then in one file per output. For threads; no loop."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

from distributed.shuffle._core import PartitionId, ShuffleCodec
from distributed.shuffle._exceptions import P2POutOfDiskError, ShuffleClosedError

_LENGTH = struct.Struct("<Q")


class ShardStore:
    """Pieces by output.

    Parameters
    ----------
    directory
        Where files go, made on first use; None: everything stays in memory.
    limit
        Bytes of pieces in memory above which all of them are written.
    """

    def __init__(self, codec: ShuffleCodec, directory: str | None, limit: int) -> None:
        self._codec = codec
        self._directory = directory
        self._limit = limit
        self._lock = threading.Lock()
        #: one at a time writes; readers wait for it
        self._disk_lock = threading.Lock()
        self._seen: set[Any] = set()
        self._pieces: dict[PartitionId, list[Any]] = {}
        self._files: dict[PartitionId, str] = {}
        self._closed = False
        self.memory_bytes = 0
        self.disk_bytes = 0
        self.received_bytes = 0

    def add(self, shards: Sequence[tuple[Any, Any]]) -> None:
        """Sort shards by output. One that came before, from the same input, is ignored."""
        with self._lock:
            self._check_open()
            fresh = []
            for shard in shards:
                if shard[0] not in self._seen:
                    self._seen.add(shard[0])
                    fresh.append(shard)
        if not fresh:
            return
        pieces = self._codec.split(fresh)
        full = False
        with self._lock:
            self._check_open()
            self.received_bytes += sum(map(self._codec.sizeof, fresh))
            for partition, (piece, nbytes) in pieces.items():
                self._pieces.setdefault(partition, []).append(piece)
                self.memory_bytes += nbytes
            full = self._directory is not None and self.memory_bytes > self._limit
        if full:
            self._spill()

    def _check_open(self) -> None:
        if self._closed:
            raise ShuffleClosedError("the run of this shuffle has ended on this worker")

    def _spill(self) -> None:
        """Write what is in memory. Who adds meanwhile waits here in turn, so memory stays bounded."""
        assert self._directory is not None, "only stores with a directory spill"
        with self._disk_lock:
            with self._lock:
                if self._closed or self.memory_bytes <= self._limit:
                    return
                pieces, self._pieces = self._pieces, {}
                self.memory_bytes = 0
            try:
                os.makedirs(self._directory, exist_ok=True)
                for partition, items in pieces.items():
                    self._append(partition, items)
            except OSError as exc:
                if exc.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise P2POutOfDiskError(
                        exc.errno,
                        "no space left for the shards of a shuffle; free some, or set temporary-directory to a larger disk",
                        self._directory,
                    ) from exc
                raise

    def _append(self, partition: PartitionId, items: Sequence[Any]) -> None:
        path = self._files.get(partition)
        if path is None:
            assert self._directory is not None, "only stores with a directory spill"
            path = self._files[partition] = os.path.join(self._directory, str(len(self._files)))
        with open(path, "ab") as f:
            for item in items:
                data = self._codec.dump(item)
                f.write(_LENGTH.pack(len(data)))
                f.write(data)
                self.disk_bytes += len(data)

    def read(self, partition: PartitionId) -> list[Any]:
        """All pieces of an output; they stay, in case that the output is computed again."""
        with self._disk_lock:
            with self._lock:
                self._check_open()
                pieces = list(self._pieces.get(partition, ()))
                path = self._files.get(partition)
            if path is None:
                return pieces
            with open(path, "rb") as f:
                data = memoryview(f.read())
        offset = 0
        while offset < len(data):
            (length,) = _LENGTH.unpack_from(data, offset)
            offset += _LENGTH.size
            pieces.append(self._codec.load(data[offset : offset + length]))
            offset += length
        return pieces

    def close(self) -> Callable[[], None]:
        """Nothing is kept. Returns what removes the files, which may wait for a write that is under way."""
        with self._lock:
            self._closed = True
            self._pieces = {}
            self._seen = set()
            self.memory_bytes = 0
        return self._remove

    def _remove(self) -> None:
        with self._disk_lock:
            if self._directory is not None and os.path.exists(self._directory):
                shutil.rmtree(self._directory, ignore_errors=True)
            self._files.clear()
            self.disk_bytes = 0
