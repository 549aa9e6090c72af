"""Plugins and progress."""

from __future__ import annotations

from distributed.plugins import SchedulerPlugin

__all__ = ["SchedulerPlugin"]
