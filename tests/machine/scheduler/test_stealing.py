"""Idle workers take over what others have not started - if it pays, and whatever happens while they are asked."""

from __future__ import annotations

from typing import Any

import pytest

from distributed.scheduler_state_machine import events as ev
from distributed.scheduler_state_machine.instructions import (
    ComputeTask,
    FreeKeys,
    RequestSteal,
    TellWorkerRemoved,
)
from tests.machine.test_scheduler_machine import A, B, C, Driver


def loaded(
    n: int = 6, duration: float = 1.0, nbytes: int = 10, extra: Any = None, **kwargs: Any
) -> tuple[Driver, dict[Any, ComputeTask]]:
    """Worker A with n tasks that depend on data there, each of a known duration; B has just come."""
    d = Driver(**kwargs)
    d.graph({"data": []})
    data = d.computes()["data"]
    done = ev.TaskFinished("data", data.run_id, nbytes, "int", None, 1, 0.0, 0.001, None, None)
    d.send(ev.TasksFinished(A, [done], "f"))
    d.graph({"t-99": (["data"], {})})
    d.finish(d.computes()["t-99"], duration=duration)
    # few enough not to be root-like
    d.graph({f"t-{i}": (["data"], extra or {}) for i in range(n)})
    computes = d.computes()
    assert {compute.worker for compute in computes.values()} == {A} and len(computes) == n
    d.out.clear()
    d.add_worker(B, GPU=1.0)
    assert d.machine.starving
    return d, computes


def balance(d: Driver) -> list[RequestSteal]:
    d.send(ev.BalanceDue("b"))
    assert not d.machine.starving
    return d.take(RequestSteal)


SATURATED = {"worker_saturation": float("inf")}


def test_the_most_urgent_waiting_task_moves() -> None:
    d, first = loaded(**SATURATED)
    (request,) = balance(d)
    assert (request.worker, request.key) == (A, "t-1"), "t-0 runs, and B has one thread"
    assert balance(d) == [], "one is on its way"
    d.nothing_else()
    d.send(ev.StealAnswered(A, "t-1", "ready", request.stimulus_id))
    again = d.computes()["t-1"]
    assert again.worker == B and again.run_id > first["t-1"].run_id and again.deps == [("data", 10, (A,))]
    d.nothing_else()
    assert balance(d) == []
    # B is done: the next one
    d.finish(again)
    d.out.clear()
    assert d.machine.starving
    (request,) = balance(d)
    assert request.key == "t-2"


@pytest.mark.parametrize("state", ["executing", "long-running", "memory", "cancelled", "resumed"])
def test_what_runs_stays_and_is_not_asked_for_again(state: str) -> None:
    d, first = loaded(**SATURATED)
    (request,) = balance(d)
    d.send(ev.StealAnswered(A, "t-1", state, request.stimulus_id))
    d.nothing_else()
    (other,) = balance(d)
    assert other.key == "t-0", "if t-1 runs, t-0 does not"
    d.finish(first["t-1"])
    assert d.machine.tasks["t-1"].state == "memory"
    d.send(ev.KeysReleased("c", ["t-1"], "r"))
    assert "t-1" not in d.machine.tasks and not d.machine.known_running


@pytest.mark.parametrize("state", [None, "released"])
def test_what_the_worker_does_not_have_runs_again(state: str | None) -> None:
    d, first = loaded(**SATURATED)
    (request,) = balance(d)
    d.send(ev.StealAnswered(A, "t-1", state, request.stimulus_id))
    assert d.take(FreeKeys) == [FreeKeys(A, ("t-1",))]
    assert d.computes()["t-1"].run_id > first["t-1"].run_id


def test_answers_that_come_too_late() -> None:
    d, first = loaded(**SATURATED)
    (request,) = balance(d)
    d.finish(first["t-1"])
    d.out.clear()
    d.send(ev.StealAnswered(A, "t-1", "ready", request.stimulus_id))
    d.send(ev.StealAnswered(A, "t-1", "ready", request.stimulus_id))
    d.send(ev.StealAnswered(A, "t-2", "ready", "steal-never"))
    d.nothing_else()
    assert d.machine.tasks["t-1"].state == "memory"


def test_the_thief_has_left() -> None:
    d, first = loaded(**SATURATED)
    (request,) = balance(d)
    d.send(ev.WorkerRemoved(B, True, "w"))
    d.out.clear()
    d.send(ev.StealAnswered(A, "t-1", "waiting", request.stimulus_id))
    assert d.take(FreeKeys) == [FreeKeys(A, ("t-1",))]
    again = d.computes()["t-1"]
    assert again.worker == A and again.run_id > first["t-1"].run_id


