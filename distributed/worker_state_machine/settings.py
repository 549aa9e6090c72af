"""What the worker machine must be told once; made by the shell from configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Durations in seconds, sizes in bytes."""

    #: requests to peers at the same time; enforced only above `gather_free_bytes` in flight
    connections_outgoing: int = 50
    #: bytes of one request, unless it is for a single key
    gather_bytes_max: int = 50_000_000
    #: below this much in flight the number of requests does not matter
    gather_free_bytes: int = 10_000_000
    #: bytes in flight at once
    inflight_bytes_max: float = float("inf")
    #: a peer that was busy is left alone for this long
    busy_retry_s: float = 0.15
    #: how often the scheduler is asked for holders of data that nobody seems to have
    find_missing_s: float = 1.0
    #: transitions remembered for stories
    story_length: int = 1000
    validate: bool = False
