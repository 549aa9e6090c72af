"""Objects and messages to frames and back."""

from __future__ import annotations

import array
import operator
import pickle
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
from dask._task_spec import Alias, DataNode, List, Task, TaskRef

from distributed.core import Status
from distributed.protocol import (
    PayloadBudgetExceeded,
    Pickled,
    Serialize,
    Serialized,
    ToPickle,
    deserialize,
    deserialize_bytes,
    dumps,
    loads,
    maybe_compress,
    register_generic,
    register_serialization,
    resolve_compression,
    serialize,
    serialize_bytes,
    sizing,
    to_serialize,
)
from distributed.protocol.compression import codecs, decompress
from distributed.protocol.specs import SpecDumper, compose_pickled_task, dump_function, load_function


def through(msg: Any, **kwargs: Any) -> Any:
    """As if it had travelled: frames arrive in writable memory of their own."""
    return loads([bytearray(frame) for frame in dumps(msg, **kwargs)])


def test_documented_bytes() -> None:
    assert dumps([{"op": "keep-alive"}])[0].hex() == "9181a26f70aa6b6565702d616c697665"
    assert (
        dumps({"keys": {("a", 1)}})[0].hex() == "81a46b65797382a75f5f5365745f5fc3a761732d6c6973749192a16101"
    )
    assert (
        dumps({"s": Status.running})[0].hex()
        == "81a17384a85f5f456e756d5f5fc3a46e616d65a772756e6e696e67aa5f5f6d6f64756c655f5fb064697374726962757465642e636f7265a85f5f6e616d655f5fa6537461747573"
    )
    frames = dumps({"op": "x", "annotations": ToPickle({})})
    assert frames[0].hex() == "82a26f70a178ab616e6e6f746174696f6e7381ab5f5f5069636b6c65645f5f01"
    assert len(frames[1]) == 49
    frames = dumps({"status": "OK", "data": {"x": Serialize(1)}})
    assert frames[0].hex() == "82a6737461747573a24f4ba46461746181a17881ae5f5f53657269616c697a65645f5f01"
    assert (len(frames[1]), bytes(frames[2]).hex()) == (99, "80054b012e")


def test_messages() -> None:
    msg = {
        "op": "x",
        "list": [1, (2, 3)],
        ("k", 1): None,
        5: b"b",
        "set": {1, ("a", 2)},
        "status": Status.closing,
    }
    assert through(msg) == {
        "op": "x",
        "list": (1, (2, 3)),
        ("k", 1): None,
        5: b"b",
        "set": {1, ("a", 2)},
        "status": Status.closing,
    }
    # what msgpack cannot pack is pickled in place
    assert through({"x": [1, complex(1, 2), {"y": frozenset((1,))}]}) == {
        "x": (1, complex(1, 2), {"y": frozenset((1,))})
    }
    assert through({"a": ToPickle(operator.add)}) == {"a": operator.add}


OBJECTS: list[Any] = [
    b"abc", bytearray(b"abc"), memoryview(b"abcd"), array.array("d", [1, 2]), 1, "x", None, [1, "2"], (1,), {"a": 1}, {1, 2}, {("t", 1): [b"x", np.ones(2)]},
    [], {}, [b"", np.zeros((0, 3))],
]  # fmt: skip


@pytest.mark.parametrize("obj", OBJECTS, ids=repr)
def test_objects(obj: Any) -> None:
    result = through(Serialize(obj))
    assert type(result) is type(obj)
    assert str(result) == str(obj) if not isinstance(obj, memoryview) else result == obj
    header, frames = serialize(obj)
    assert type(deserialize(header, frames)) is type(obj)


ARRAYS = [
    np.arange(10), np.arange(12).reshape(3, 4).T, np.arange(24).reshape(2, 3, 4)[:, ::2], np.broadcast_to(np.arange(4), (3, 4)),
    np.broadcast_to(np.float32(3), (5, 5)), np.array(["a", None], object), np.array([], float), np.zeros((0, 3)), np.array(5),
    np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]), np.array(["2020-01-01"], "M8[D]"), np.array(["abc", "d"]),
    np.arange(4, dtype=">i4"), np.ones((3, 3), order="F"), np.matrix([[1, 2]]), np.array([1 + 2j]), np.arange(10)[::-1], np.array([True, False]),
]  # fmt: skip


@pytest.mark.parametrize("x", ARRAYS, ids=lambda x: f"{x.dtype}-{x.shape}-{x.strides}")
def test_numpy(x: Any) -> None:
    y = through(Serialize(x))
    assert type(y) is type(x) and y.dtype == x.dtype and y.shape == x.shape
    assert np.array_equal(x, y)
    assert y.flags.writeable == x.flags.writeable or x.dtype.hasobject


def test_numpy_is_not_copied() -> None:
    x = np.arange(100_000)
    frames = dumps(Serialize(x))
    assert np.shares_memory(np.frombuffer(frames[2], dtype=x.dtype), x)
    received = [bytearray(frame) for frame in frames]
    assert np.shares_memory(loads(received), np.frombuffer(received[2], dtype=x.dtype))
    # read-only memory becomes writable where that was promised
    y = loads([bytes(frame) for frame in frames])
    assert y.flags.writeable
    x.flags.writeable = False
    assert not through(Serialize(x)).flags.writeable