def test_the_victim_has_left() -> None:
    d, _ = loaded(**SATURATED)
    (request,) = balance(d)
    d.send(ev.ReplicasAdded(B, ["data"], "a"))
    d.send(ev.WorkerRemoved(A, True, "w"))
    assert d.take(TellWorkerRemoved) == [TellWorkerRemoved(B, A)]
    assert not d.machine.stealing
    assert all(compute.worker == B for compute in d.computes().values())
    d.send(ev.StealAnswered(A, "t-1", "ready", request.stimulus_id))


def test_short_tasks_and_large_inputs_stay() -> None:
    d, _ = loaded(duration=0.0005, **SATURATED)
    assert balance(d) == [], "they are through before they could be moved"
    d, _ = loaded(n=3, duration=1.0, nbytes=10**9, **SATURATED)
    assert balance(d) == [], "ten seconds of transfer for one or two of waiting"


def test_restrictions_and_resources_are_kept() -> None:
    d, _ = loaded(extra={"annotations": {"workers": [A]}}, **SATURATED)
    assert balance(d) == []
    d, _ = loaded(extra={"annotations": {"workers": [A], "allow_other_workers": True}}, **SATURATED)
    assert len(balance(d)) == 1
    d = Driver(workers=(), **SATURATED)
    d.add_worker(A, GPU=5.0)
    d.graph({"data": []})
    d.finish(d.computes()["data"])
    d.graph({f"t-{i}": (["data"], {"annotations": {"resources": {"GPU": 1}}}) for i in range(5)})
    d.computes()
    d.out.clear()
    d.add_worker(C)
    d.add_worker(B, GPU=1.0)
    (request,) = balance(d)
    d.send(ev.StealAnswered(A, request.key, "constrained", request.stimulus_id))
    assert d.computes()[request.key].worker == B


def test_a_paused_worker_gives_everything_away_that_it_has_not_started() -> None:
    d, _ = loaded(n=3, duration=0.0005, **SATURATED)
    assert balance(d) == []
    d.send(ev.WorkerStatusChanged(A, "paused", "s"))
    assert d.machine.starving
    requests = balance(d)
    assert [request.key for request in requests] == ["t-0", "t-1", "t-2"], "also if nobody is idle"
    assert balance(d) == []
    d.send(ev.StealAnswered(A, "t-0", "executing", requests[0].stimulus_id))
    for request in requests[1:]:
        d.send(ev.StealAnswered(A, request.key, "ready", request.stimulus_id))
    assert {key: compute.worker for key, compute in d.computes().items()} == {"t-1": B, "t-2": B}
    assert balance(d) == []


def test_a_task_that_takes_long_does_not_hold_up_those_behind_it() -> None:
    d, first = loaded(n=3, duration=0.0005, **SATURATED)
    assert balance(d) == []
    d.send(ev.WorkerHeartbeat(A, None, {"t-0": 60.0}))
    assert d.machine.starving
    (request,) = balance(d)
    assert request.key == "t-1"
    d.finish(first["t-0"])
    assert d.machine.workers[A].blocked_for == 0


def test_a_task_that_waits_for_its_own_is_not_in_their_way() -> None:
    """It came first and runs; what it has submitted is more urgent, and sits behind it on the same worker."""
    d, first = loaded(n=1, duration=0.0005, **SATURATED)
    d.send(ev.WorkerStatusChanged(B, "paused", "s"))
    d.graph({"t-child": (["data"], {})}, submitting_task="t-0")
    assert d.computes()["t-child"].worker == A
    d.send(ev.WorkerStatusChanged(B, "running", "s"))
    d.send(ev.WorkerHeartbeat(A, None, {"t-0": 2.0}))
    (request,) = balance(d)
    assert request.key == "t-child"
    d.send(ev.StealAnswered(A, "t-child", "ready", request.stimulus_id))
    assert d.computes()["t-child"].worker == B
    # also if nobody has said yet what runs
    d, first = loaded(n=2, **SATURATED)
    (request,) = balance(d)
    d.send(ev.StealAnswered(A, request.key, "executing", request.stimulus_id))
    assert d.machine.starving
    (other,) = balance(d)
    assert other.key != request.key


def test_long_running_tasks_and_queued_ones_are_left_alone() -> None:
    d, first = loaded(n=2, **SATURATED)
    d.send(ev.TaskLongRunning(A, "t-0", first["t-0"].run_id, 1.0, "l"))
    assert balance(d) == [], "both have a thread"


def test_it_can_be_turned_off() -> None:
    d = Driver(work_stealing=False, **SATURATED)
    d.graph({"data": []})
    d.finish(d.computes()["data"])
    d.graph({f"t-{i}": ["data"] for i in range(5)})
    d.computes()
    d.out.clear()
    d.add_worker(B)
    assert not d.machine.starving
    d.send(ev.BalanceDue("b"))
    d.nothing_else()
