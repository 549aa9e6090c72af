"""From bytes to messages' frames: an incremental reader without I/O.

The transport asks `get_buffer` where to put bytes and tells `advance` how many arrived; complete messages
queue up in `messages`. Small messages pass through one scratch buffer, so that a burst of them costs one
system call; the frames of a large message are received straight into their final memory. Every claimed
number is checked against `protocol.limits` before anything is allocated for it.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import NamedTuple

from distributed.protocol import framing

#: scratch size: a typical burst of control messages fits; larger ones would only be copied more slowly
SCRATCH_BYTES = 128 * 2**10

_HEAD = struct.Struct("<QQ")


class Received(NamedTuple):
    """One message: its frames (writable, flat) and the total length of all but the first."""

    frames: list[memoryview]
    payload_bytes: int


class FrameReader:
    """Cuts the byte stream of one connection into messages.

    Raises `framing.FramingError` from `advance` when the bytes claim something impossible; the connection is
    unusable then.
    """

    __slots__ = (
        "_end",
        "_filled",
        "_frames",
        "_header_need",
        "_payload",
        "_scratch",
        "_start",
        "_target",
        "_targets",
        "_view",
        "messages",
        "queued_bytes",
    )

    def __init__(self) -> None:
        #: complete messages, oldest first; the transport pops them
        self.messages: deque[Received] = deque()
        #: bytes in `messages`; the transport subtracts when it pops
        self.queued_bytes = 0
        self._scratch = bytearray(SCRATCH_BYTES)
        self._view = memoryview(self._scratch)
        self._start = 0
        self._end = 0
        #: final buffers of the message being received, from `_target` on not complete
        self._targets: list[memoryview] | None = None
        self._target = 0
        self._filled = 0
        self._frames: list[memoryview] = []
        self._payload = 0
        #: bytes that the header of the message at `_start` needs, once known
        self._header_need = 16

    def get_buffer(self) -> memoryview:
        """Writable memory for the next bytes; never empty."""
        if self._targets is not None:
            return self._targets[self._target][self._filled :]
        if self._end == len(self._view):
            self._compact()
        return self._view[self._end :]

    def advance(self, nbytes: int) -> None:
        """`nbytes` were written to the start of the last `get_buffer`."""
        if self._targets is not None:
            self._filled += nbytes
            if self._filled == self._targets[self._target].nbytes:
                self._next_target()
            return
        self._end += nbytes
        self._parse()

    @property
    def at_boundary(self) -> bool:
        """Whether no message is half received."""
        return self._targets is None and self._start == self._end

    def _next_target(self) -> None:
        targets = self._targets
        assert targets is not None, "a target can only be completed while a large message is being received"
        self._filled = 0
        self._target += 1
        while self._target < len(targets) and not targets[self._target].nbytes:
            self._target += 1
        if self._target == len(targets):
            self._targets = None
            self.messages.append(Received(self._frames, self._payload))
            self.queued_bytes += self._payload
            self._frames = []

    def _compact(self) -> None:
        """Move the unparsed tail to the front; grow when one header is larger than the scratch."""
        tail = bytes(self._view[self._start : self._end])
        if self._header_need > len(self._view):
            self._scratch = bytearray(2 * self._header_need)
            self._view = memoryview(self._scratch)
        self._view[: len(tail)] = tail
        self._start, self._end = 0, len(tail)

    def _parse(self) -> None:
        view = self._view
        start, end = self._start, self._end
        while end - start >= 16:
            region, nframes = _HEAD.unpack_from(view, start)
            framing.check_head(region, nframes)
            header = 16 + 8 * nframes
            if end - start < header:
                self._header_need = header
                self._start = start
                if start + header > len(view):
                    self._compact()
                return
            lengths = struct.unpack_from(f"<{nframes}Q", view, start + 16)
            total = framing.check_lengths(region, lengths)
            message_end = start + header + total
            if message_end <= end:
                self._take_small(start + header, lengths, total)
                start = message_end
                continue
            self._start = start
            if header + total <= len(view) // 2:
                # it will fit: wait for the rest in the scratch
                if message_end > len(view):
                    self._compact()
                return
            self._begin_large(start + header, end, lengths, total)
            self._start = self._end = 0
            self._header_need = 16
            return
        self._header_need = 16
        if start == end:
            self._start = self._end = 0
        else:
            self._start = start
            if len(view) - end < 16:
                self._compact()

    def _take_small(self, offset: int, lengths: tuple[int, ...], total: int) -> None:
        """A message that lies in the scratch as a whole: copied out once, its frames share the copy."""
        if len(lengths) > 1 and total > framing.SHARED_BUFFER_MAX:
            self._frames, targets = framing.plan_buffers(lengths)
            position = offset
            for target in targets:
                n = target.nbytes
                target[:] = self._view[position : position + n]
                position += n
            frames = self._frames
            self._frames = []
        else:
            copy = memoryview(bytearray(self._view[offset : offset + total]))
            if len(lengths) == 1:
                frames = [copy]
            else:
                frames = []
                position = 0
                for length in lengths:
                    frames.append(copy[position : position + length])
                    position += length
        payload = total - lengths[0]
        self.messages.append(Received(frames, payload))
        self.queued_bytes += payload

    def _begin_large(self, offset: int, end: int, lengths: tuple[int, ...], total: int) -> None:
        """Allocate the final buffers, copy what has arrived, receive the rest straight into them."""
        self._frames, targets = framing.plan_buffers(lengths)
        self._payload = total - lengths[0]
        self._targets = targets
        index = 0
        for index, target in enumerate(targets):  # noqa: B007 - the last index is used below
            n = min(target.nbytes, end - offset)
            target[:n] = self._view[offset : offset + n]
            offset += n
            if n < target.nbytes:
                self._filled = n
                break
        self._target = index
