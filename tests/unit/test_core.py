"""Servers, remote calls, pools and streams."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from distributed.batched import Stream
from distributed.comm import CommClosedError, connect
from distributed.core import ConnectionPool, RPCClosed, Server, Status, clean_exception, error_message, rpc
from distributed.protocol import to_serialize
from distributed.utils_test import captured_logger, gen_test


def inc(x: int) -> int:
    return x + 1


class Talker(Server):
    """A server whose handlers can be held back."""

    def __init__(self, **kwargs: Any) -> None:
        self.gate = asyncio.Event()
        self.got: list[Any] = []
        super().__init__(
            {
                "inc": inc,
                "wait": self.wait,
                "fail": self.fail,
                "unserialisable": self.unserialisable,
                "who": self.who,
            },
            stream_handlers={"note": self.note},
            **kwargs,
        )

    async def wait(self) -> str:
        await self.gate.wait()
        return "done"

    def fail(self, text: str) -> None:
        raise KeyError(text)

    def unserialisable(self) -> Any:
        return to_serialize(threading.Lock())

    def who(self, comm: Any) -> str:
        return str(comm.peer_address)

    def note(self, value: Any) -> None:
        self.got.append(value)


async def talker(**kwargs: Any) -> Talker:
    server = Talker(**kwargs)
    await server
    await server.listen("tcp://127.0.0.1:0")
    return server


@gen_test()
async def test_requests() -> None:
    async with await talker() as server, rpc(server.address) as r:
        assert await r.inc(x=1) == 2
        assert await r.unknown() is None
        assert (await r.who()).startswith("tcp://127.0.0.1")
        with pytest.raises(KeyError, match="key") as info:
            await r.fail(text="key")
        assert any(entry.name == "fail" for entry in info.traceback)
        with pytest.raises(TypeError):
            await r.inc(y=1)
        with pytest.raises(TypeError, match="Could not serialize"):
            await r.unserialisable()
        # the connection is still good
        assert await r.inc(x=2) == 3
        assert len(r._comms) == 1
    with pytest.raises(RPCClosed):
        await r.inc(x=1)


@gen_test()
async def test_blocked_handlers() -> None:
    async with await talker(blocked_handlers=["inc"]) as server, rpc(server.address) as r:
        with pytest.raises(ValueError, match="explicitly disallowed"):
            await r.inc(x=1)


@gen_test()
async def test_cancelled_request_closes_its_connection() -> None:
    async with await talker() as server, rpc(server.address) as r:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(r.wait(), 0.05)
        server.gate.set()
        # a late answer is not taken for the next one
        assert await r.inc(x=1) == 2


@gen_test()
async def test_pool_reuses_and_limits() -> None:
    async with await talker() as one, await talker() as two:
        pool = await ConnectionPool(limit=2)
        assert await pool(one.address).inc(x=1) == 2
        assert await pool(one.address).inc(x=1) == 2
        assert (pool.open, pool.active) == (1, 0)
        waits = [asyncio.ensure_future(pool(one.address).wait()) for _ in range(2)]
        while pool.active < 2:
            await asyncio.sleep(0)
        third = asyncio.ensure_future(pool(two.address).inc(x=1))
        await asyncio.sleep(0.01)
        assert pool.open == 2 and not third.done(), "the third waits"
        one.gate.set()
        assert await asyncio.gather(*waits) == ["done", "done"]
        assert await third == 2, "an idle connection was closed for it"
        assert pool.open <= 2
        assert pool.collect() == pool.open + 2 or pool.open == 0
        await pool.close()
        with pytest.raises(RPCClosed):
            await pool(one.address).inc(x=1)


@gen_test()
async def test_pool_remove_fails_requests_under_way() -> None:
    async with await talker() as server:
        pool = await ConnectionPool()
        waiting = asyncio.ensure_future(pool(server.address).wait())
        while not pool.active:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        pool.remove(server.address)
        with pytest.raises(CommClosedError, match="wait"):
            await waiting
        assert (pool.open, pool.active) == (0, 0)
        assert await pool(server.address).inc(x=1) == 2
        await pool.close()


@gen_test()
async def test_pool_sets_the_offload_flag() -> None:
    async with await talker() as server:
        for flag in (True, False):
            pool = await ConnectionPool(allow_offload=flag)
            comm = await pool.connect(server.address)
            assert comm.allow_offload is flag
            pool.reuse(server.address, comm)
            await pool.close()
    async with await talker(allow_offload=False) as server:
        comm = await connect(server.address)
        await asyncio.sleep(0.01)
        assert all(not c.allow_offload for c in server._comms) and not server.rpc.allow_offload
        comm.abort()


@gen_test()
async def test_stream_is_ordered_and_batched() -> None:
    async with await talker() as server:
        comm = await connect(server.address)
        await comm.write({"op": "connection_stream", "reply": False})
        stream = Stream()
        stream.send({"op": "note", "value": 0})
        stream.start(comm)
        for i in range(1, 100):
            stream.send({"op": "note", "value": i})
        while len(server.got) < 100:
            await asyncio.sleep(0)
        assert server.got == list(range(100))
        assert stream.batch_count <= 2, "what one iteration queues goes out as one message"
        with captured_logger("distributed.batched") as log:
            stream.send({"op": "note", "value": threading.Lock()}, {"op": "note", "value": 100})
            while len(server.got) < 101:
                await asyncio.sleep(0)
        assert server.got[-1] == 100 and "cannot be encoded" in log.getvalue()
        await stream.close()
        with pytest.raises(CommClosedError):
            stream.send({"op": "note", "value": 1})


@gen_test()
async def test_stream_accounts_for_what_was_not_sent() -> None:
    async with await talker() as server:
        comm = await connect(server.address)
        stream = Stream()
        stream.start(comm)
        stream.send("a", "b")
        stream.abort()
        assert stream.unsent == ["a", "b"] and stream.closed()


@gen_test()
async def test_unknown_op_ends_a_stream() -> None:
    async with await talker() as server:
        comm = await connect(server.address)
        await comm.write({"op": "connection_stream", "reply": False})
        await comm.write([{"op": "nonsense"}])
        with pytest.raises(CommClosedError):
            await comm.read()


@gen_test()
async def test_start_failure_and_timeout() -> None:
    class Fails(Server):
        async def start_unsafe(self) -> Any:
            raise ValueError("no")

    class Hangs(Server):
        async def start_unsafe(self) -> Any:
            await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="Fails failed to start") as info:
        await Fails()
    assert isinstance(info.value.__cause__, ValueError)
    with pytest.raises(asyncio.TimeoutError, match=r"0\.05"):
        await Hangs(timeout=0.05)
    server = Talker()
    with pytest.raises(ValueError, match="started"):
        _ = server.address
    with pytest.raises(TypeError):
        server.status = "running"  # type: ignore[assignment]
    await server
    assert server.status == Status.running
    await server.close()
    await server.close()


class Strange(Exception):
    def __str__(self) -> str:
        return "x" * 100_000


def test_error_messages() -> None:
    try:
        raise ValueError("hello")
    except ValueError as exc:
        message = error_message(exc)
    typ, exc2, tb = clean_exception(**message)
    assert typ is ValueError and str(exc2) == "hello" and tb is not None
    message = error_message(Strange())
    _, exc3, _ = clean_exception(**message)
    assert len(str(exc3)) < 100_100 and len(message["exception_text"]) < 20_000
    _, exc4, _ = clean_exception(b"garbage", b"garbage")
    assert "could not be unpickled" in str(exc4)