def test_masked_arrays() -> None:
    for x in (np.ma.masked_array([1, 2], [0, 1]), np.ma.masked_array([1.0, 2.0], fill_value=7)):
        y = through(Serialize(x))
        assert str(x) == str(y) and x.fill_value == y.fill_value
    assert through(Serialize(np.ma.masked)) is np.ma.masked


def test_pandas_out_of_band() -> None:
    df = pd.DataFrame({"a": np.arange(10_000), "b": ["x"] * 10_000, "c": pd.Categorical(["u", "v"] * 5_000)})
    frames = dumps(Serialize(df))
    assert len(frames) > 3
    pd.testing.assert_frame_equal(through(Serialize(df)), df)
    result = through(Serialize(df))
    result.loc[0, "a"] = 5


def test_arrow_and_scipy() -> None:
    table = pa.table({"a": [1, 2], "b": ["x", None]})
    assert through(Serialize(table)).equals(table)
    batch = table.to_batches()[0]
    assert through(Serialize(batch)).equals(batch)
    for cls in (
        scipy.sparse.csr_matrix,
        scipy.sparse.coo_matrix,
        scipy.sparse.dok_matrix,
        scipy.sparse.csc_array,
    ):
        x = cls(np.diag([1.0, 2.0]))
        assert (through(Serialize(x)).toarray() == x.toarray()).all()


def test_relayed_payloads_are_untouched() -> None:
    frames = [
        bytes(frame)
        for frame in dumps({"x": Serialize(np.arange(1000)), "y": ToPickle({1: 2})}, frame_split_size=1000)
    ]
    relayed = loads(frames, deserialize=False, pickled="opaque")
    assert type(relayed["x"]) is Serialized and type(relayed["y"]) is Pickled
    again = [bytes(frame) for frame in dumps({"y": relayed["y"], "x": relayed["x"]})]
    result = loads(again)
    assert result["y"] == {1: 2} and result["x"].tolist() == list(range(1000))


