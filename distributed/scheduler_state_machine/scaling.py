"""How many workers the tasks that there are could use. Only reads."""

from __future__ import annotations

import math

from distributed.scheduler_state_machine.core import MachineCore

#: share of the workers' memory that results may fill before more workers are wanted for them
MEMORY_SHARE = 0.6


def wanted_workers(m: MachineCore, duration_s: float) -> int:
    """Enough to do what can run now within `duration_s`, to hold the results, and none that would have no task; what is busy stays."""
    n_workers = len(m.workers)
    threads = m.total_nthreads / n_workers if n_workers else 1.0
    unknown = m.settings.unknown_task_duration_s
    n_tasks, seconds = len(m.unrunnable), 0.0
    for ts in m.unrunnable:
        seconds += ts.group.prefix.duration_average or unknown
    for group in m.task_groups.values() if m.n_queued else ():
        n = group.states["queued"]
        n_tasks += n
        seconds += n * (group.prefix.duration_average or unknown)
    busy = held = limits = 0
    for ws in m.workers.values():
        n_tasks += len(ws.processing) - len(ws.long_running)
        seconds += ws.occupancy
        busy += bool(ws.processing)
        held += ws.nbytes
        limits += ws.memory_limit or 0
    wanted = math.ceil(min(seconds / duration_s, n_tasks / threads)) if n_tasks else 0
    if limits:
        room = MEMORY_SHARE * limits / n_workers
        # what is held already needs its place; when it gets tight, twice as many
        wanted = max(wanted, 2 * n_workers if held > MEMORY_SHARE * limits else math.ceil(held / room))
    return max(wanted, busy)
