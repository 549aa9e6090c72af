"""Fixtures of the whole suite."""

from __future__ import annotations

from distributed.utils_test import (
    a,
    b,
    c,
    cleanup,
    client,
    cluster_fixture,
    loop,
    loop_in_thread,
    s,
)

__all__ = ["a", "b", "c", "cleanup", "client", "cluster_fixture", "loop", "loop_in_thread", "s"]
