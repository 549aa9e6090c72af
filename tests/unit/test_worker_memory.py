"""What a worker and a nanny do at which share of their memory: measurements are given, nothing has to be filled."""

from __future__ import annotations

import asyncio
import os
import tempfile
from typing import Any

import dask
import pytest

from distributed.nanny.memory import NannyMemoryManager
from distributed.utils_test import captured_logger, gen_test
from distributed.worker.memory import MemoryManager, trim
from distributed.worker_memory import MemorySettings, parse_memory_limit

LIMIT = 1_000_000


def settings(**kwargs: Any) -> MemorySettings:
    values = {
        "target": 0.6,
        "spill": 0.7,
        "pause": 0.8,
        "terminate": 0.95,
        "max_spill": None,
        "spill_compression": None,
    }
    return MemorySettings(**{**values, **kwargs}, monitor_interval_s=0.001)


class Process:
    """Memory as it is said to be, and what was done about it."""

    def __init__(self, **kwargs: Any) -> None:
        self.memory = 0
        self.calls: list[str] = []
        self.manager = MemoryManager(
            settings(**kwargs),
            LIMIT,
            measure=lambda: self.memory,
            pause=lambda: self.calls.append("pause"),
            resume=lambda: self.calls.append("resume"),
        )

    async def at(self, memory: int) -> list[str]:
        self.memory = memory
        await self.manager.check()
        calls, self.calls = self.calls, []
        return calls


@gen_test()
async def test_pause_and_resume() -> None:
    process = Process(spill=None)
    with captured_logger("distributed.worker.memory") as log:
        assert await process.at(790_000) == []
        assert await process.at(810_000) == ["pause"]
        assert await process.at(900_000) == []
        assert await process.at(800_000) == ["resume"]
        assert await process.at(100_000) == []
    assert "Pausing worker" in log.getvalue() and "Resuming worker" in log.getvalue()
    assert "81%" in log.getvalue() and "0.95 MiB" in log.getvalue()


@gen_test()
async def test_what_the_process_takes_makes_results_go_to_disk() -> None:
    with tempfile.TemporaryDirectory() as directory:
        process = Process(target=None)
        data = process.manager.make_data(directory)
        for i in range(5):
            data.store(i, b"x" * 100_000, 100_000)
        await process.at(690_000)
        assert not data.on_disk()
        # without a target: down to the share at which it began
        await process.at(850_000)
        assert sorted(data.on_disk()) == [0, 1]
        data.close()


@gen_test()
async def test_nothing_left_to_spill_is_said_once() -> None:
    process = Process(pause=None)
    with captured_logger("distributed.worker.memory") as log:
        for _ in range(3):
            await process.at(750_000)
    assert log.getvalue().count("Unmanaged memory use is high") == 1


@gen_test()
async def test_without_a_limit_nothing_is_watched() -> None:
    manager = MemoryManager(settings(), None, measure=lambda: 10**12, pause=fail, resume=fail)
    assert not manager.spills
    await asyncio.wait_for(manager.run(), 5)


def fail() -> None:
    raise AssertionError("nobody asked for it")


def test_trimming_is_harmless() -> None:
    trim()


def test_the_nanny_ends_a_process_once(monkeypatch: Any) -> None:
    ended: list[int] = []
    manager = NannyMemoryManager(settings(terminate=1e-9), LIMIT, os.getpid, ended.append)
    with captured_logger("distributed.nanny.memory") as log:
        manager.check()
        manager.check()
    assert len(ended) == 1 and ended[0] > 1_000_000
    assert str(os.getpid()) in log.getvalue() and "0.95 MiB" in log.getvalue()
    NannyMemoryManager(settings(terminate=1e-9), LIMIT, lambda: None, fail).check()  # type: ignore[arg-type]
    NannyMemoryManager(settings(), 10**15, os.getpid, fail).check()  # type: ignore[arg-type]


def test_settings() -> None:
    found = MemorySettings.from_config()
    assert (found.target, found.spill, found.pause, found.terminate) == (0.6, 0.7, 0.8, 0.95)
    assert found.max_spill is None and found.monitor_interval_s == 0.1
    root = "distributed.worker.memory"
    with dask.config.set({f"{root}.target": False, f"{root}.max-spill": "1 MiB"}):
        found = MemorySettings.from_config()
        assert found.target is None and found.max_spill == 2**20
    for wrong in (2, 0, True, "60%", -0.5):
        with dask.config.set({f"{root}.pause": wrong}), pytest.raises(ValueError, match=r"memory\.pause"):
            MemorySettings.from_config()


def test_limits() -> None:
    assert parse_memory_limit("1 MB", 1) == 1_000_000
    assert parse_memory_limit(0, 1) is None
    with pytest.raises(ValueError, match="-1"):
        parse_memory_limit(-1, 1)
