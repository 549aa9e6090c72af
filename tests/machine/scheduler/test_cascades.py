"""What one event sets off, and what it must not: results that exist stay, errors are told once, what is gone is said to be gone."""

from __future__ import annotations

import pytest

from distributed.scheduler_state_machine import events as ev
from distributed.scheduler_state_machine.instructions import (
    ComputeTask,
    FreeKeys,
    ReportCancelled,
    ReportErred,
    ReportInMemory,
    ReportRetried,
    TellWorkerRemoved,
)
from tests.machine.test_scheduler_machine import A, B, Driver


def lineage(d: Driver, retries: int = 0) -> ComputeTask:
    """w -> x -> y, with y running, x in memory and w released long ago."""
    d.graph({"w": [], "x": ["w"], "y": (["x"], {"annotations": {"retries": retries}})}, wants=["y"])
    d.finish(d.computes()["w"])
    d.finish(d.computes()["x"])
    y = d.computes()["y"]
    assert d.take(FreeKeys) == [FreeKeys(y.deps[0][2][0], ("w",))]
    d.nothing_else()
    return y


def test_a_retry_keeps_the_dependencies() -> None:
    d = Driver()
    d.err(lineage(d, retries=1))
    assert d.take(FreeKeys) == [FreeKeys(A, ("y",))]
    assert d.computes()["y"].deps == [("x", 10, (A,))]
    d.nothing_else()


def test_a_reschedule_keeps_the_dependencies() -> None:
    d = Driver()
    y = lineage(d)
    d.send(ev.TaskRescheduled(A, "y", "r"))
    assert d.take(FreeKeys) == [FreeKeys(A, ("y",))]
    again = d.computes()["y"]
    assert again.run_id > y.run_id and again.deps == [("x", 10, (A,))]
    d.nothing_else()


def test_a_stale_result_keeps_the_dependencies() -> None:
    d = Driver()
    y = lineage(d)
    d.finish(y._replace(run_id=y.run_id - 1))
    assert d.take(FreeKeys) == [FreeKeys(A, ("y",))]
    assert d.computes()["y"].deps == [("x", 10, (A,))]
    d.nothing_else()


def test_a_lost_worker_takes_only_what_it_held() -> None:
    d = Driver(workers=(A, B))
    y = lineage(d)
    other = B if y.worker == A else A
    d.send(ev.ReplicasAdded(other, ["x"], "a"))
    d.send(ev.WorkerRemoved(y.worker, True, "w"))
    assert d.take(TellWorkerRemoved) == [TellWorkerRemoved(other, y.worker)]
    assert d.computes()["y"].deps == [("x", 10, (other,))]
    d.nothing_else()


def test_a_retried_diamond_does_not_err_again() -> None:
    """The sides of the diamond leave the error one after the other; the tip must wait for both."""
    d = Driver()
    d.graph({"r": [], "left": ["r"], "right": ["r"], "tip": ["left", "right"]}, wants=["tip"])
    d.err(d.computes()["r"])
    assert d.take(ReportErred) == [ReportErred("c", "tip", "boom", None)]
    d.nothing_else()
    d.send(ev.KeysRetried(["tip"], "retry"))
    assert d.take(ReportRetried) == [ReportRetried("c", "tip")]
    assert d.take(FreeKeys) == [FreeKeys(A, ("r",))]
    for step in (["r"], ["left", "right"], ["tip"]):
        computes = d.computes()
        assert sorted(computes) == step
        for compute in computes.values():
            d.finish(compute)
    assert {key for free in d.take(FreeKeys) for key in free.keys} == {"r", "left", "right"}
    assert [report.key for report in d.take(ReportInMemory)] == ["tip"]
    d.nothing_else()


def test_a_task_that_only_a_failed_task_needed_is_not_started() -> None:
    d = Driver(workers=())
    d.graph({"bad": []})
    d.add_worker(A)
    d.err(d.computes()["bad"])
    d.take(ReportErred)
    d.graph({"side": [], "y": ["bad", "side"]}, wants=["y"])
    assert d.take(ReportErred) == [ReportErred("c", "y", "boom", None)]
    d.nothing_else()
    assert d.machine.tasks["side"].state == "released"


def test_scattered_data_whose_worker_is_gone_is_reported() -> None:
    d = Driver()
    d.send(ev.DataAdded("c", {"d": [B]}, {"d": 1}, "scatter"))
    assert d.take(ReportCancelled) == [ReportCancelled("c", ("d",), "already forgotten", None)]
    d.nothing_else()
    assert not d.machine.tasks


def test_data_of_a_key_that_has_erred_is_reported() -> None:
    d = Driver()
    d.send(ev.ClientAdded("other", {}))
    d.graph({"x": []})
    d.err(d.computes()["x"])
    d.take(ReportErred)
    d.send(ev.DataAdded("other", {"x": [A]}, {"x": 1}, "scatter"))
    assert d.take(FreeKeys) == [FreeKeys(A, ("x",))]
    assert d.take(ReportErred) == [ReportErred("other", "x", "boom", None)]
    d.nothing_else()


def test_a_cancelled_key_takes_along_what_others_keep() -> None:
    """The client loses a dependent that it did not name, so it is told; the other client keeps it."""
    d = Driver()
    d.send(ev.ClientAdded("other", {}))
    d.graph({"x": [], "y": ["x"]})
    d.send(ev.KeysDesired("other", ["y"]))
    x = d.computes()["x"]
    d.send(ev.KeysCancelled("c", ["x"], False, "reason", None, "cancel"))
    assert ReportCancelled("c", ("y",), "reason", None) in d.take(ReportCancelled)
    d.finish(x)
    d.finish(d.computes()["y"])
    assert [(report.client, report.key) for report in d.take(ReportInMemory)] == [("other", "y")]


@pytest.mark.parametrize("last", [False, True])
def test_a_row_on_a_forgotten_row_is_reported(last: bool) -> None:
    """An earlier message's data was lost when the next message arrived."""
    d = Driver()
    d.send(ev.DataAdded("c", {"d": [A]}, {"d": 1}, "scatter"))
    d.take(ReportInMemory)
    d.send(ev.GraphStarted("c", 9, None, 0.0, 0, "g"))
    d.send(ev.GraphRowsAdded("c", 9, [("x", (1, b"", None), None, 0, {"keys": ["d"]})], [], False))
    d.computes()
    d.send(ev.WorkerRemoved(A, True, "w"))
    d.out.clear()
    d.send(ev.GraphRowsAdded("c", 9, [("y", (1, b"", None), [0], 1, None)], True, last))
    assert d.take(ReportCancelled) == [ReportCancelled("c", ("y",), "lost dependencies", None)]
    d.send(ev.GraphCommitted("c", 9, ()))
    d.nothing_else()
    assert not d.machine.tasks
