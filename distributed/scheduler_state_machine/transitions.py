"""The rules of a task's life on the scheduler, in one table.

States: *released* (known, not wanted now), *waiting* (for results of dependencies), *queued* (runnable, held back until a worker has a slot),
*no-worker* (runnable, nobody may run it), *processing* (sent to one worker), *memory* (some worker holds the result), *erred*,
*forgotten*. A transition changes one task, and may recommend states for others; recommendations are drained last-in first-out. Pairs that are
not in the table go through *released*.
"""

from __future__ import annotations

from collections.abc import Callable

from distributed.scheduler_state_machine.core import InvalidTransition, MachineCore
from distributed.scheduler_state_machine.instructions import (
    ReportCancelled,
    ReportLost,
    ReportRetried,
)
from distributed.scheduler_state_machine.placement import decide_worker, is_rootish
from distributed.scheduler_state_machine.state import TaskState

Transition = Callable[[MachineCore, TaskState], None]


def released_waiting(m: MachineCore, ts: TaskState) -> None:
    if ts.has_lost_dependencies or ts.run_spec is None:
        m.recommend(ts, "forgotten")
        return
    waiting_on = None
    for dts in ts.dependencies:
        dts.add_waiter(ts)
        if not dts.who_has:
            if waiting_on is None:
                waiting_on = set()
            waiting_on.add(dts)
            if dts.state == "erred" and dts in m.recommendations:
                # its turn to be retried comes later in this cascade
                m.recommend(dts, "waiting")
            elif dts.state == "erred":
                ts.exception_blame = dts.exception_blame or dts
            elif dts.state == "released":
                m.recommend(dts, "waiting")
    m.set_state(ts, "waiting")
    if waiting_on is not None:
        ts.waiting_on = waiting_on
    if ts.exception_blame is not None:
        m.recommend(ts, "erred")
    elif waiting_on is None:
        m.recommend(ts, "processing")


def waiting_processing(m: MachineCore, ts: TaskState) -> None:
    if ts.waiting_on:
        # a dependency was lost between the recommendation and now
        return
    if is_rootish(m, ts):
        m.enqueue(ts)
        m.refill_all = True
        return
    runnable_processing(m, ts)


def runnable_processing(m: MachineCore, ts: TaskState) -> None:
    """To a worker, or to *no-worker* if nobody may run it."""
    ws = decide_worker(m, ts)
    if ws is None:
        if ts.state != "no-worker":
            if ts.state == "queued":
                m.leave_queue()
            m.set_state(ts, "no-worker")
            m.unrunnable[ts] = m.now
        return
    if ts.dependencies and ws.memory_limit:
        size = m.settings.default_data_size
        needed = sum(dts.get_nbytes(size) for dts in ts.dependencies)
        if needed > ws.memory_limit:
            ts.exception = MemoryError(
                f"Task {ts.key!r} has {needed} B worth of input dependencies, but worker {ws.address} has memory_limit set to {ws.memory_limit} B."
            )
            ts.exception_text = str(ts.exception)
            m.recommend(ts, "erred")
            return
    if ts.state == "no-worker":
        del m.unrunnable[ts]
    elif ts.state == "queued":
        m.leave_queue()
    m.send_to_worker(ws, ts)


def waiting_released(m: MachineCore, ts: TaskState) -> None:
    m.set_state(ts, "released")
    # it may have been blamed on the way to an error that it never reached; who is to blame is found out when it is started
    ts.exception_blame = None
    if (ts.waiters or ts.who_wants) and not ts.has_lost_dependencies:
        # it runs again, and needs what it needed: nothing is released, or all of its lineage would be computed again
        ts.waiting_on = frozenset()
        m.recommend(ts, "waiting")
        return
    m.detach_from_dependencies(ts)
    if ts.has_lost_dependencies:
        m.recommend(ts, "forgotten")


def queued_released(m: MachineCore, ts: TaskState) -> None:
    m.leave_queue()
    waiting_released(m, ts)


def no_worker_released(m: MachineCore, ts: TaskState) -> None:
    del m.unrunnable[ts]
    waiting_released(m, ts)


def processing_released(m: MachineCore, ts: TaskState) -> None:
    ws = ts.processing_on
    assert ws is not None, "a processing task is on a worker"
    # its slot counts as free at once, also when it is running and cannot be stopped: a worker never answers free-keys of a
    # running task, so there is no later moment to wait for
    ws.stop_processing(ts)
    ws.actors.discard(ts)
    if m.workers.get(ws.address) is ws:
        m.free_on(ws, ts)
        m.refill.add(ws)
    waiting_released(m, ts)


def memory_released(m: MachineCore, ts: TaskState) -> None:
    if ts.who_has and (ts.waiters or ts.who_wants):
        # nobody needed it when this was recommended; now somebody does
        return
    for ws in ts.who_has:
        ws.remove_replica(ts)
        ws.actors.discard(ts)
        m.free_on(ws, ts)
    m.set_state(ts, "released")
    for cs in ts.who_wants:
        if not cs.pseudo:
            m.out.append(ReportLost(cs.client_key, ts.key))
    if ts.run_spec is None or ts.has_lost_dependencies:
        m.recommend(ts, "forgotten")
        return
    if ts.waiters or ts.who_wants:
        m.recommend(ts, "waiting")
    for dts in ts.waiters:
        if dts.state in ("no-worker", "processing", "queued"):
            m.recommend(dts, "waiting" if dts.waiters or dts.who_wants else "released")
        elif dts.state == "waiting":
            if type(dts.waiting_on) is not set:
                dts.waiting_on = set()
            dts.waiting_on.add(ts)


