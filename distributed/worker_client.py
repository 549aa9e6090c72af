"""A client inside a task, for tasks that submit tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distributed.client import Client
from distributed.worker import get_client, rejoin, secede


@contextmanager
def worker_client(timeout: Any = None, separate_thread: bool = True) -> Iterator[Client]:
    """Inside a task: a client, with the thread slot given up meanwhile unless `separate_thread` is False."""
    client = get_client(timeout=timeout)
    if separate_thread:
        secede()
    try:
        with client.as_current():
            yield client
    finally:
        if separate_thread:
            rejoin()
