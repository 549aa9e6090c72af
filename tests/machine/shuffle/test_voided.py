"""Results that a shuffle takes back: they are computed again as far as somebody needs them."""

from __future__ import annotations

from distributed.scheduler_state_machine import events as ev
from distributed.scheduler_state_machine.instructions import FreeKeys
from tests.machine.test_scheduler_machine import A, Driver


def test_voided_results_are_computed_again_for_what_runs() -> None:
    """w -> x -> y, with y running, x in memory and w released long ago."""
    d = Driver()
    d.graph({"w": [], "x": ["w"], "y": ["x"]}, wants=["y"])
    d.finish(d.computes()["w"])
    d.finish(d.computes()["x"])
    d.computes()
    d.take(FreeKeys)
    d.send(ev.ResultsVoided(["w", "x"], "v"))
    assert {key for free in d.take(FreeKeys) for key in free.keys} == {"x", "y"}
    assert list(d.computes()) == ["w"]
    d.nothing_else()


def test_a_voided_computation_starts_again_with_a_new_run_id() -> None:
    d = Driver()
    d.graph({"x": []}, wants=["x"])
    old = d.computes()["x"]
    d.send(ev.ResultsVoided(["x", "unknown"], "v"))
    assert d.take(FreeKeys) == [FreeKeys(A, ("x",))]
    assert d.computes()["x"].run_id > old.run_id
    d.nothing_else()
