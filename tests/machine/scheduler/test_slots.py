"""The queue: how many tasks a worker holds, for how long tasks wait for workers, and that a seed replays."""

from __future__ import annotations

import subprocess
import sys

from distributed.scheduler_state_machine import NoWorkerError
from distributed.scheduler_state_machine import events as ev
from distributed.scheduler_state_machine.instructions import ReportErred, ReportInMemory
from tests.machine.test_scheduler_machine import A, B, C, Driver


def test_short_tasks_do_not_pull_long_ones_onto_a_worker() -> None:
    """The slots of a worker are counted for one kind of task; what is handed out with them must be of that kind."""
    d = Driver()
    d.graph({"fast-0": [], "slow-0": []})
    computes = d.computes()
    d.finish(computes["fast-0"], duration=1e-5)
    d.finish(computes["slow-0"], duration=10.0)
    d.take(ReportInMemory)
    d.graph({**{f"fast-{i}": [] for i in range(1, 6)}, **{f"slow-{i}": [] for i in range(1, 101)}})
    first = d.computes()
    assert sorted(first) == [f"fast-{i}" for i in range(1, 6)]
    for compute in first.values():
        d.finish(compute, duration=1e-5)
    assert sorted(d.computes()) == ["slow-1", "slow-2"], "one runs, one is ahead"


def test_queued_tasks_time_out_only_when_their_time_has_come() -> None:
    d = Driver(workers=(), no_workers_timeout_s=30.0)
    d.now = 1e9
    d.graph({"x": []})
    d.now += 20
    d.graph({"y": []})
    assert d.machine.next_deadline() == 1e9 + 30
    d.send(ev.DeadlineReached("t"))
    d.nothing_else()
    d.now = 1e9 + 30
    d.send(ev.DeadlineReached("t"))
    (erred,) = d.take(ReportErred)
    assert erred.key == "x" and isinstance(erred.exception, NoWorkerError) and erred.exception.timeout == 30.0
    assert d.machine.next_deadline() == 1e9 + 50
    d.add_worker(A)
    assert list(d.computes()) == ["y"]
    assert d.machine.next_deadline() is None
    d.nothing_else()


def test_queued_tasks_wait_from_when_the_last_worker_left() -> None:
    d = Driver(workers=(A,), no_workers_timeout_s=30.0, worker_saturation=1.0)
    d.graph({"x": [], "y": []})
    assert len(d.computes()) == 1 and d.machine.next_deadline() is None
    d.now = 100.0
    d.send(ev.WorkerRemoved(A, True, "w"))
    assert d.machine.next_deadline() == 130.0
    d.now = 130.0
    d.send(ev.DeadlineReached("t"))
    assert sorted(erred.key for erred in d.take(ReportErred)) == ["x", "y"]
    assert d.machine.next_deadline() is None
    d.nothing_else()


def test_a_paused_worker_is_a_worker() -> None:
    d = Driver(workers=(A,), no_workers_timeout_s=30.0)
    d.send(ev.WorkerStatusChanged(A, "paused", "s"))
    d.graph({"x": []})
    assert d.machine.next_deadline() is None
    d.nothing_else()
    d.send(ev.WorkerStatusChanged(A, "running", "s"))
    assert list(d.computes()) == ["x"]


REPLAY = f"""
from tests.machine.test_scheduler_machine import Driver
d = Driver(workers={(A, B, C)!r}, nthreads=2)
log = []
for g in range(6):
    d.graph({{f"k{{i}}-{{g}}": [f"k{{j}}-{{g}}" for j in range(i) if (i * j + g) % 3 == 0] for i in range(12)}})
    while computes := d.computes():
        log += [(c.worker, c.key, c.run_id, c.deps) for c in computes.values()]
        for compute in reversed(computes.values()):
            d.finish(compute)
    log += [repr(item) for item in d.out]
    d.out.clear()
print(log)
"""


def test_the_same_seed_gives_the_same_instructions_in_another_process() -> None:
    """Texts hash differently in each process; no decision and no order may follow from that."""
    logs = {
        subprocess.run(
            [sys.executable, "-c", REPLAY],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(filter(None, sys.path)) or "."},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2", "3")
    }
    assert len(logs) == 1


def test_caution_ends_when_all_suspects_have_run() -> None:
    """One death must not make a kind of task slow for ever."""
    d = Driver(workers=(A,))
    d.graph({"x-0": []})
    d.finish(d.computes()["x-0"], duration=1e-5)
    d.send(ev.KeysReleased("c", ["x-0"], "r"))
    d.graph({f"x-{i}": [] for i in range(1, 1000)})
    ahead = d.computes()
    assert len(ahead) > 100, "tiny tasks are sent far ahead"
    d.send(ev.WorkerRemoved(A, False, "w"))
    d.add_worker(B)
    for _ in range(len(ahead)):
        (compute,) = d.computes().values()
        assert compute.key in ahead, "suspects come first"
        d.finish(compute, duration=1e-5)
    assert len(d.computes()) > 100
    assert not d.machine.task_prefixes["x"].suspects


def test_suspects_that_nobody_wants_any_more_make_nobody_cautious() -> None:
    d = Driver(workers=(A,))
    d.graph({"x-0": []})
    d.finish(d.computes()["x-0"], duration=1e-5)
    d.graph({f"x-{i}": [] for i in range(1, 50)})
    d.computes()
    d.send(ev.WorkerRemoved(A, False, "w"))
    prefix = d.machine.task_prefixes["x"]
    assert prefix.cautious()
    d.send(ev.KeysReleased("c", [f"x-{i}" for i in range(1, 50)], "r"))
    assert not prefix.cautious()
