"""What the machine must be told once. Made by the shell from configuration; the machine reads no configuration itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Durations in seconds, sizes in bytes."""

    #: worker deaths that a task survives
    allowed_failures: int = 3
    #: tasks that a worker holds ahead: "auto" or a multiple of its threads (inf: no queueing)
    worker_saturation: float | Literal["auto"] = "auto"
    #: assumed for prefixes that have never finished
    unknown_task_duration_s: float = 0.5
    default_task_durations_s: Mapping[str, float] = field(default_factory=dict)
    #: first guess of bytes per second between workers
    bandwidth: float = 100e6
    #: assumed size of data whose size is unknown
    default_data_size: int = 1024
    #: tasks that nobody can run fail after this long; None: never
    no_workers_timeout_s: float | None = None
    #: a group counts as root-like with fewer dependency groups than this ...
    rootish_taskgroup: int = 5
    #: ... which hold fewer tasks than this
    rootish_taskgroup_dependencies: int = 5
    #: whether idle workers take over tasks of others
    work_stealing: bool = True
    #: memory besides results counts as old after this
    recent_to_old_time_s: float = 30.0
    #: transitions remembered for stories; 0: none
    story_length: int = 1000
    #: check all invariants after each event
    validate: bool = False
