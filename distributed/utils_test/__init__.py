"""Tools for tests of code that uses clusters: clusters, fixtures, functions to send, leak checks. Needs pytest."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tornado.ioloop import IOLoop

from distributed.client import Client
from distributed.utils import LoopRunner
from distributed.utils_test.clusters import (
    cluster,
    config_for_cluster_tests,
    end_cluster,
    gen_cluster,
    gen_test,
    original_config,
    popen,
    reset_config,
    start_cluster,
)
from distributed.utils_test.functions import (
    add,
    asyncinc,
    dec,
    div,
    double,
    inc,
    mul,
    randominc,
    run_for,
    slowadd,
    slowdec,
    slowdouble,
    slowidentity,
    slowinc,
    slowsum,
    throws,
    varying,
)
from distributed.utils_test.leaks import check_instances, check_process_leak, check_thread_leak, clean


@contextlib.contextmanager
def captured_logger(
    logger: logging.Logger | str, level: int = logging.INFO, propagate: bool | None = None
) -> Iterator[io.StringIO]:
    """What a logger says inside, as a text buffer."""
    if isinstance(logger, str):
        logger = logging.getLogger(logger)
    old_level, old_handlers, old_propagate = logger.level, logger.handlers[:], logger.propagate
    buffer = io.StringIO()
    logger.handlers[:] = [logging.StreamHandler(buffer)]
    logger.setLevel(level)
    if propagate is not None:
        logger.propagate = propagate
    try:
        yield buffer
    finally:
        logger.handlers[:] = old_handlers
        logger.setLevel(old_level)
        logger.propagate = old_propagate


@contextlib.contextmanager
def raises_with_cause(
    expected: Any, match: str | None, expected_cause: Any, match_cause: str | None, *more: Any
) -> Iterator[None]:
    """As ``pytest.raises``, for the exception and its chain of causes: pairs of type and pattern."""
    with pytest.raises(expected, match=match) as info:
        yield
    cause = info.value.__cause__
    pairs = [(expected_cause, match_cause), *zip(more[::2], more[1::2], strict=True)]
    for typ, pattern in pairs:
        assert isinstance(cause, typ), f"expected {typ} as cause, got {cause!r}"
        if pattern is not None:
            assert re.search(pattern, str(cause)), f"{pattern!r} not found in {cause!s}"
        cause = cause.__cause__


async def async_poll_for(
    predicate: Callable[[], bool], timeout: float = 15, fail_func: Any = None, period: float = 0.01
) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + timeout
    while not predicate():
        await asyncio.sleep(period)
        if time.monotonic() > deadline:
            if fail_func is not None:
                fail_func()
            pytest.fail(f"condition not reached within {timeout} s")


def poll_for(
    predicate: Callable[[], bool], timeout: float = 15, fail_func: Any = None, period: float = 0.01
) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + timeout
    while not predicate():
        time.sleep(period)
        if time.monotonic() > deadline:
            if fail_func is not None:
                fail_func()
            pytest.fail(f"condition not reached within {timeout} s")


@pytest.fixture
def cleanup() -> Iterator[None]:
    """Leak checks around a test."""
    with clean(), config_for_cluster_tests():
        yield


@pytest.fixture
def loop_in_thread(cleanup: None) -> Iterator[IOLoop]:
    """An event loop in a thread, for synchronous clients."""
    runner = LoopRunner(asynchronous=False)
    runner.start()
    yield runner.loop
    runner.stop()


@pytest.fixture
def loop(loop_in_thread: IOLoop) -> IOLoop:
    """Alias of `loop_in_thread`."""
    return loop_in_thread


@pytest.fixture
def cluster_fixture(loop: IOLoop) -> Iterator[Any]:
    """A cluster of processes."""
    with cluster() as result:
        yield result


@pytest.fixture
def s(cluster_fixture: Any) -> Any:
    """Its scheduler."""
    return cluster_fixture[0]


@pytest.fixture
def a(cluster_fixture: Any) -> Any:
    """Its first worker."""
    return cluster_fixture[1][0]


@pytest.fixture
def b(cluster_fixture: Any) -> Any:
    """Its second worker."""
    return cluster_fixture[1][1]


@pytest.fixture
def client(loop: IOLoop, cluster_fixture: Any) -> Iterator[Client]:
    """A client of it."""
    with Client(cluster_fixture[0]["address"], loop=loop) as c:
        yield c


c = client

__all__ = [
    "a",
    "add",
    "async_poll_for",
    "asyncinc",
    "b",
    "c",
    "captured_logger",
    "check_instances",
    "check_process_leak",
    "check_thread_leak",
    "clean",
    "cleanup",
    "client",
    "cluster",
    "cluster_fixture",
    "config_for_cluster_tests",
    "dec",
    "div",
    "double",
    "end_cluster",
    "gen_cluster",
    "gen_test",
    "inc",
    "loop",
    "loop_in_thread",
    "mul",
    "original_config",
    "poll_for",
    "popen",
    "raises_with_cause",
    "randominc",
    "reset_config",
    "run_for",
    "s",
    "slowadd",
    "slowdec",
    "slowdouble",
    "slowidentity",
    "slowinc",
    "slowsum",
    "start_cluster",
    "throws",
    "varying",
]
