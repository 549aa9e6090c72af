"""Recorded conversations of the released package: every byte is understood, however it arrives, and goes out again the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from distributed.comm.reader import FrameReader
from distributed.protocol import Pickled, Serialized, dumps, loads

FILES = sorted((Path(__file__).parent / "data").glob("*.bin"))


def feed(data: bytes, sizes: Any) -> list[list[bytes]]:
    """The messages in a stream that arrives in pieces of these sizes."""
    reader = FrameReader()
    position = 0
    while position < len(data):
        buffer = reader.get_buffer()
        n = min(len(buffer), next(sizes), len(data) - position)
        buffer[:n] = data[position : position + n]
        reader.advance(n)
        position += n
    return [[bytes(frame) for frame in message.frames] for message in reader.messages]


def repeat(size: int) -> Any:
    while True:
        yield size


def growing() -> Any:
    size = 1
    while True:
        yield size
        size = size * 2 % 1009 + 1


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_messages_do_not_depend_on_how_bytes_arrive(path: Path) -> None:
    data = path.read_bytes()
    whole = feed(data, repeat(2**20))
    assert whole
    assert feed(data, repeat(1)) == whole
    assert feed(data, growing()) == whole


def plain(obj: Any) -> Any:
    """Payloads as comparable data; lists arrive as tuples."""
    if isinstance(obj, (Serialized, Pickled)):
        return (type(obj).__name__, plain(obj.header), [bytes(frame) for frame in obj.frames])
    if isinstance(obj, (list, tuple)):
        return tuple(plain(item) for item in obj)
    if isinstance(obj, dict):
        return {key: plain(value) for key, value in obj.items()}
    return obj


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_messages_make_the_round_trip(path: Path) -> None:
    for frames in feed(path.read_bytes(), repeat(2**20)):
        message = loads(frames, deserialize=False, pickled="opaque")
        again = [bytes(frame) for frame in dumps(message)]
        assert plain(loads(again, deserialize=False, pickled="opaque")) == plain(message)
        if len(frames) == 1 and b"__" not in frames[0]:
            assert again == frames, "a message of plain data has one encoding"


def test_what_was_said() -> None:
    """The operations of the documented protocol are there, with their fields."""
    ops: dict[str, set[str]] = {}
    for path in FILES:
        for frames in feed(path.read_bytes(), repeat(2**20)):
            message = loads(frames, deserialize=False, pickled="opaque")
            for item in message if isinstance(message, tuple) else (message,):
                if isinstance(item, dict) and "op" in item:
                    ops.setdefault(item["op"], set()).update(item)
    assert {"update-graph", "client-releases-keys", "register-client"} <= set(ops)
    assert ops["compute-task"] == {
        "op", "key", "run_id", "priority", "who_has", "nbytes", "run_spec", "resource_restrictions", "actor", "annotations", "span_id", "stimulus_id",
    }  # fmt: skip
    assert {"key", "run_id", "nbytes", "type", "typename", "startstops"} <= ops["task-finished"]
    assert {"key", "exception", "traceback", "run_id"} <= ops["task-erred"]


def test_values_in_recorded_payloads() -> None:
    path = next(p for p in FILES if p.stem == "client-rpc-1-from-scheduler")
    arrays = []
    for frames in feed(path.read_bytes(), repeat(2**20)):
        message = loads([bytearray(frame) for frame in frames])
        if isinstance(message, dict) and message.get("status") == "OK":
            arrays += [value for value in message["data"].values() if hasattr(value, "shape")]
    array = next(value for value in arrays if len(value) == 1000)
    assert array.tolist() in (list(range(1000)), list(range(0, 2000, 2)))
    # this connection negotiated pickle protocol 4, where the array is part of the pickle
    assert array.flags.writeable