def test_large_frames_are_cut_and_joined() -> None:
    x = np.arange(10_000)
    frames = dumps(Serialize(x), frame_split_size=7_000)
    assert len(frames) == 2 + -(-x.nbytes // 7_000)
    assert all(len(frame) <= 7_000 for frame in frames)
    assert np.array_equal(through(Serialize(x), frame_split_size=7_000), x)


class Refuses:
    def __reduce__(self) -> Any:
        raise ValueError("no pickle of me")


def test_errors() -> None:
    with pytest.raises(TypeError, match="no pickle of me"):
        dumps(Serialize(Refuses()), on_error="raise")
    frames = dumps({"x": Serialize(Refuses())})
    with pytest.raises(TypeError, match="Could not serialize object of type"):
        loads(frames)
    with pytest.raises(TypeError, match="only able to deserialize"):
        loads(dumps(Serialize(object())), deserializers=["msgpack"])
    with pytest.raises(TypeError, match="none of the families"):
        dumps(Serialize(object()), serializers=["msgpack"], on_error="raise")
    with pytest.raises(ValueError, match="unknown serializer family 'nonsense'"):
        serialize(1, serializers=["nonsense"])


@pytest.mark.parametrize(
    "frames",
    [
        [b"\xc1"],
        [b"\xdd\xff\xff\xff\xff"],
        [b"\x91" * 100_000],
        [dumps({"x": Serialize(1)})[0]],
        [dumps({"x": Serialize(1)})[0], b"\x80"],
        [dumps({"x": Serialize(1)})[0], b"\x81\xaenum-sub-frames\x05"],
        [b"\x81\xae__Serialized__\xff", b""],
    ],
)
def test_malformed_messages(frames: Any) -> None:
    with pytest.raises(ValueError):
        loads(frames)


def test_enums_of_other_packages_are_not_imported() -> None:
    evil = {"__Enum__": True, "name": "x", "__module__": "antigravity", "__name__": "y"}
    with pytest.raises(RuntimeError, match="not allowed"):
        loads(dumps(evil))


def test_budget() -> None:
    sizing.counters.calls = 0
    control = {"op": "x", "data": list(range(1000)), "text": "y" * 100_000}
    dumps(control, payload_budget=10)
    assert sizing.counters.calls == 0, "control messages are never sized"
    dumps({"x": Serialize(np.arange(1000))})
    assert sizing.counters.calls == 0, "without budget nothing is sized"
    small, large = Serialize(b"x" * 10), Serialize(np.arange(10_000))
    msg = {"small": small, "large": large, "more": Serialize(1)}
    with pytest.raises(PayloadBudgetExceeded) as info:
        dumps(msg, payload_budget=1000)
    assert sizing.counters.calls == 2, "the pass ends where the budget does"
    assert list(info.value.finished) == [id(small)]
    made = info.value.finished[id(small)][2]
    frames = dumps(msg, finished=info.value.finished)
    assert sizing.counters.calls == 2
    assert any(frame is made[0] for frame in frames), "what was finished is used again"
    assert loads(frames)["large"].sum() == np.arange(10_000).sum()
    relayed = loads(frames, deserialize=False)
    dumps(relayed, payload_budget=10**9)
    assert sizing.counters.calls == 2, "frames are known by their length"


@pytest.mark.parametrize("name", [name for name in codecs if isinstance(name, str)])
def test_compression(name: str) -> None:
    data = b"0123456789" * 10_000
    used, packed = maybe_compress(data, name)
    assert used == name and len(packed) < len(data) / 2
    (back,) = decompress({"compression": [name]}, [packed])
    assert bytes(back) == data
    noise = np.random.default_rng(0).bytes(100_000)
    assert maybe_compress(noise, name) == (None, noise)
    assert maybe_compress(b"0" * 100, name)[0] is None
    x = np.zeros(100_000)
    y = through(Serialize(x), context={"compression": name})
    assert np.array_equal(x, y) and y.flags.writeable
    assert sum(len(frame) for frame in dumps(Serialize(x), context={"compression": name})) < x.nbytes / 10


def test_compression_settings() -> None:
    assert resolve_compression(False) is None and resolve_compression("auto") in ("lz4", "snappy", None)
    with pytest.raises(ValueError, match=r"distributed\.comm\.compression"):
        resolve_compression("nonsense")
    with pytest.raises(ValueError, match="impossible"):
        decompress({"compression": ["lz4"]}, [b"\xff\xff\xff\xff" + b"\0" * 10])
    with pytest.raises(ValueError, match="no library"):
        decompress({"compression": ["nonsense"]}, [b""])


def test_disk_format() -> None:
    for obj in (np.arange(100), {"x": 1}, b"abc"):
        assert str(deserialize_bytes(serialize_bytes(obj))) == str(obj)
    with pytest.raises(ValueError, match="claimed"):
        deserialize_bytes(b"\xff" * 16)


class Attributed:
    def __init__(self) -> None:
        self.number = 5
        self.array = np.arange(5)
        self.inner = {"a": np.ones(2), "b": "x"}


class Custom:
    def __init__(self, data: bytes) -> None:
        self.data = data


def test_registration() -> None:
    register_generic(Attributed)
    y = through(Serialize(Attributed()))
    assert (
        y.number == 5
        and y.array.tolist() == [0, 1, 2, 3, 4]
        and y.inner["b"] == "x"
        and y.inner["a"].sum() == 2
    )
    register_serialization(Custom, lambda x: ({}, [x.data]), lambda header, frames: Custom(bytes(frames[0])))
    assert through(to_serialize(Custom(b"abc"))).data == b"abc"
    with pytest.raises(TypeError, match="class itself"):
        register_serialization("Custom", None, None)  # type: ignore[arg-type]


# --- specs ---------------------------------------------------------------------------------------------------


def test_composed_tasks_are_tasks() -> None:
    dumper = SpecDumper()
    x = 10
    task = pickle.loads(
        compose_pickled_task(("k", 1), (1, dumper.dump((TaskRef("a"), 5)), None), dump_function(operator.add))
    )
    assert (
        isinstance(task, Task) and task.key == ("k", 1) and task.dependencies == {"a"} and task({"a": 3}) == 8
    )
    task = pickle.loads(
        compose_pickled_task(
            "k", (1, dumper.dump((1,)), dumper.dump({"y": 2})), dump_function(lambda a, y: a + y + x)
        )
    )
    assert task() == 13
    node = List(TaskRef("a"), 1)
    assert pickle.loads(compose_pickled_task("k", dumper.dump(node)))({"a": 0}) == [0, 1]
    payload = loads(dumps(Serialize(np.arange(3))), deserialize=False)
    data = pickle.loads(compose_pickled_task("k", payload))
    assert isinstance(data, DataNode) and data().tolist() == [0, 1, 2]
    alias = pickle.loads(compose_pickled_task("k", dumper.dump(Alias("k", "other"))))
    assert alias({"other": 5}) == 5
    with pytest.raises(ValueError, match="function"):
        compose_pickled_task("k", (1, b"", None))


def test_composing_unpickles_nothing() -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (exec, ("raise AssertionError('unpickled')",))

    spec = (1, pickle.dumps((Bomb(),)), None)
    composed = compose_pickled_task("k", spec, pickle.dumps(Bomb()))
    with pytest.raises(AssertionError, match="unpickled"):
        pickle.loads(composed)


def test_functions_by_value_are_pickled_once() -> None:
    dumper = SpecDumper()

    def local(x: int) -> int:
        return x + 1

    first = dumper.dump(Task("k", sum, [1], local))
    pickles = dict(dumper._by_value)
    dumper.dump(Task("l", sum, [2], local))
    assert dumper._by_value == pickles and len(pickles) == 1
    assert pickle.loads(first).args[1](1) == 2
    assert load_function(dump_function(local))(1) == 2
    with pytest.raises(TypeError, match="Could not serialize"):
        dumper.dump((Refuses(),))
