"""Graphs that arrive in pieces and do not arrive well."""

from __future__ import annotations

from typing import Any

import pytest

from distributed.scheduler_state_machine import events as ev
from distributed.scheduler_state_machine.instructions import (
    ForgetFunctions,
    FreeKeys,
    ReportCancelled,
    ReportErred,
    ReportInMemory,
)
from tests.machine.test_scheduler_machine import A, Driver

GOOD = ("x", (1, b"", None), None, 0, None)


@pytest.mark.parametrize(
    "bad",
    [
        ("y", (1, b"", None), [0, 5], 1, None),
        ("y", (1, b"", None), [1], 1, None),
        ("y", (1, b"", None), [-1], 1, None),
        ("y", (77, b"", None), [0], 1, None),
        ("y", (1, b"", None), [0], 1, {"annotations": {"retries": "many"}}),
        ("y", (1, b"", None), [0], 1, {"annotations": {"priority": "high"}}),
    ],
    ids=["no such row", "itself", "negative", "no such function", "retries", "priority"],
)
def test_an_aborted_graph_leaves_nothing_behind(bad: Any) -> None:
    d = Driver()
    d.send(ev.GraphStarted("c", 9, None, 0.0, 0, "g"))
    with pytest.raises((ValueError, TypeError)):
        d.send(ev.GraphRowsAdded("c", 9, [GOOD, bad], True, True))
    d.send(ev.GraphAborted("c", 9, ["x", "y"], "malformed", "why", None, "g"))
    assert sorted(report.key for report in d.take(ReportErred)) == ["x", "y"]
    d.nothing_else()
    assert not d.machine.tasks and not d.machine.task_groups
    d.send(ev.FunctionsForgotten("c", [1]))
    assert not d.machine.functions


def test_an_error_that_is_released_before_the_commit_is_forgotten() -> None:
    d = Driver()
    d.send(ev.GraphStarted("c", 9, None, 0.0, 0, "g"))
    d.send(ev.GraphRowsAdded("c", 9, [GOOD], True, False))
    d.err(d.computes()["x"])
    d.take(ReportErred)
    d.send(ev.KeysReleased("c", ["x"], "r"))
    d.send(ev.GraphCommitted("c", 9, ()))
    assert d.take(FreeKeys) == [FreeKeys(A, ("x",))]
    d.nothing_else()
    assert not d.machine.tasks


def test_an_abort_leaves_what_the_client_held_before() -> None:
    d = Driver()
    d.graph({"x": []})
    d.finish(d.computes()["x"])
    d.take(ReportInMemory)
    d.send(ev.GraphStarted("c", 9, None, 0.0, 0, "g"))
    d.send(ev.GraphRowsAdded("c", 9, [GOOD, ("y", (1, b"", None), [0], 1, None)], [1], True))
    d.computes()
    d.send(ev.GraphAborted("c", 9, (), "lost dependencies", None, None, "g"))
    assert d.take(ReportCancelled) == [ReportCancelled("c", ("y",), "lost dependencies", None)]
    assert d.take(FreeKeys) == [FreeKeys(A, ("y",))]
    d.nothing_else()
    assert d.machine.tasks["x"].state == "memory"


def test_an_abort_does_not_run_errors_again() -> None:
    d = Driver()
    d.send(ev.GraphStarted("c", 9, None, 0.0, 0, "g"))
    d.send(ev.GraphRowsAdded("c", 9, [GOOD, ("y", (1, b"", None), [0], 1, None)], [1], False))
    d.err(d.computes()["x"])
    assert [report.key for report in d.take(ReportErred)] == ["y"]
    d.send(ev.GraphAborted("c", 9, (), "lost dependencies", None, None, "g"))
    d.take(ReportCancelled)
    assert d.take(FreeKeys) == [FreeKeys(A, ("x",))]
    d.nothing_else()
    assert not d.machine.tasks


def test_forgotten_groups_do_not_collect_in_one_that_lives_long() -> None:
    d = Driver()
    d.graph({"sum-first": []})
    d.finish(d.computes()["sum-first"])
    for i in range(20):
        d.graph({(f"part-{i}", 0): [], f"sum-{i}": [(f"part-{i}", 0)]}, wants=[f"sum-{i}"])
        d.finish(d.computes()[f"part-{i}", 0])
        d.finish(d.computes()[f"sum-{i}"])
        d.send(ev.KeysReleased("c", [f"sum-{i}"], "r"))
    assert len(d.machine.task_groups) == 1
    assert len(d.machine.tasks["sum-first"].group.dependencies) <= 1
    assert not d.take(ForgetFunctions)