def to_erred(m: MachineCore, ts: TaskState) -> None:
    if ts.exception_blame is None:
        ts.exception_blame = ts
    m.set_state(ts, "erred")
    m.detach_from_dependencies(ts)
    for dts in ts.waiters:
        if dts.state not in ("memory", "erred"):
            dts.exception_blame = ts.exception_blame
            m.recommend(dts, "erred")
    m.report_erred(ts)
    m.end_fire_and_forget(ts)
    if not ts.who_wants and not ts.dependents:
        m.recommend(ts, "forgotten")


def processing_erred(m: MachineCore, ts: TaskState) -> None:
    ws = ts.processing_on
    assert ws is not None, "a processing task is on a worker"
    ws.stop_processing(ts)
    ws.actors.discard(ts)
    m.refill.add(ws)
    to_erred(m, ts)


def queued_erred(m: MachineCore, ts: TaskState) -> None:
    m.leave_queue()
    to_erred(m, ts)


def no_worker_erred(m: MachineCore, ts: TaskState) -> None:
    del m.unrunnable[ts]
    to_erred(m, ts)


def memory_erred(m: MachineCore, ts: TaskState) -> None:
    """Only a lost actor: its state cannot be computed again."""
    for ws in ts.who_has:
        ws.remove_replica(ts)
        ws.actors.discard(ts)
        m.free_on(ws, ts)
    to_erred(m, ts)


def erred_released(m: MachineCore, ts: TaskState) -> None:
    for address in ts.erred_on:
        ws = m.workers.get(address)
        if ws is not None:
            m.free_on(ws, ts)
    ts.erred_on = frozenset()
    ts.exception = ts.traceback = ts.exception_blame = None
    ts.exception_text = ts.traceback_text = ""
    m.set_state(ts, "released")
    for dts in ts.dependents:
        if dts.state == "erred":
            # what nobody wants is started by those that need it
            m.recommend(dts, "waiting" if dts.who_wants or dts.waiters else "released")
    for cs in ts.who_wants:
        if not cs.pseudo:
            m.out.append(ReportRetried(cs.client_key, ts.key))


def to_forgotten(m: MachineCore, ts: TaskState) -> None:
    for ws in ts.who_has:
        ws.remove_replica(ts)
        ws.actors.discard(ts)
        m.free_on(ws, ts)
    for dts in ts.dependents:
        dts.has_lost_dependencies = True
        assert type(dts.dependencies) is set, "a dependent has a set of its own"
        dts.dependencies.discard(ts)
        if type(dts.waiting_on) is set:
            dts.waiting_on.discard(ts)
        if dts.state not in ("memory", "erred"):
            m.recommend(dts, "forgotten")
    ts.dependents = ts.waiters = frozenset()
    for dts in ts.dependencies:
        assert type(dts.dependents) is set, "a dependency has a set of its own"
        dts.dependents.discard(ts)
        dts.discard_waiter(ts)
        m.maybe_let_go(dts)
    ts.dependencies = frozenset()
    reason = "lost dependencies" if ts.has_lost_dependencies else "already forgotten"
    for cs in ts.who_wants:
        if not cs.pseudo:
            m.out.append(ReportCancelled(cs.client_key, (ts.key,), reason, None))
        cs.unwant(ts)
    m.set_state(ts, "forgotten")
    m.drop_task(ts)


#: (start, finish) -> what happens. Two pairs are missing on purpose: results arrive by an event, not by a recommendation
#: (processing -> memory, in `machine`), and waiting -> queued / no-worker are outcomes of waiting -> processing.
TABLE: dict[tuple[str, str], Transition] = {
    ("released", "waiting"): released_waiting,
    ("released", "erred"): to_erred,
    ("released", "forgotten"): to_forgotten,
    ("waiting", "processing"): waiting_processing,
    ("waiting", "released"): waiting_released,
    ("waiting", "erred"): to_erred,
    ("queued", "processing"): runnable_processing,
    ("queued", "released"): queued_released,
    ("queued", "erred"): queued_erred,
    ("no-worker", "processing"): runnable_processing,
    ("no-worker", "released"): no_worker_released,
    ("no-worker", "erred"): no_worker_erred,
    ("processing", "released"): processing_released,
    ("processing", "erred"): processing_erred,
    ("memory", "released"): memory_released,
    ("memory", "forgotten"): to_forgotten,
    ("memory", "erred"): memory_erred,
    ("erred", "released"): erred_released,
}


def transition(m: MachineCore, ts: TaskState, finish: str) -> None:
    """Bring a task into a state, or as far as the rules let it."""
    start = ts.state
    if start == finish or start == "forgotten":
        return
    function = TABLE.get((start, finish))
    if function is not None:
        function(m, ts)
        return
    if start == "released" or finish == "released" or (start, "released") not in TABLE:
        raise InvalidTransition(ts.key, start, finish, m.story(ts.key))
    TABLE[start, "released"](m, ts)
    # what the first half recommends for the same task is more recent than what we were asked for
    finish = m.recommendations.pop(ts, finish) if finish != "forgotten" else finish
    m.recommendations.pop(ts, None)
    transition(m, ts, finish)


def drain(m: MachineCore) -> None:
    """Carry out recommendations until none is left."""
    recommendations = m.recommendations
    while recommendations:
        ts, finish = recommendations.popitem()
        transition(m, ts, finish)
