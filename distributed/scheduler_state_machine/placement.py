"""Who runs a task. These functions only read; their caller acts on the answer.

Tasks without dependencies, and the many tasks of a group that share few, are *root-like*: held in one queue and handed out as workers
have slots. Everything else goes at once to the worker that can start it soonest, counting the transfer of what it lacks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from distributed.scheduler_state_machine.core import MachineCore
from distributed.scheduler_state_machine.state import TaskPrefix, TaskState, WorkerState

#: What a worker holds ahead must last until the next batch reaches it. Between our peers that takes well below this
#: time, seconds, also when every role is busy with the tiniest tasks.
ROUND_TRIP_S = 0.01
#: tasks per thread held ahead, at most: batches of hundreds gain nothing over batches of this size, and what is ahead cannot go elsewhere
DEPTH_MAX = 200
#: share of a worker's memory that the results of what it holds ahead may fill
OUTPUT_SHARE = 0.02
#: the same for a worker without limit, bytes
OUTPUT_BYTES = 64 * 2**20
#: share of its threads that a worker is overcommitted by, until durations are known (as in the released package)
MINIMUM_SATURATION = 1.1
#: cost of asking a peer for data, seconds, besides the bytes
TRANSFER_LATENCY_S = 0.001
#: with more workers than this, only holders of dependencies and a few others are compared
COMPARE_ALL_MAX = 16
COMPARE_OTHERS = 4


def is_rootish(m: MachineCore, ts: TaskState) -> bool:
    """Whether the task waits in the queue for a slot."""
    if ts.restricted or ts.actor or m.settings.worker_saturation == math.inf:
        return False
    group = ts.group
    if not ts.dependencies or (group.prefix.suspects and group.prefix.cautious()):
        return True
    return (
        group.size > 2 * m.total_nthreads
        and len(group.dependencies) < m.settings.rootish_taskgroup
        and sum(g.size for g in group.dependencies) < m.settings.rootish_taskgroup_dependencies
    )


def slots(m: MachineCore, ws: WorkerState, prefix: TaskPrefix) -> int:
    """How many tasks of a prefix a worker may hold, running ones included."""
    saturation = m.settings.worker_saturation
    if prefix.suspects and prefix.cautious():
        return ws.nthreads
    if saturation != "auto":
        return max(math.ceil(saturation * ws.nthreads), 1)
    least = math.ceil(MINIMUM_SATURATION * ws.nthreads)
    duration = prefix.duration_average
    if duration is None:
        return least
    ahead = DEPTH_MAX if duration * DEPTH_MAX <= ROUND_TRIP_S else ROUND_TRIP_S / duration
    n = int(ws.nthreads * (1 + ahead))
    size = prefix.nbytes_average
    if size:
        room = OUTPUT_SHARE * ws.memory_limit if ws.memory_limit else OUTPUT_BYTES
        if n * size > room:
            n = int(room / size)
    return max(n, least)


def free_slots(m: MachineCore, ws: WorkerState, prefix: TaskPrefix) -> int:
    """How many more."""
    return slots(m, ws, prefix) - len(ws.processing) + len(ws.long_running)


def share_out(
    m: MachineCore, workers: Iterable[WorkerState], prefix: TaskPrefix
) -> list[tuple[WorkerState, int]]:
    """How many of the queued tasks each worker gets.

    Each worker gets neighbours in the order of priorities, since those are likely to be needed together. When there are fewer tasks than
    slots everybody gets the same share.
    """
    if m.n_queued == 1:
        # a task that comes alone: whoever is idle has a slot, without counting how many
        ready = [ws for ws in workers if not ws.processing or free_slots(m, ws, prefix) > 0]
        if len(ready) > 1:
            ready = [min(ready, key=lambda ws: (ws.occupancy / ws.nthreads, -ws.nthreads))]
        return [(ws, 1) for ws in ready]
    free = [(ws, n) for ws in workers if (n := free_slots(m, ws, prefix)) > 0]
    total = sum(n for _, n in free)
    if m.n_queued >= total:
        return free
    free.sort(key=lambda item: (item[0].occupancy / item[0].nthreads, -item[1]))
    shares: list[tuple[WorkerState, int]] = []
    left, threads = m.n_queued, sum(ws.nthreads for ws, _ in free)
    for ws, n in free:
        n = min(n, math.ceil(left * ws.nthreads / threads))
        threads -= ws.nthreads
        left -= n
        if n:
            shares.append((ws, n))
    return shares


def valid_workers(m: MachineCore, ts: TaskState) -> set[WorkerState]:
    """Running workers that satisfy the restrictions."""
    candidates = m.running
    if ts.worker_restrictions or ts.host_restrictions:
        addresses = {m.aliases.get(name, name) for name in ts.worker_restrictions or ()}
        hosts = ts.host_restrictions or ()
        candidates = {ws for ws in candidates if ws.address in addresses or ws.host in hosts}
    if ts.resource_restrictions:
        needed = ts.resource_restrictions.items()
        candidates = {
            ws for ws in candidates if all(ws.resources.get(name, 0) >= amount for name, amount in needed)
        }
    return candidates


def decide_worker(m: MachineCore, ts: TaskState) -> WorkerState | None:
    """The worker that can start the task soonest; None if nobody may run it now."""
    candidates = m.running
    if ts.restricted:
        candidates = valid_workers(m, ts)
        if not candidates and ts.loose_restrictions:
            candidates = m.running
    if len(candidates) <= 1:
        return next(iter(candidates), None)
    if ts.actor:
        return min(
            candidates, key=lambda ws: (len(ws.actors), ws.occupancy / ws.nthreads, ws.nbytes, ws.address)
        )
    if not ts.dependencies:
        return min(candidates, key=lambda ws: (ws.occupancy / ws.nthreads, ws.nbytes, ws.address))
    held: dict[WorkerState, int] = {}
    total = 0
    default = m.settings.default_data_size
    for dts in ts.dependencies:
        size = dts.get_nbytes(default) + 1
        total += size
        for ws in dts.who_has:
            held[ws] = held.get(ws, 0) + size
    if len(candidates) > COMPARE_ALL_MAX:
        near = {ws for ws in held if ws in candidates}
        pool = m.running_order
        if len(candidates) < len(pool):
            pool = [ws for ws in pool if ws in candidates]
        candidates = near.union(m.random.sample(pool, COMPARE_OTHERS))
    bandwidth = m.bandwidth
    best: WorkerState | None = None
    best_cost = (math.inf, 0)
    for ws in candidates:
        missing = total - held.get(ws, 0)
        cost = ws.occupancy / ws.nthreads
        if missing:
            cost += TRANSFER_LATENCY_S + missing / bandwidth
        if best is None or (cost, ws.nbytes) < best_cost:
            best, best_cost = ws, (cost, ws.nbytes)
    return best
