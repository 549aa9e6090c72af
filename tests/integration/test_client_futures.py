"""What a client keeps of its futures, and executors and callbacks that are built on them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from typing import Any

import dask
import pytest

from distributed import Client, wait
from distributed.client import FutureCancelledError
from distributed.utils_test import async_poll_for, captured_logger, dec, gen_cluster, inc


@gen_cluster(client=True)
async def test_a_cancelled_key_can_be_submitted_again_at_once(c: Client, s: Any, a: Any, b: Any) -> None:
    """The echo of the cancellation arrives after the key has got a new state, which it does not mean."""
    for i in range(20):
        first = c.submit(inc, i, key="again")
        await c.cancel([first])
        second = c.submit(inc, i, key="again")
        assert first.cancelled()
        assert await asyncio.wait_for(second, 10) == i + 1
        del first, second


@gen_cluster(client=True)
async def test_an_old_reference_does_not_release_a_new_state(c: Client, s: Any, a: Any, b: Any) -> None:
    old = c.submit(inc, 1, key="x")
    await old
    await c.cancel([old])
    new = c.submit(inc, 1, key="x")
    assert await new == 2
    old.release()
    # one round trip after the release has been handed over
    c._move_outgoing()
    await c.scheduler.identity()
    assert c.refcount == {"x": 1}
    assert not new.cancelled() and await new == 2


go_on = threading.Event()


def blocks() -> bool:
    return go_on.wait(30)


@gen_cluster(client=True)
async def test_who_gives_up_waiting_leaves_nothing_behind(c: Client, s: Any, a: Any, b: Any) -> None:
    blocked = c.submit(blocks, workers=[a.address])
    done = c.submit(inc, 1, workers=[b.address])
    try:
        for _ in range(3):
            with pytest.raises(asyncio.TimeoutError):
                await wait([blocked], timeout=0.01)
        await wait([blocked, done], return_when="FIRST_COMPLETED")
        assert not blocked._state.waiters
    finally:
        go_on.set()
    assert await blocked is True


@gen_cluster(client=True)
async def test_a_handler_of_events_may_wait_for_futures(c: Client, s: Any, a: Any, b: Any) -> None:
    seen: list[int] = []

    async def handler(event: Any) -> None:
        _, msg = event
        if msg == "bad":
            raise ValueError("the handler's own error")
        seen.append(await c.submit(inc, msg, pure=False))

    await c.subscribe_topic("numbers", handler)
    await async_poll_for(lambda: c.id in s.bus._subscribers["numbers"], 10)
    with captured_logger("distributed.client") as log:
        await c.log_event("numbers", "bad")
        await c.log_event("numbers", 1)
        await async_poll_for(lambda: seen == [2], 10)
    assert "the handler's own error" in log.getvalue() and "numbers" in log.getvalue()
    with pytest.raises(TypeError, match="msgpack"):
        await c.log_event("numbers", object())


@gen_cluster(client=True)
async def test_annotations_may_depend_on_keys(c: Client, s: Any, a: Any, b: Any) -> None:
    addresses = {"x-0": a.address, "x-1": b.address}
    with dask.annotate(workers=lambda key: addresses[key]):
        futures = c.map(inc, range(2), key=list(addresses))
        one = c.submit(inc, 5, key="x-0")
    await wait(futures)
    assert await c.who_has(futures) == {"x-0": (a.address,), "x-1": (b.address,)}
    assert await one == 1, "the key decides"


@gen_cluster(client=True)
async def test_arguments_that_are_of_the_wrong_type(c: Client, s: Any, a: Any, b: Any) -> None:
    for wrong in (
        {"resources": ["GPU"]},
        {"retries": "2"},
        {"priority": "high"},
        {"resources": {"GPU": "1"}},
    ):
        with pytest.raises(TypeError, match=next(iter(wrong))):
            c.submit(inc, 1, **wrong)


@gen_cluster(client=True)
async def test_worker_callbacks(c: Client, s: Any, a: Any, b: Any) -> None:
    def setup(dask_worker: Any) -> None:
        dask_worker.marked = True

    await c.register_worker_callbacks(setup)
    assert a.marked and b.marked
    assert await c.submit(lambda: 5) == 5


def boom(x: int) -> int:
    raise ZeroDivisionError(x)


def test_executor(client: Client) -> None:
    with client.get_executor(pure=False) as executor:
        future = executor.submit(inc, 1)
        assert isinstance(future, concurrent.futures.Future) and future.result(10) == 2
        assert list(executor.map(dec, [1, 2, 3])) == [0, 1, 2]
        with pytest.raises(ZeroDivisionError, match="7"):
            executor.submit(boom, 7).result(10)
        assert concurrent.futures.wait([executor.submit(inc, i) for i in range(5)], 10).not_done == set()
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(inc, 1)
    with pytest.raises(TypeError, match="nonsense"):
        client.get_executor(nonsense=1)


def test_executor_cancels(client: Client, tmp_path: Any) -> None:
    executor = client.get_executor()
    future = executor.submit(wait_for_file, str(tmp_path / "never"))
    assert future.cancel()
    assert future.cancelled()
    executor.shutdown(cancel_futures=True)
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(10)
    (tmp_path / "never").touch()


def wait_for_file(path: str) -> None:
    import os
    import time

    while not os.path.exists(path):
        time.sleep(0.01)


def test_cancelled_results_raise_what_was_raised(client: Client) -> None:
    future = client.submit(inc, 1)
    future.cancel(reason="enough", msg="of this")
    with pytest.raises(FutureCancelledError, match="enough"):
        future.result(10)
    with pytest.raises(FutureCancelledError):
        client.gather([future])
