"""What the scheduler makes of the memory that workers measure."""

from __future__ import annotations

from distributed.scheduler import MemoryState
from distributed.scheduler_state_machine import events as ev
from tests.machine.test_scheduler_machine import A, Driver


def test_kinds_of_memory() -> None:
    state = MemoryState(process=100, unmanaged_old=20, managed=50, spilled=7)
    assert state.unmanaged == 50 and state.unmanaged_recent == 30
    assert state.managed_total == 57 and state.optimistic == 70
    both = MemoryState.sum(state, MemoryState(1, 1, 0, 0))
    assert (both.process, both.unmanaged_old, both.managed, both.spilled) == (101, 21, 50, 7)
    assert MemoryState.sum() == MemoryState(0, 0, 0, 0)
    assert "unmanaged_recent: 30" in repr(state)


def test_unmanaged_memory_grows_old() -> None:
    d = Driver()
    ws = d.machine.workers[A]
    assert ws.memory == MemoryState(0, 0, 0, 0)

    def beat(now: float, process: int, spilled: int = 0) -> MemoryState:
        d.now = now
        d.send(ev.WorkerHeartbeat(A, None, {}, process, spilled))
        return ws.memory

    beat(1000.0, 100)
    assert beat(1010.0, 300).unmanaged_old == 100, "it was not there all the time"
    assert ws.memory.unmanaged_recent == 200
    assert beat(1031.0, 300).unmanaged_old == 300
    assert beat(1032.0, 150).unmanaged_old == 150, "what is gone is not old"
    d.graph({"x": []})
    d.finish(d.computes()["x"])
    assert ws.nbytes == 10 and ws.memory.managed == 10
    spilled = beat(1033.0, 150, 4)
    assert (spilled.managed, spilled.spilled, spilled.unmanaged) == (6, 4, 144)
    # sizes that are wrong do not make more memory than there is
    assert beat(1034.0, 3).managed == 3 and ws.memory.unmanaged == 0
