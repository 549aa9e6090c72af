"""Settings of shuffles on workers, read from the configuration once per worker."""

from __future__ import annotations

import dataclasses

import dask.config
from dask.utils import parse_bytes, parse_timedelta


@dataclasses.dataclass(frozen=True)
class ShuffleSettings:
    """Sizes in bytes, times in seconds."""

    send_buffer: int = 2**30
    concurrency: int = 10
    message_bytes: int = 2 * 2**20
    retry_count: int = 10
    retry_delay_min: float = 1.0
    retry_delay_max: float = 30.0
    storage_buffer: int = 100 * 2**20
    #: None: as many as the worker has for tasks
    threads: int | None = None

    @classmethod
    def from_config(cls) -> ShuffleSettings:
        get = dask.config.get
        threads = get("distributed.p2p.threads")
        return cls(
            send_buffer=int(parse_bytes(get("distributed.p2p.comm.buffer"))),
            concurrency=int(get("distributed.p2p.comm.concurrency")),
            message_bytes=int(parse_bytes(get("distributed.p2p.comm.message-bytes-limit"))),
            retry_count=int(get("distributed.p2p.comm.retry.count")),
            retry_delay_min=float(parse_timedelta(get("distributed.p2p.comm.retry.delay.min"), "s")),
            retry_delay_max=float(parse_timedelta(get("distributed.p2p.comm.retry.delay.max"), "s")),
            storage_buffer=int(parse_bytes(get("distributed.p2p.storage.buffer"))),
            threads=None if threads is None else int(threads),
        )
