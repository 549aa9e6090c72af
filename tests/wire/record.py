"""Record conversations of the released package, as test data.

Run it with the interpreter of an environment that has the released package and numpy: ``python tests/wire/record.py``. A proxy on loopback stands
between the scheduler and its workers and client; each direction of each connection becomes a file in ``tests/wire/data``.
"""

from __future__ import annotations

import asyncio
import operator
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

#: longer recordings are cut here; readers must cope with a cut end
MAX_BYTES = 40_000

DATA = Path(__file__).with_name("data")


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: bytearray) -> None:
    while data := await reader.read(2**16):
        record += data
        writer.write(data)
        await writer.drain()
    writer.close()


def neutral(data: bytes) -> bytes:
    """Without paths of the machine; of the same length, so that frames and pickles stay intact."""
    for path in (sys.prefix, tempfile.gettempdir(), platform.release(), platform.node()):
        if len(path) > 3:
            data = data.replace(path.encode(), b"x" * len(path))
    return data


async def main() -> None:
    import numpy as np

    from distributed import Client, Scheduler, Worker

    records: list[tuple[bytearray, bytearray]] = []
    async with Scheduler(port=0, host="127.0.0.1", dashboard=False) as scheduler:
        host, port = scheduler.address.removeprefix("tcp://").split(":")

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            up, down = bytearray(), bytearray()
            records.append((up, down))
            upstream_reader, upstream_writer = await asyncio.open_connection(host, int(port))
            await asyncio.gather(
                pump(reader, upstream_writer, up), pump(upstream_reader, writer, down), return_exceptions=True
            )

        proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = "tcp://{}:{}".format(*proxy.sockets[0].getsockname())
        async with Worker(address, nthreads=1), Worker(address, nthreads=2):
            async with Client(address, asynchronous=True) as client:
                x = client.submit(operator.add, 1, 2)
                await x
                y = client.map(operator.neg, range(5))
                await client.gather(y)
                z = client.submit(np.arange, 1000)
                await client.submit(operator.mul, z, 2)
                await client.gather(z)
                (s,) = await client.scatter([np.ones(10)])
                await s
                bad = client.submit(operator.truediv, 1, 0)
                await bad.exception()
                await client.run(abs, -1)
                del x, y, z, s, bad
                await asyncio.sleep(0.2)
        proxy.close()
    for old in DATA.glob("*.bin"):
        old.unlink()
    names: dict[bytes, str] = {
        b"register-client": "client-stream",
        b"register-worker": "worker-stream",
        b"heartbeat_worker": "heartbeat",
        b"identity": "client-rpc",
    }
    seen: dict[str, int] = {}
    for up, down in records:
        name = next((label for mark, label in names.items() if mark in up), "other")
        number = seen[name] = seen.get(name, 0) + 1
        if number > 2:
            continue
        for direction, data in (("to-scheduler", up), ("from-scheduler", down)):
            (DATA / f"{name}-{number}-{direction}.bin").write_bytes(neutral(bytes(data[:MAX_BYTES])))


def run(argv: Any = None) -> None:
    DATA.mkdir(exist_ok=True)
    asyncio.run(main())


if __name__ == "__main__":
    run()
