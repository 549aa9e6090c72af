"""What always holds between two events. `check` walks everything and looks at both sides of each relation."""

from __future__ import annotations

import math
from collections import Counter

from distributed.scheduler_state_machine.core import MachineCore
from distributed.scheduler_state_machine.state import TaskState


def check(m: MachineCore) -> None:
    """AssertionError names the first relation that does not hold."""
    assert not m.recommendations, f"recommendations are drained: {m.recommendations}"
    n_queued = 0
    for key, ts in m.tasks.items():
        assert ts.key == key, f"{ts} is filed under {key!r}"
        check_task(m, ts)
        n_queued += ts.state == "queued"
    assert n_queued == m.n_queued, f"{n_queued} tasks are queued, {m.n_queued} are counted"
    in_queue = {ts for _, _, ts in m.queue}
    for ts in m.tasks.values():
        assert ts.state != "queued" or ts in in_queue, f"{ts} is in no queue"
        assert ts.state != "no-worker" or ts in m.unrunnable, f"{ts} is not filed as unrunnable"
    assert set(m.running_order) == m.running and len(m.running_order) == len(m.running), (
        "running is kept twice"
    )
    assert sum(ws.nthreads for ws in m.workers.values()) == m.total_nthreads, "threads are miscounted"
    for ws in m.workers.values():
        for ts in ws.processing:
            assert ts.processing_on is ws and ts.state == "processing", f"{ts} is not processing on {ws}"
        for ts in ws.has_what:
            assert ws in ts.who_has, f"{ts} does not know its holder {ws}"
        assert ws.long_running <= ws.processing.keys(), (
            f"{ws} has long-running tasks that it does not process"
        )
        assert ws.occupancy >= 0, f"{ws} has negative occupancy"
        expected = sum(ws.processing.values())
        assert math.isclose(ws.occupancy, expected, rel_tol=1e-6, abs_tol=1e-6), (
            f"{ws} has occupancy {ws.occupancy}, its tasks make {expected}"
        )
        for name, amount in ws.used_resources.items():
            used = sum((ts.resource_restrictions or {}).get(name, 0) for ts in ws.processing)
            assert amount == used, f"{ws} uses {used} of {name}, {amount} are counted"
        size = sum(ts.nbytes for ts in ws.has_what if ts.nbytes > 0)
        assert ws.nbytes == size, f"{ws} holds {size} B, {ws.nbytes} are counted"
        assert (ws in m.running) == (ws.status == "running"), f"{ws} is wrongly counted as running or not"
        for entry in ws.functions:
            assert ws in entry.holders, f"{entry} does not know its holder {ws}"
    for cs in m.clients.values():
        for ts in cs.wants_what:
            assert cs in ts.who_wants, f"{ts} does not know that {cs} wants it"
            assert m.tasks.get(ts.key) is ts, f"{cs} wants {ts}, which is forgotten"
    for ts, steal in m.stealing.items():
        assert m.workers.get(steal.victim.address) is steal.victim, (
            f"{ts} is asked back from {steal.victim}, which is gone"
        )
    for ts in m.known_running:
        assert m.tasks.get(ts.key) is ts, f"{ts} is forgotten, and is believed to run"
    for ts in m.unrunnable:
        assert ts.state == "no-worker", f"{ts} is filed as unrunnable"
    users = Counter(ts.run_spec[0] for ts in m.tasks.values() if type(ts.run_spec) is tuple)
    for entry in m.functions.values():
        assert entry.users == users[entry], f"{entry} has {users[entry]} users, {entry.users} are counted"
    for group in m.task_groups.values():
        assert sum(group.states.values()) - group.states["forgotten"] == group.size, f"{group} is miscounted"


def check_task(m: MachineCore, ts: TaskState) -> None:
    """One task's relations and what its state demands."""
    state = ts.state
    for dts in ts.dependencies:
        assert ts in dts.dependents, f"{dts} does not know its dependent {ts}"
        assert m.tasks.get(dts.key) is dts, f"{ts} depends on {dts}, which is forgotten"
    for dts in ts.dependents:
        assert ts in dts.dependencies, f"{dts} does not know its dependency {ts}"
    for dts in ts.waiters:
        assert dts in ts.dependents, f"{dts} waits for {ts} without depending on it"
        assert dts.state in ("waiting", "processing", "queued", "no-worker"), (
            f"{dts} is filed as waiting for {ts}"
        )
    if state in ("waiting", "processing", "queued", "no-worker"):
        for dts in ts.dependencies:
            assert ts in dts.waiters, f"{dts} does not know that {ts} needs it"
        assert ts.who_wants or ts.waiters, f"nobody needs {ts}"
    if state == "released":
        assert not ts.who_wants and not ts.waiters, f"{ts} is needed and nothing is done about it"
    for cs in ts.who_wants:
        assert ts in cs.wants_what, f"{cs} does not know that it wants {ts}"
    for ws in ts.who_has:
        assert ts in ws.has_what, f"{ws} does not know that it holds {ts}"
    assert bool(ts.who_has) == (state == "memory"), f"{ts} has holders {ts.who_has}"
    assert (ts.processing_on is not None) == (state == "processing"), f"{ts} is on {ts.processing_on}"
    if state == "processing":
        assert ts.processing_on is not None and ts in ts.processing_on.processing, (
            f"{ts} is unknown to its worker"
        )
        assert all(dts.who_has for dts in ts.dependencies), f"{ts} lacks dependencies"
    if state == "waiting":
        assert ts.waiting_on, f"{ts} waits for nothing"
        for dts in ts.waiting_on:
            assert dts in ts.dependencies and not dts.who_has, f"{ts} waits for {dts}"
            assert ts in dts.waiters, f"{dts} does not know that {ts} waits"
    else:
        assert not ts.waiting_on, f"{ts} waits for {ts.waiting_on}"
    if state == "erred":
        assert ts.exception_blame is not None, f"{ts} has nobody to blame"
    if state in ("queued", "processing", "no-worker", "waiting"):
        assert ts.priority is not None, f"{ts} has no priority"
