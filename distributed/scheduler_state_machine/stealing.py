"""Which tasks an idle worker should take over from one that has more than it can run. These functions only read.

A task moves only if it would then start sooner, counting the transfer of its inputs; the most urgent one goes first. Tasks that wait in the
scheduler's own queue need no stealing: an idle worker gets them anyway.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from distributed.scheduler_state_machine.core import MachineCore
from distributed.scheduler_state_machine.placement import TRANSFER_LATENCY_S, valid_workers
from distributed.scheduler_state_machine.state import TaskState, WorkerState

#: what a move must gain, seconds: two messages, and estimates are estimates
GAIN_S = 0.005
#: tasks of one worker that are looked at in one go, the most urgent ones
LOOK_AT_MAX = 200


#: workers of these states start nothing more
LEAVING = ("paused", "closing_gracefully")


class Steal(NamedTuple):
    """A task that is asked back from a worker."""

    victim: WorkerState
    thief: WorkerState
    run_id: int | None
    #: names the request on the wire
    stimulus_id: str


def free_threads(ws: WorkerState) -> int:
    """Threads without a task; negative: tasks without a thread."""
    return ws.nthreads - len(ws.processing) + len(ws.long_running)


def plan_steals(m: MachineCore) -> Iterator[tuple[TaskState, WorkerState, WorkerState]]:
    """(task, victim, thief): what workers that start nothing more have left, and then what others have not, as long as there are idle threads."""
    for victim in m.workers.values():
        if victim.status in LEAVING and victim.processing:
            for ts, wait in waiting_tasks(m, victim):
                thief = best_thief(m, ts, m.running_order, wait)
                if thief is not None:
                    yield ts, victim, thief
    coming: dict[WorkerState, int] = {}
    for steal in m.stealing.values():
        coming[steal.thief] = coming.get(steal.thief, 0) + 1
    idle = {ws: free for ws in m.running_order if (free := free_threads(ws) - coming.get(ws, 0)) > 0}
    if not idle:
        return
    victims = [ws for ws in m.running_order if free_threads(ws) < 0]
    victims.sort(key=lambda ws: -ws.blocked_for - ws.occupancy / ws.nthreads)
    for victim in victims:
        for ts, wait in waiting_tasks(m, victim):
            thief = best_thief(m, ts, idle, wait)
            if thief is None:
                continue
            yield ts, victim, thief
            idle[thief] -= 1
            if not idle[thief]:
                del idle[thief]
                if not idle:
                    return


def waiting_tasks(m: MachineCore, ws: WorkerState) -> list[tuple[TaskState, float]]:
    """Tasks that a worker has not started, as far as can be told, and how long they will wait, seconds; the most urgent first."""
    tasks = [ts for ts in ws.processing if ts not in ws.long_running and not ts.actor]
    known = m.known_running
    # what runs is not always what is most urgent: a task may have come when the threads were busy
    tasks.sort(key=lambda ts: (known.get(ts) != ts.run_id, ts.priority or ()))
    out = []
    paused = ws.status in LEAVING
    ahead = 0.0
    for position, ts in enumerate(tasks[:LOOK_AT_MAX]):
        cost = ws.processing[ts]
        if ts in m.stealing:
            continue
        if (paused or position >= ws.nthreads) and known.get(ts) != ts.run_id:
            out.append((ts, math.inf if paused else ws.blocked_for + ahead / ws.nthreads))
        ahead += cost
    return out


def best_thief(
    m: MachineCore, ts: TaskState, thieves: Iterable[WorkerState], wait: float
) -> WorkerState | None:
    """The one of these workers that can start a task soonest, if that is worth it."""
    valid = valid_workers(m, ts) if ts.restricted and not ts.loose_restrictions else m.running
    default = m.settings.default_data_size
    best, best_cost = None, wait - GAIN_S
    for ws in thieves:
        if ws not in valid or not has_resources(ws, ts):
            continue
        missing = sum(dts.get_nbytes(default) for dts in ts.dependencies if ws not in dts.who_has)
        cost = ws.occupancy / ws.nthreads
        if missing:
            cost += TRANSFER_LATENCY_S + missing / m.bandwidth
        if cost < best_cost:
            best, best_cost = ws, cost
    return best


def has_resources(ws: WorkerState, ts: TaskState) -> bool:
    """Whether the resources that a task needs are free on a worker."""
    needed = ts.resource_restrictions
    return not needed or all(
        ws.resources.get(name, 0) - ws.used_resources.get(name, 0) >= amount
        for name, amount in needed.items()
    )
