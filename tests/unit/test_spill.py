"""Results on disk: what goes there, what comes back, and what stays in memory."""

from __future__ import annotations

import asyncio
import os
import pathlib
import tempfile
import threading
from typing import Any

import numpy as np
import pytest

from distributed import spill
from distributed.spill import Disk, MaxSpillExceeded, SpillBuffer
from distributed.utils_test import captured_logger, gen_test


class Unpicklable:
    nbytes = 10_000

    def __reduce__(self) -> Any:
        raise RuntimeError("not me")


def array(n: int, value: int = 1) -> Any:
    return np.full(n, value, "u1")


@gen_test()
async def test_the_oldest_go_to_disk_and_come_back() -> None:
    with tempfile.TemporaryDirectory() as directory:
        data = SpillBuffer(directory, target=25_000)
        for i in range(4):
            data.store(f"x{i}", array(10_000, i), 10_000)
        data.store("small", 5, 28)
        await data.settled()
        assert set(data.on_disk()) == {"x0", "x1"}
        assert data.spilled_memory == 20_000 and 20_000 <= data.spilled_disk < 22_000
        assert len(data) == 5 and set(data) == {"x0", "x1", "x2", "x3", "small"} and "x0" in data
        assert data.get_now(["x2", "small"]).keys() == {"x2", "small"}
        assert data.get_now(["x0"]) is None
        with pytest.raises(KeyError):
            data.get_now(["nothing"])
        values = await data.get_many(["x0", "x3", "small", "nothing"])
        assert values.keys() == {"x0", "x3", "small"}
        assert values["x0"].tolist() == [0] * 10_000 and values["x0"].flags.writeable
        await data.settled()
        assert "x0" not in data.on_disk(), "it is the newest now"
        for key in list(data):
            data.drop(key)
        data.drop("x0")
        assert not data and not data.spilled_disk
        assert not list(files(directory))
        data.close()


def files(directory: str) -> Any:
    return (path for path in pathlib.Path(directory).rglob("*") if path.is_file())


@gen_test()
async def test_reading_and_writing_do_not_happen_on_the_loop() -> None:
    threads: set[int] = set()

    class Spy:
        def __init__(self, payload: bytes) -> None:
            self.payload = payload

        def __reduce__(self) -> Any:
            threads.add(threading.get_ident())
            return load_spy, (self.payload,)

    def note() -> None:
        threads.add(threading.get_ident())

    load_spy.note = note  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as directory:
        data = SpillBuffer(directory, target=float("inf"))
        data.store("x", Spy(b"x" * 5000), 5000)
        assert await data.evict(1) == 5000
        assert "x" in data.on_disk()
        await data.get_many(["x"])
        assert len(threads) == 1 and threading.get_ident() not in threads
        data.close()


def load_spy(payload: bytes) -> bytes:
    load_spy.note()  # type: ignore[attr-defined]
    return payload


@gen_test()
async def test_what_cannot_be_pickled_stays_and_the_others_go() -> None:
    with tempfile.TemporaryDirectory() as directory, captured_logger("distributed.spill") as log:
        data = SpillBuffer(directory, target=15_000)
        bad = Unpicklable()
        data.store("bad", bad, 10_000)
        for i in range(3):
            data.store(f"x{i}", array(10_000), 10_000)
        await data.settled()
        assert set(data.on_disk()) == {"x0", "x1", "x2"}, "the limit holds as far as it can"
        assert data["bad"] is bad
        assert await data.evict(1) == 0
        assert log.getvalue().count("not me") == 1 and "'bad'" in log.getvalue()
        data.store("bad", array(10_000), 10_000)
        assert await data.evict(1) == 10_000, "another value of the key may go"
        data.close()


@gen_test()
async def test_a_full_disk() -> None:
    with tempfile.TemporaryDirectory() as directory, captured_logger("distributed.spill") as log:
        data = SpillBuffer(directory, target=5_000, max_spill=15_000)
        for i in range(4):
            data.store(f"x{i}", array(10_000, i), 10_000)
        await data.settled()
        assert list(data.on_disk()) == ["x0"]
        assert "max-spill" in log.getvalue()
        assert [data[f"x{i}"][0] for i in range(4)] == [0, 1, 2, 3]
        data.close()


def test_a_failed_write_leaves_no_file(tmp_path: Any, monkeypatch: Any) -> None:
    disk = Disk(str(tmp_path))
    disk["x"] = array(100)

    class FullDisk:
        def __init__(self, path: str, *args: Any, **kwargs: Any) -> None:
            self.file = os.open(path, os.O_CREAT | os.O_WRONLY)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *exc: object) -> None:
            os.close(self.file)

        def write(self, view: Any) -> int:
            os.write(self.file, b"part of it")
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(spill, "open", FullDisk, raising=False)
    with pytest.raises(OSError, match="No space left"):
        disk["y"] = array(100)
    monkeypatch.undo()
    assert list(disk) == ["x"] and len(list(files(str(tmp_path)))) == 1
    assert disk["x"].tolist() == [1] * 100


def test_disk_replaces_and_limits(tmp_path: Any) -> None:
    disk = Disk(str(tmp_path), max_bytes=5_000, compression="zlib")
    disk["x"] = array(1_000)
    disk["x"] = array(2_000, 3)
    assert len(list(files(str(tmp_path)))) == 1 and disk["x"].tolist() == [3] * 2_000
    with pytest.raises(MaxSpillExceeded, match="max-spill"):
        disk["y"] = np.random.default_rng(1).bytes(6_000)
    assert disk.pop("x", 7) == 7 and not disk.nbytes and not list(files(str(tmp_path)))
    with pytest.raises(KeyError):
        disk["x"]


@gen_test()
async def test_let_go_while_it_is_written() -> None:
    started, go_on = threading.Event(), threading.Event()

    class Slow:
        def __reduce__(self) -> Any:
            started.set()
            go_on.wait(10)
            return int, ()

    with tempfile.TemporaryDirectory() as directory:
        data = SpillBuffer(directory, target=1_000)
        data.store("slow", Slow(), 5_000)
        while not started.is_set():
            await asyncio.sleep(0.001)
        data.drop("slow")
        go_on.set()
        await data.settled()
        assert "slow" not in data and not data.spilled_disk and not list(files(directory))
        data.close()
