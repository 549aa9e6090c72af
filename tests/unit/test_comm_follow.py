"""`Comm.follow`: order, waiting in between, errors, the end - the same on every transport."""

from __future__ import annotations

import asyncio
from typing import Any

import dask
import numpy as np
import pytest

from distributed.comm import CommClosedError
from distributed.protocol import to_serialize
from distributed.utils_test import gen_test
from tests.unit.test_comm import ADDRESSES, Pair

on_each = pytest.mark.parametrize("address", ADDRESSES)


@on_each
def test_messages_come_in_order_and_wait_for_what_is_awaited(address: str) -> None:
    @gen_test()
    async def run() -> None:
        async with Pair(address) as (a, b):
            log: list[Any] = []
            gate = asyncio.Event()
            reached = asyncio.Event()

            async def slow(n: int) -> None:
                reached.set()
                await gate.wait()
                log.append(("slow", n))

            def handle(n: int) -> Any:
                log.append(n)
                return slow(n) if n in (3, 7) else None

            following = asyncio.ensure_future(b.follow(handle))
            for n in range(5):
                await a.write(n)
            await reached.wait()
            assert log == [0, 1, 2, 3], "nothing overtakes what is awaited"
            for n in range(5, 10):
                await a.write(n)
            gate.set()
            await a.close()
            await following
            assert log == [0, 1, 2, 3, ("slow", 3), 4, 5, 6, 7, ("slow", 7), 8, 9]

    run()


@on_each
def test_messages_that_arrived_before_are_handed_over(address: str) -> None:
    @gen_test()
    async def run() -> None:
        async with Pair(address) as (a, b):
            await a.write("first")
            await a.write("second")
            assert await b.read() == "first"
            seen: list[str] = []
            following = asyncio.ensure_future(b.follow(seen.append))
            await a.write("third")
            await a.close()
            await following
            assert seen == ["second", "third"]

    run()


@on_each
def test_what_the_handler_raises_ends_it(address: str) -> None:
    @gen_test()
    async def run() -> None:
        async with Pair(address) as (a, b):

            async def fails_later() -> None:
                raise LookupError("later")

            def handle(n: int) -> Any:
                if n == 1:
                    raise ZeroDivisionError("at once")
                return fails_later() if n == 2 else None

            following = asyncio.ensure_future(b.follow(handle))
            await a.write(0)
            await a.write(1)
            with pytest.raises(ZeroDivisionError, match="at once"):
                await following
            # the comm is still good
            following = asyncio.ensure_future(b.follow(handle))
            await a.write(2)
            with pytest.raises(LookupError, match="later"):
                await following
            await a.write("x")
            assert await b.read() == "x"

    run()


@on_each
@pytest.mark.parametrize("then", ["return", "raise", "await"])
def test_a_handler_may_close_the_comm(address: str, then: str) -> None:
    @gen_test()
    async def run() -> None:
        async with Pair(address) as (a, b):
            log: list[str] = []

            async def more() -> None:
                log.append("awaited")

            def handle(msg: str) -> Any:
                b.abort()
                log.append(msg)
                if then == "raise":
                    raise ZeroDivisionError
                return more() if then == "await" else None

            following = asyncio.ensure_future(b.follow(handle))
            await a.write("x")
            if then == "raise":
                with pytest.raises(ZeroDivisionError):
                    await following
            else:
                await following
            assert log == (["x", "awaited"] if then == "await" else ["x"])
            with pytest.raises(CommClosedError):
                await b.read()

    run()


@on_each
def test_following_can_be_cancelled(address: str) -> None:
    @gen_test()
    async def run() -> None:
        async with Pair(address) as (a, b):
            seen: list[int] = []
            following = asyncio.ensure_future(b.follow(seen.append))
            await asyncio.sleep(0)
            following.cancel()
            with pytest.raises(asyncio.CancelledError):
                await following
            await a.write(1)
            assert await b.read() == 1 and seen == []

    run()


def test_large_payloads_are_decoded_in_the_offload_thread_in_order() -> None:
    @gen_test()
    async def run() -> None:
        with dask.config.set({"distributed.comm.offload": 1000}):
            async with Pair("tcp://127.0.0.1:0") as (a, b):
                seen: list[Any] = []
                following = asyncio.ensure_future(
                    b.follow(lambda msg: seen.append(msg if isinstance(msg, str) else msg.nbytes))
                )
                for size in (10, 10_000, 20):
                    await a.write(to_serialize(np.zeros(size, "u1")))
                    await a.write("small")
                await a.close()
                await following
                assert seen == [10, "small", 10_000, "small", 20, "small"]

    run()


@gen_test()
async def test_two_cannot_follow() -> None:
    async with Pair("tcp://127.0.0.1:0") as (_, b):
        following = asyncio.ensure_future(b.follow(lambda msg: None))
        await asyncio.sleep(0)
        with pytest.raises(AssertionError, match="two tasks read"):
            await b.follow(lambda msg: None)
        with pytest.raises(AssertionError, match="two tasks read"):
            await b.read()
        following.cancel()
