"""The ground: loops and threads, logs, networks, small functions."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import logging
import os
import socket
import threading
import warnings
from typing import Any

import dask
import pytest

from distributed.client import FutureCancelledError
from distributed.utils import (
    Deadline,
    Log,
    Logs,
    LoopRunner,
    SyncMethodMixin,
    cli_keywords,
    ensure_ip,
    format_dashboard_link,
    get_ip,
    get_ip_interface,
    ignoring,
    import_term,
    iscoroutinefunction,
    log_errors,
    nbytes,
    open_port,
    parse_ports,
    silence_logging_cmgr,
    sync,
    tmpfile,
    wait_for,
    warn_on_duration,
)


@pytest.fixture
def runner() -> Any:
    runner = LoopRunner()
    runner.start()
    yield runner
    runner.stop()


# --- loops and threads ---------------------------------------------------------------------------------------


def test_sync_returns_and_raises(runner: LoopRunner) -> None:
    async def add(x: int, y: int = 1) -> int:
        return x + y

    async def fails() -> None:
        raise KeyError("here")

    assert sync(runner.loop, add, 1) == 2
    assert runner.run_sync(add, 1, y=5) == 6
    with pytest.raises(KeyError, match="here"):
        sync(runner.loop, fails)


def test_sync_times_out_and_cancels(runner: LoopRunner) -> None:
    cancelled = threading.Event()

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(TimeoutError, match=r"timed out after 0\.01 s"):
        sync(runner.loop, never, callback_timeout="10ms")
    assert cancelled.wait(5)


def test_sync_keeps_a_timeout_that_is_the_coroutines_own(runner: LoopRunner) -> None:
    async def own() -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        sync(runner.loop, own, callback_timeout=5)


def test_sync_tells_cancellations_apart(runner: LoopRunner) -> None:
    """What the coroutine raises about futures of the cluster is an ordinary exception of its own type."""

    async def cancelled_future() -> None:
        raise FutureCancelledError("key", "enough")

    async def cancelled_coroutine() -> None:
        raise asyncio.CancelledError

    with pytest.raises(FutureCancelledError, match="enough"):
        sync(runner.loop, cancelled_future)
    with pytest.raises(asyncio.CancelledError):
        sync(runner.loop, cancelled_coroutine)


def test_sync_refuses_to_wait_for_itself(runner: LoopRunner) -> None:
    async def nothing() -> None: ...

    async def inside() -> None:
        sync(runner.loop, nothing)

    with pytest.raises(RuntimeError, match="own thread"):
        sync(runner.loop, inside)
    runner.stop()
    with pytest.raises(RuntimeError, match="closed"):
        sync(runner.loop, nothing)


def test_loop_runner_stops_only_what_it_started(runner: LoopRunner) -> None:
    other = LoopRunner(loop=runner.loop)
    other.start()
    assert other.is_started()
    other.stop()

    async def works() -> str:
        return "still"

    assert sync(runner.loop, works) == "still"
    with pytest.raises(RuntimeError, match="running event loop"):
        LoopRunner(asynchronous=True)


def test_sync_method_mixin(runner: LoopRunner) -> None:
    class Thing(SyncMethodMixin):
        loop = runner.loop

        async def _f(self, x: int) -> int:
            return x + 1

        def f(self, x: int, **kwargs: Any) -> Any:
            return self.sync(self._f, x, **kwargs)

    thing = Thing()
    assert not thing.asynchronous
    assert thing.f(1) == 2

    async def inside() -> int:
        assert thing.asynchronous
        return int(await thing.f(2)) + int(await thing.f(3, callback_timeout=5))

    assert sync(runner.loop, inside) == 7


def test_wait_for_and_deadline() -> None:
    async def main() -> None:
        assert await wait_for(asyncio.sleep(0, 5), 1) == 5
        with pytest.raises(asyncio.TimeoutError):
            await wait_for(asyncio.Event().wait(), 0.001)

    asyncio.run(main())
    never = Deadline.after(None)
    assert never.remaining is None and not never.expired
    assert Deadline.after(0).expired
    assert 0 < (Deadline.after(100).remaining or 0) <= 100


# --- logs ----------------------------------------------------------------------------------------------------


def test_logs_escape() -> None:
    logs = Logs({"<b>": Log("<script>")})
    html = logs._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html and "<b>" not in html


def test_log_errors(caplog: pytest.LogCaptureFixture) -> None:
    @log_errors
    def plain() -> None:
        raise ValueError("plain one")

    @log_errors()
    async def coroutine() -> None:
        raise ValueError("async one")

    with caplog.at_level(logging.ERROR, logger="distributed.utils"):
        logging.getLogger("distributed").propagate, old = True, logging.getLogger("distributed").propagate
        try:
            for call in (plain, lambda: asyncio.run(coroutine())):
                with pytest.raises(ValueError, match="one"):
                    call()
            with pytest.raises(ZeroDivisionError), log_errors():
                _ = 1 / 0
        finally:
            logging.getLogger("distributed").propagate = old
    assert [text in caplog.text for text in ("plain one", "async one", "division by zero")] == [True] * 3


def test_silence_logging() -> None:
    handler = logging.NullHandler()
    logger = logging.getLogger("distributed.test_silence")
    logger.addHandler(handler)
    with silence_logging_cmgr("error", root="distributed.test_silence"):
        assert handler.level == logging.ERROR
    assert handler.level == logging.NOTSET
    logger.removeHandler(handler)


def test_warn_on_duration() -> None:
    with pytest.warns(UserWarning, match="slow thing"), warn_on_duration("0 ms", "slow thing"):
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with warn_on_duration("10 s", "slow thing"):
            pass


# --- network -------------------------------------------------------------------------------------------------


def test_addresses() -> None:
    assert ensure_ip("localhost") == "127.0.0.1"
    assert ensure_ip("127.0.0.1") == "127.0.0.1"
    with pytest.raises(OSError, match="cannot resolve host name"):
        ensure_ip("no such host.invalid")
    socket.inet_aton(get_ip())
    assert get_ip("127.0.0.1") == "127.0.0.1"
    with pytest.raises(ValueError, match="'nonsense' is not a valid network interface"):
        get_ip_interface("nonsense")


def test_ports() -> None:
    port = open_port("127.0.0.1")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", port))
    assert parse_ports(None) == [None]
    assert parse_ports(23) == parse_ports("23") == [23]
    assert parse_ports("100:103") == [100, 101, 102, 103]
    assert parse_ports([5, 6]) == [5, 6]
    for bad in ("103:100", "x", "1:y"):
        with pytest.raises(ValueError):
            parse_ports(bad)
    for wrong in (1.5, True, [1, "2"]):
        with pytest.raises(TypeError):
            parse_ports(wrong)  # type: ignore[arg-type]


def test_dashboard_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHO", "me")
    with dask.config.set({"distributed.dashboard.link": "{scheme}://{host}:{port}/{WHO}"}):
        assert format_dashboard_link("there", 80) == "http://there:80/me"


# --- small functions -----------------------------------------------------------------------------------------


def test_import_term() -> None:
    assert import_term("json.dumps") is json.dumps
    assert import_term("os.path:join") is os.path.join
    assert import_term("json") is json
    with pytest.raises(AttributeError):
        import_term("json.nonsense")


def test_iscoroutinefunction_and_nbytes() -> None:
    async def f() -> None: ...

    assert iscoroutinefunction(f) and not iscoroutinefunction(len)
    assert nbytes(b"abc") == nbytes(memoryview(b"abc")) == nbytes(bytearray(3)) == 3


def test_tmpfile() -> None:
    with tmpfile(".txt") as path:
        assert path.endswith(".txt") and not os.path.exists(path)
        with open(path, "w") as f:
            f.write("x")
    assert not os.path.exists(path)
    with ignoring(ValueError):
        raise ValueError


def test_cli_keywords() -> None:
    assert cli_keywords({"x": 123, "save_file": "foo bar", "flag": True, "other": False}) == [
        "--x",
        "123",
        "--save-file",
        "foo bar",
        "--flag",
        "--no-other",
    ]

    class Thing:
        def __init__(self, x: int) -> None: ...

    assert cli_keywords({"x": 1}, cls=Thing) == ["--x", "1"]
    with pytest.raises(ValueError, match="does not support keyword y"):
        cli_keywords({"y": 1}, cls=Thing)


def test_exceptions_are_the_ones_that_users_catch() -> None:
    from distributed import utils

    assert utils.TimeoutError is TimeoutError
    assert utils.CancelledError is concurrent.futures.CancelledError
