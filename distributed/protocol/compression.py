"""Codecs for frames, through whatever libraries are installed, and the policy of when to use them.

Compression pays only where the network is slower than the codec and the data shrinks, so a few samples are tried first. Each compressed
frame names its codec; decompression never depends on what was negotiated.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from distributed.protocol.limits import MAX_FRAME_BYTES
from distributed.protocol.utils import ensure_memoryview, nbytes


class Codec(NamedTuple):
    """A pair of functions on flat buffers."""

    compress: Callable[[Any], Any]
    decompress: Callable[[Any], Any]


def _identity(data: Any) -> Any:
    return data


#: name -> codec; open to further ones
codecs: dict[str | bool | None, Codec] = {
    None: Codec(_identity, _identity),
    False: Codec(_identity, _identity),
    "zlib": Codec(zlib.compress, zlib.decompress),
}


def _check_lz4_size(data: Any) -> None:
    """The block format starts with the size of the result; a hostile one must not be allocated."""
    if nbytes(data) < 4:
        raise ValueError("an lz4 frame needs at least 4 bytes")
    (size,) = struct.unpack_from("<I", data)
    # lz4 cannot shrink data to less than 1/255
    if size > min(MAX_FRAME_BYTES, 255 * nbytes(data)):
        raise ValueError(f"an lz4 frame of {nbytes(data)} bytes claims {size} bytes, which is impossible")


try:
    import lz4.block

    def _lz4_compress(data: Any) -> Any:
        return lz4.block.compress(data, return_bytearray=False)

    def _lz4_decompress(data: Any) -> Any:
        _check_lz4_size(data)
        return lz4.block.decompress(data, return_bytearray=True)

    codecs["lz4"] = Codec(_lz4_compress, _lz4_decompress)
except ImportError:
    pass  # an optional library

try:
    from cramjam import snappy as _snappy

    codecs["snappy"] = Codec(
        lambda data: bytes(_snappy.compress_raw(data)), lambda data: bytes(_snappy.decompress_raw(data))
    )
except ImportError:
    pass  # an optional library

#: level of zstd frames; set from the configuration by the comm layer
zstd_level = 3
zstd_threads = 0

try:
    import zstandard

    def _zstd_compress(data: Any) -> bytes:
        return bytes(zstandard.ZstdCompressor(level=zstd_level, threads=zstd_threads).compress(data))

    def _zstd_decompress(data: Any) -> bytes:
        claimed = zstandard.frame_content_size(data)
        if claimed > MAX_FRAME_BYTES:
            raise ValueError(f"a zstd frame claims {claimed} bytes; the limit is {MAX_FRAME_BYTES}")
        return bytes(zstandard.ZstdDecompressor().decompress(data))

    codecs["zstd"] = Codec(_zstd_compress, _zstd_decompress)
except ImportError:
    pass  # an optional library

#: frames shorter than this are not worth a call
MIN_BYTES = 10_000
#: the block formats count in signed 32 bits
MAX_BYTES = 2**31
SAMPLE_BYTES = 10_000
SAMPLES = 5
#: a frame is sent compressed if it shrinks to at most this share
WORTHWHILE_RATIO = 0.7

#: where samples are taken; seeded, so that the same data is treated alike in each run
_random = random.Random(0)


def resolve_compression(setting: str | bool | None, key: str = "distributed.comm.compression") -> str | None:
    """The codec that the value of a configuration key stands for.

    Raises
    ------
    ValueError
        Unknown or not installed; lists those that are.
    """
    if setting in (None, False, "none", "None", "false", "False"):
        return None
    if setting == "auto":
        return next((name for name in ("lz4", "snappy") if name in codecs), None)
    if isinstance(setting, str) and setting in codecs:
        return setting
    known = sorted(name for name in codecs if isinstance(name, str))
    raise ValueError(
        f"invalid compression {setting!r}: {key} must be false, 'auto' or one of {known} (others need a library to be installed)"
    )


def maybe_compress(frame: Any, compression: str | None) -> tuple[str | None, Any]:
    """Compress a frame if that is worthwhile; returns the codec used, or None, and the frame."""
    if not compression:
        return None, frame
    size = nbytes(frame)
    if size < MIN_BYTES or size > MAX_BYTES:
        return None, frame
    codec = codecs[compression]
    view = ensure_memoryview(frame)
    if size > SAMPLES * SAMPLE_BYTES:
        starts = [_random.randrange(0, size - SAMPLE_BYTES) for _ in range(SAMPLES)]
        sample = b"".join(view[i : i + SAMPLE_BYTES] for i in starts)
        if len(codec.compress(sample)) > WORTHWHILE_RATIO * len(sample):
            return None, frame
    compressed = codec.compress(view)
    if len(compressed) > WORTHWHILE_RATIO * size:
        return None, frame
    return compression, compressed


def decompress(header: dict[str, Any], frames: Any) -> list[Any]:
    """Undo per-frame compression as the header names it. ValueError for a codec that is not installed."""
    names = header.get("compression")
    if not names or not any(names):
        return list(frames)
    out = []
    for name, frame in zip(names, frames, strict=True):
        codec = codecs.get(name)
        if codec is None:
            raise ValueError(f"a frame is compressed with {name!r}, for which no library is installed here")
        out.append(frame if not name else codec.decompress(frame))
    return out
