"""The nanny: starts a worker in a process of its own and starts it again when it dies."""

from __future__ import annotations

from distributed.nanny.nanny import Nanny, logger

Nanny.__module__ = "distributed.nanny"

__all__ = ["Nanny", "logger"]
