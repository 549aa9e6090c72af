"""The public home of plugin base classes and ready-made plugins."""

from __future__ import annotations

from distributed.plugins import NannyPlugin, SchedulerPlugin, SchedulerUploadFile, UploadFile, WorkerPlugin

__all__ = ["NannyPlugin", "SchedulerPlugin", "SchedulerUploadFile", "UploadFile", "WorkerPlugin"]
