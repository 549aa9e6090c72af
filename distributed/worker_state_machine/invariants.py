"""What always holds on a worker between two bursts of events."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed.worker_state_machine.machine import WorkerMachine


def check(m: WorkerMachine) -> None:
    """AssertionError names the first relation that does not hold."""
    size = 0
    for key, ts in m.tasks.items():
        state = ts.state
        assert ts.key == key and state != "forgotten", f"{ts} is filed under {key!r}"
        for dts in ts.dependencies:
            assert ts in dts.dependents, f"{dts} does not know its dependent {ts}"
            assert m.tasks.get(dts.key) is dts, f"{ts} depends on {dts}, which is forgotten"
        for dts in ts.dependents:
            assert ts in dts.dependencies, f"{dts} does not know its dependency {ts}"
        if state == "waiting":
            assert ts.waiting_for, f"{ts} waits for nothing"
        if state in ("ready", "constrained", "executing", "long-running"):
            assert not ts.waiting_for, f"{ts} lacks {ts.waiting_for}"
        for dts in ts.waiting_for:
            assert dts.state != "memory", f"{ts} waits for {dts}, which is here"
        assert (ts in m.missing) == (state == "missing"), f"{ts} is wrongly filed as missing or not"
        if state == "fetch":
            assert ts.who_has, f"nobody has {ts}"
            for worker in ts.who_has:
                assert ts in m.needed_from[worker], f"{ts} is not asked from {worker}"
        if state in ("cancelled", "resumed"):
            assert ts.previous in ("executing", "long-running", "flight"), f"nothing goes on for {ts}"
        if state == "memory":
            size += ts.nbytes
        if state == "released":
            assert ts.dependents, f"{ts} should have been forgotten"
    assert size == m.nbytes, f"{size} B are in memory, {m.nbytes} are counted"
    for ts in m.executing:
        assert ts.state == "executing" or ts.previous == "executing", f"{ts} is not executing"
    for ts in m.long_running:
        assert ts.state == "long-running" or ts.previous == "long-running", f"{ts} is not running"
    for worker, needed in m.needed_from.items():
        assert needed, f"{worker} is asked for nothing"
        for ts in needed:
            assert ts.state == "fetch" and worker in ts.who_has, f"{ts} is wrongly asked from {worker}"
    for name, amount in m.available_resources.items():
        assert -1e-9 <= amount <= m.total_resources[name] + 1e-9, f"{amount} of {name} are free"
