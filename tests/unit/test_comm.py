"""Comms: framing, transports, the handshake, addresses."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import dask
import numpy as np
import pytest

from distributed.comm import (
    Comm,
    CommClosedError,
    address_from_user_args,
    addresses_from_user_args,
    connect,
    get_address_host,
    get_address_host_port,
    listen,
    parse_address,
    parse_host_port,
    resolve_address,
    unparse_host_port,
    uri_from_host_port,
)
from distributed.comm.handshake import HandshakeError, negotiate
from distributed.comm.reader import FrameReader
from distributed.comm.tcp import TCP
from distributed.protocol import Serialize, to_serialize
from distributed.protocol.framing import FramingError, check_head, check_lengths, encode_prelude, plan_buffers
from distributed.settings import CommSettings, parse_offload_threshold
from distributed.utils_test import gen_test

ADDRESSES = ["tcp://127.0.0.1:0", "inproc://"]


class Pair:
    """Two ends of a connection."""

    def __init__(self, address: str, **kwargs: Any) -> None:
        self.address = address
        self.kwargs = kwargs

    async def __aenter__(self) -> tuple[Comm, Comm]:
        accepted: asyncio.Future[Comm] = asyncio.get_running_loop().create_future()

        async def handle(comm: Comm) -> None:
            accepted.set_result(comm)

        self.listener = await listen(self.address, handle, **self.kwargs)
        self.client = await connect(self.listener.contact_address)
        self.server = await accepted
        return self.client, self.server

    async def __aexit__(self, *exc: object) -> None:
        self.listener.stop()
        self.client.abort()
        self.server.abort()


@pytest.mark.parametrize("address", ADDRESSES)
def test_exchange(address: str) -> None:
    @gen_test()
    async def run() -> None:
        async with Pair(address) as (a, b):
            await a.write({"op": "x", "data": to_serialize(np.arange(5))})
            message = await b.read()
            assert message["op"] == "x" and message["data"].tolist() == [0, 1, 2, 3, 4]
            for i in range(100):
                assert b.write_nowait([i])
            assert [next(iter(await a.read())) for _ in range(100)] == list(range(100))
            assert a.extensions == b.extensions == {"graph-table/1", "task-batches/1"}
            assert a.same_host and not a.closed()
            await a.close()
            with pytest.raises(CommClosedError):
                await b.read()
            assert a.closed() and b.closed()
            with pytest.raises(CommClosedError):
                await a.write("x")

    run()


@gen_test()
async def test_large_messages_in_both_directions_at_once() -> None:
    async with Pair("tcp://127.0.0.1:0") as (a, b):
        x = np.random.default_rng(0).integers(0, 255, 30_000_000, dtype="u1")

        async def talk(comm: Comm) -> list[Any]:
            async def send() -> None:
                for i in range(3):
                    await comm.write({"i": i, "x": Serialize(x[i:])})

            sender = asyncio.ensure_future(send())
            received = [await comm.read() for _ in range(3)]
            await sender
            return received

        for received in await asyncio.gather(talk(a), talk(b)):
            for i, message in enumerate(received):
                assert (
                    message["i"] == i and np.array_equal(message["x"], x[i:]) and message["x"].flags.writeable
                )


@gen_test()
async def test_payloads_are_not_copied_on_the_way_out() -> None:
    async with Pair("tcp://127.0.0.1:0") as (a, b):
        assert isinstance(a, TCP)
        x = np.arange(10_000_000)
        seen = []
        original = a._transmit

        def spy(frames: list[Any]) -> int:
            seen.extend(frames)
            return original(frames)

        a._transmit = spy  # type: ignore[method-assign]
        writer = asyncio.ensure_future(a.write(Serialize(x)))
        message = await b.read()
        await writer
        assert np.array_equal(message, x)
        assert any(np.shares_memory(np.frombuffer(frame, "u1"), x) for frame in seen if len(frame) > 1000)


@gen_test()
async def test_back_pressure() -> None:
    async with Pair("tcp://127.0.0.1:0") as (a, b):
        assert isinstance(a, TCP) and isinstance(b, TCP)
        data = b"x" * 10_000_000
        writer = asyncio.ensure_future(_write_many(a, data, 40))
        await asyncio.sleep(0)
        while b._reading or not b._inbox:
            await asyncio.sleep(0.01)
        # the reader does not take more than it can hold, and the writer waits
        assert b._reader.queued_bytes < 100_000_000 and not writer.done()
        for _ in range(40):
            assert len(await b.read()) == len(data)
        await writer


async def _write_many(comm: Comm, data: bytes, n: int) -> None:
    for _ in range(n):
        await comm.write(Serialize(data))


@gen_test()
async def test_errors_name_both_addresses() -> None:
    async with Pair("tcp://127.0.0.1:0") as (a, b):
        local, peer = a.local_address, a.peer_address
        b.abort()
        with pytest.raises(CommClosedError) as info:
            await a.read()
        assert local in str(info.value) and peer in str(info.value)


@gen_test()
async def test_the_flag_is_set_before_the_first_message() -> None:
    async with Pair("tcp://127.0.0.1:0", allow_offload=False) as (a, b):
        assert a.allow_offload and not b.allow_offload
    comm = None
    listener = await listen("tcp://127.0.0.1:0", _ignore)
    comm = await connect(listener.contact_address, allow_offload=False)
    assert not comm.allow_offload
    comm.abort()
    listener.stop()


async def _ignore(comm: Comm) -> None:
    comm.abort()


@gen_test()
async def test_port_in_use() -> None:
    listener = await listen("tcp://127.0.0.1:0", _ignore)
    with pytest.raises(OSError, match=str(listener.get_host_port()[1])):  # type: ignore[attr-defined]
        await listen(listener.listen_address, _ignore)
    listener.stop()


def test_handshake() -> None:
    local = {"compression": "lz4", "pickle-protocol": 5, "extensions": ("a/1", "b/1")}
    options, extensions = negotiate(
        local, {"compression": "lz4", "pickle-protocol": 4, "extensions": ("b/1", "c/1")}
    )
    assert options == {"compression": "lz4", "pickle-protocol": 4} and extensions == {"b/1"}
    options, extensions = negotiate(local, {"compression": "zlib", "python": (3, 11), "pickle-protocol": 5})
    assert options["compression"] is None and extensions == frozenset()
    for bad in ([], {}, {"pickle-protocol": "5"}, {"pickle-protocol": True}):
        with pytest.raises(HandshakeError):
            negotiate(local, bad)


def test_framing() -> None:
    assert encode_prelude([42]).hex() == "3a0000000000000001000000000000002a00000000000000"
    region, n = struct.unpack_from("<QQ", encode_prelude([10, 100_000, 5]))
    assert (region, n) == (8 + 24 + 10, 3), "large frames own their memory on the receiving side"
    for region, n in ((8, 0), (8, 1), (2**62, 1), (16, 2**40)):
        with pytest.raises(FramingError):
            check_head(region, n)
    for region, lengths in ((16 + 10, [2**62]), (16 + 3, [10]), (24 + 5, [10, 5])):
        with pytest.raises(FramingError):
            check_lengths(region, lengths)
    assert check_lengths(24 + 10, [10, 5]) == 15
    frames, targets = plan_buffers([10, 20, 100_000, 5, 0])
    assert [f.nbytes for f in frames] == [10, 20, 100_000, 5, 0]
    assert [t.nbytes for t in targets] == [30, 100_000, 5]


def test_reader_with_many_frames() -> None:
    """A header larger than the scratch buffer."""
    lengths = [1] * 50_000
    data = encode_prelude(lengths) + b"x" * 50_000
    reader = FrameReader()
    position = 0
    while position < len(data):
        buffer = reader.get_buffer()
        n = min(len(buffer), len(data) - position)
        buffer[:n] = data[position : position + n]
        reader.advance(n)
        position += n
    (message,) = reader.messages
    assert len(message.frames) == 50_000 and message.payload_bytes == 49_999 and reader.at_boundary


def test_addresses() -> None:
    assert parse_address("127.0.0.1:1") == ("tcp", "127.0.0.1:1")
    assert parse_address("tls://[::1]:1") == ("tls", "[::1]:1")
    with pytest.raises(ValueError, match="needs a scheme"):
        parse_address("127.0.0.1:1", strict=True)
    with pytest.raises(TypeError):
        parse_address(b"tcp://")  # type: ignore[arg-type]
    assert parse_host_port("[::1]:80") == ("::1", 80) and parse_host_port("h", 5) == ("h", 5)
    for bad in ("h", "h:x", "h:99999", "[::1", "::1:80"):
        with pytest.raises(ValueError, match=r"h|::1"):
            parse_host_port(bad)
    assert unparse_host_port("::1", 80) == "[::1]:80"
    assert get_address_host("tcp://127.0.0.1:1") == "127.0.0.1"
    assert get_address_host_port("tcp://127.0.0.1:1") == ("127.0.0.1", 1)
    with pytest.raises(ValueError, match="inproc"):
        get_address_host_port("inproc://x/1/2")
    assert resolve_address("tcp://localhost:8786") == "tcp://127.0.0.1:8786"
    assert uri_from_host_port("", None, 8786) == "tcp://:8786"
    assert uri_from_host_port("127.0.0.1", 0, 8786) == "tcp://127.0.0.1:0"
    with pytest.raises(ValueError, match="twice"):
        uri_from_host_port("127.0.0.1:5", 6, 8786)
    assert address_from_user_args(host="127.0.0.1", port=5) == "tcp://127.0.0.1:5"
    assert address_from_user_args(host="tcp://127.0.0.1:7") == "tcp://127.0.0.1:7"
    assert address_from_user_args(protocol="inproc://") == "inproc://"
    with pytest.raises(ValueError, match="nosuchif"):
        address_from_user_args(interface="nosuchif")
    assert addresses_from_user_args(host="127.0.0.1", port=[1, 2], protocol=["tcp", "tcp"]) == [
        "tcp://127.0.0.1:1",
        "tcp://127.0.0.1:2",
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("10MiB", 10 * 2**20),
        (100, 100),
        ("0", 0),
        (False, None),
        ("false", None),
        (None, None),
        ("1 kB", 1000),
    ],
)
def test_offload_threshold(value: Any, expected: int | None) -> None:
    assert parse_offload_threshold(value) == expected
    with dask.config.set({"distributed.comm.offload": value}):
        assert CommSettings.from_config().offload_threshold == expected


@pytest.mark.parametrize("value", ["plenty", True, -1, [], "10 apples"])
def test_wrong_offload_threshold(value: Any) -> None:
    with pytest.raises(ValueError, match=r"distributed\.comm\.offload"):
        parse_offload_threshold(value)
