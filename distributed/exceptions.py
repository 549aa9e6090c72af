"""Exceptions that users meet and that belong to no single part."""

from __future__ import annotations

import asyncio


class Reschedule(Exception):
    """Raise this inside a task to have it run again, possibly on another worker."""


class WorkerStartTimeoutError(asyncio.TimeoutError):
    """Not enough workers arrived in time."""

    def __init__(self, available_workers: int, expected_workers: int, timeout: float) -> None:
        super().__init__(available_workers, expected_workers, timeout)
        self.available_workers = available_workers
        self.expected_workers = expected_workers
        self.timeout = timeout

    def __str__(self) -> str:
        return (
            f"Only {self.available_workers}/{self.expected_workers} workers arrived after {self.timeout:g} s"
        )
