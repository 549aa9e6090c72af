"""The tcp framing: how a list of frames lies on the byte stream. Pure functions on numbers and memory.

    u64 A | u64 N | u64 L[0..N-1] | frames

`A` is the length of "region 1", which starts after itself and ends on a frame boundary; all integers are little-endian. A released
receiver allocates region 1 at once and each later frame by itself, so the sender's choice of where region 1 ends decides
what shares memory there: small frames do, large ones own theirs.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from distributed.protocol.limits import MAX_FRAME_BYTES, MAX_FRAMES, MAX_MESSAGE_BYTES
from distributed.protocol.utils import host_array

#: frames up to this size may share an allocation with their neighbours; above, sharing would keep a payload alive
#: for the sake of something small, or the other way round
SHARED_BUFFER_MAX = 64 * 2**10

_ONE_FRAME = struct.Struct("<QQQ")


class FramingError(ValueError):
    """The stream claims something impossible; says what. The connection cannot be used any more."""


def encode_prelude(lengths: Sequence[int]) -> bytes:
    """The bytes that precede the frames of a message.

    Region 1 ends before the first frame above `SHARED_BUFFER_MAX`.
    """
    n = len(lengths)
    if n == 1:
        return _ONE_FRAME.pack(16 + lengths[0] if lengths[0] <= SHARED_BUFFER_MAX else 16, 1, lengths[0])
    region = 8 + 8 * n
    for length in lengths:
        if length > SHARED_BUFFER_MAX:
            break
        region += length
    return struct.pack(f"<QQ{n}Q", region, n, *lengths)


def check_head(region: int, nframes: int) -> None:
    """Check the first two numbers of a message."""
    if not 0 < nframes <= MAX_FRAMES:
        raise FramingError(f"a message of {nframes} frames is claimed; the limit is {MAX_FRAMES}")
    if region < 8 + 8 * nframes:
        raise FramingError(f"region 1 of {region} bytes cannot hold the lengths of {nframes} frames")
    if region > MAX_MESSAGE_BYTES:
        raise FramingError(f"region 1 of {region} bytes is claimed; the limit is {MAX_MESSAGE_BYTES}")


def check_lengths(region: int, lengths: Sequence[int]) -> int:
    """Check the frame lengths of a message; returns their sum."""
    total = sum(lengths)
    if total > MAX_MESSAGE_BYTES or max(lengths) > MAX_FRAME_BYTES:
        raise FramingError(
            f"frames of up to {max(lengths)} bytes, {total} in all, are claimed; the limits are {MAX_FRAME_BYTES} and {MAX_MESSAGE_BYTES}"
        )
    rest = region - 8 - 8 * len(lengths)
    if rest != total:
        for length in lengths:
            if rest <= 0:
                break
            rest -= length
        if rest != 0:
            raise FramingError("region 1 does not end on a frame boundary")
    return total


def plan_buffers(lengths: Sequence[int]) -> tuple[list[memoryview], list[memoryview]]:
    """Allocate the memory for a message.

    Returns the frames, and the buffers to receive into, in order, which together are exactly the message: consecutive small frames
    share one buffer, each large frame has its own.
    """
    frames: list[memoryview] = []
    targets: list[memoryview] = []
    i, n = 0, len(lengths)
    while i < n:
        if lengths[i] > SHARED_BUFFER_MAX:
            buffer = host_array(lengths[i])
            frames.append(buffer)
            targets.append(buffer)
            i += 1
            continue
        j, size = i, 0
        while j < n and lengths[j] <= SHARED_BUFFER_MAX:
            size += lengths[j]
            j += 1
        buffer = memoryview(bytearray(size))
        offset = 0
        for length in lengths[i:j]:
            frames.append(buffer[offset : offset + length])
            offset += length
        if size:
            targets.append(buffer)
        i = j
    return frames, targets
