"""Memory and frames: allocation, cutting, merging, and packing of frame lists into one buffer."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

try:
    import numpy as _numpy
except ImportError:  # numpy is optional: buffers are zero-filled without it
    _numpy = None  # type: ignore[assignment]

#: below this size zero-filling costs less than the detour through numpy
_NUMPY_ALLOCATION_MIN = 16 * 2**10


def host_array(n: int) -> memoryview:
    """`n` writable bytes; large ones are not zero-filled, which would cost as much as receiving them."""
    if _numpy is not None and n >= _NUMPY_ALLOCATION_MIN:
        return memoryview(_numpy.empty((n,), dtype="u1"))  # type: ignore[arg-type]
    return memoryview(bytearray(n))


def ensure_memoryview(obj: Any) -> memoryview:
    """A flat, contiguous view of bytes; copies only what is not contiguous."""
    view = memoryview(obj)
    if not view.nbytes:
        return memoryview(bytearray())
    if not view.contiguous:
        view = memoryview(bytearray(view))
    if view.ndim != 1 or view.format != "B":
        if not view.c_contiguous:
            # Fortran order: the bytes in memory order are what travels
            view = memoryview(_memory_order(view))
        view = view.cast("B")
    return view


def _memory_order(view: memoryview) -> Any:
    return view.tobytes(order="A")


def nbytes(frame: Any) -> int:
    """Length of a bytes-like object in bytes."""
    if type(frame) is bytes or type(frame) is bytearray:
        return len(frame)
    if type(frame) is memoryview:
        return frame.nbytes
    try:
        return int(frame.nbytes)
    except AttributeError:
        return len(frame)


def frame_split_size(frame: Any, n: int) -> list[Any]:
    """Cut a frame into pieces of at most `n` bytes, on item boundaries; no copies."""
    size = nbytes(frame)
    if size <= n:
        return [frame]
    view = ensure_memoryview(frame)
    return [view[i : i + n] for i in range(0, size, n)]


def merge_frames(pieces: Sequence[Any]) -> Any:
    """Join the pieces of one frame; without a copy where they lie side by side in one buffer."""
    if len(pieces) == 1:
        return pieces[0]
    total = sum(map(nbytes, pieces))
    joined = host_array(total)
    offset = 0
    for piece in pieces:
        n = nbytes(piece)
        joined[offset : offset + n] = ensure_memoryview(piece) if n else b""
        offset += n
    return joined


def pack_frames_prelude(frames: Sequence[Any]) -> bytes:
    """Count and lengths of frames, to precede them in one buffer."""
    lengths = [nbytes(frame) for frame in frames]
    return struct.pack(f"<Q{len(lengths)}Q", len(lengths), *lengths)


def pack_frames(frames: Sequence[Any]) -> bytes:
    """Frames in one buffer; `unpack_frames` is the inverse."""
    return b"".join([pack_frames_prelude(frames), *frames])


def unpack_frames(data: Any) -> list[memoryview]:
    """The frames in a buffer made by `pack_frames`, as views of it. ValueError if it is cut or not one."""
    view = memoryview(data).cast("B")
    if view.nbytes < 8:
        raise ValueError(f"a packed frame list needs at least 8 bytes, got {view.nbytes}")
    (n,) = struct.unpack_from("<Q", view)
    if 8 + 8 * n > view.nbytes:
        raise ValueError(f"{n} frames are claimed, more than {view.nbytes} bytes can describe")
    lengths = struct.unpack_from(f"<{n}Q", view, 8)
    start = 8 + 8 * n
    if start + sum(lengths) > view.nbytes:
        raise ValueError(f"frames of {sum(lengths)} bytes are claimed, {view.nbytes - start} are there")
    frames = []
    for length in lengths:
        frames.append(view[start : start + length])
        start += length
    return frames
