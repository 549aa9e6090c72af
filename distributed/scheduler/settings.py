"""The scheduler's settings, read from configuration when a scheduler is made."""

from __future__ import annotations

import math
from typing import Any, Literal

import dask.config
from dask.utils import parse_bytes, parse_timedelta

from distributed.scheduler_state_machine import SchedulerSettings


def parse_saturation(value: Any) -> float | Literal["auto"]:
    """``auto``, a positive number or inf; ValueError names the key."""
    if isinstance(value, str) and value.lower() == "auto":
        return "auto"
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not number > 0:
        raise ValueError(
            f"distributed.scheduler.worker-saturation must be 'auto', a positive number or inf; got {value!r}"
        )
    return number


def scheduler_settings(
    allowed_failures: int | None = None, validate: bool | None = None
) -> SchedulerSettings:
    """Settings from the current configuration; arguments that are not None win."""
    get = dask.config.get
    timeout = parse_timedelta(get("distributed.scheduler.no-workers-timeout"), default="s")
    return SchedulerSettings(
        allowed_failures=int(
            get("distributed.scheduler.allowed-failures") if allowed_failures is None else allowed_failures
        ),
        worker_saturation=parse_saturation(get("distributed.scheduler.worker-saturation")),
        work_stealing=bool(get("distributed.scheduler.work-stealing")),
        recent_to_old_time_s=parse_timedelta(
            get("distributed.worker.memory.recent-to-old-time"), default="s"
        ),
        unknown_task_duration_s=parse_timedelta(
            get("distributed.scheduler.unknown-task-duration"), default="s"
        ),
        default_task_durations_s={
            name: parse_timedelta(value, default="s")
            for name, value in get("distributed.scheduler.default-task-durations").items()
        },
        bandwidth=float(parse_bytes(get("distributed.scheduler.bandwidth"))),
        default_data_size=int(parse_bytes(get("distributed.scheduler.default-data-size"))),
        no_workers_timeout_s=timeout,
        rootish_taskgroup=int(get("distributed.scheduler.rootish-taskgroup")),
        rootish_taskgroup_dependencies=int(get("distributed.scheduler.rootish-taskgroup-dependencies")),
        story_length=int(get("distributed.admin.low-level-log-length")),
        validate=bool(get("distributed.scheduler.validate") if validate is None else validate),
    )
