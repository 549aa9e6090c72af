"""Messages survive the wire whatever is in them; bytes that are no messages are refused, and nothing else happens."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from distributed.comm.reader import FrameReader
from distributed.protocol import Serialize, Serialized, dumps, loads, to_serialize
from distributed.protocol.framing import FramingError, encode_prelude

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    | st.binary(max_size=20)
)
keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8) | st.integers(-5, 5)
# what comes back equal: msgpack gives lists as tuples
plain = st.recursive(
    scalars, lambda inner: st.tuples(inner, inner) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)
arrays = hnp.arrays(
    hnp.boolean_dtypes() | hnp.integer_dtypes() | hnp.floating_dtypes() | hnp.datetime64_dtypes(),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6),
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


@given(plain)
def test_plain_messages(message: Any) -> None:
    assert same(message, loads(dumps({"x": message}))["x"])


@given(st.lists(arrays | plain, max_size=4), st.sampled_from([None, "zlib", "lz4", "zstd", "auto"]))
def test_payloads(values: list[Any], compression: str | None) -> None:
    message = {"op": "x", "data": [to_serialize(value) for value in values], "n": len(values)}
    frames = dumps(message, context={"compression": compression})
    assert same(loads(frames)["data"], tuple(values))
    # a relay that does not look gives the same payloads on
    relayed = loads(frames, deserialize=False)
    assert all(type(item) is Serialized for item in relayed["data"])
    again = loads(dumps(relayed, context={"compression": compression}))
    assert same(again["data"], tuple(values)) and again["n"] == len(values)


@given(arrays, st.integers(1, 64))
def test_payloads_in_shards(value: Any, size: int) -> None:
    assert same(value, loads(dumps({"x": Serialize(value)}, frame_split_size=size))["x"])


@st.composite
def streams(draw: Any) -> tuple[list[list[bytes]], list[int]]:
    messages = draw(
        st.lists(st.lists(st.binary(max_size=60), min_size=1, max_size=4), min_size=1, max_size=6)
    )
    cuts = draw(st.lists(st.integers(1, 40), min_size=1, max_size=30))
    return messages, cuts


def feed(reader: FrameReader, data: bytes, cuts: list[int]) -> None:
    position, i = 0, 0
    while position < len(data):
        buffer = reader.get_buffer()
        n = min(cuts[i % len(cuts)], len(buffer), len(data) - position)
        buffer[:n] = data[position : position + n]
        reader.advance(n)
        position, i = position + n, i + 1


@given(streams())
def test_frames_do_not_depend_on_how_the_bytes_arrive(stream: tuple[list[list[bytes]], list[int]]) -> None:
    messages, cuts = stream
    data = b"".join(
        bytes(encode_prelude([len(frame) for frame in frames])) + b"".join(frames) for frames in messages
    )
    reader = FrameReader()
    feed(reader, data, cuts)
    assert [[bytes(frame) for frame in received.frames] for received in reader.messages] == messages
    assert reader.at_boundary
    assert reader.queued_bytes == sum(len(frame) for frames in messages for frame in frames[1:])


@given(st.binary(min_size=16, max_size=200), st.lists(st.integers(1, 50), min_size=1, max_size=5))
def test_arbitrary_bytes_are_refused_or_wait_for_more(data: bytes, cuts: list[int]) -> None:
    reader = FrameReader()
    try:
        feed(reader, data, cuts)
    except FramingError:
        return
    taken = sum(len(frame) for received in reader.messages for frame in received.frames)
    assert taken <= len(data)


@given(st.binary(max_size=100), st.lists(st.binary(max_size=20), max_size=2))
def test_arbitrary_frames_raise_an_ordinary_error(first: bytes, more: list[bytes]) -> None:
    """Whatever the peer sends as a message: it decodes, or an exception says that it does not."""
    try:
        loads([memoryview(bytearray(frame)) for frame in (first, *more)])
    except (ValueError, TypeError, KeyError, IndexError, EOFError, msgpack.UnpackException):
        pass


def test_the_refusals_are_reached() -> None:
    """The tests above would pass if nothing were ever refused."""
    with pytest.raises(FramingError):
        feed(FrameReader(), b"\xff" * 64, [64])
    with pytest.raises((ValueError, msgpack.UnpackException)):
        loads([memoryview(bytearray(b"\xc1"))])
