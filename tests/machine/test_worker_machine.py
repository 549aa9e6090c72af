"""The worker machine alone."""

from __future__ import annotations

from typing import Any

from distributed.worker_state_machine import WorkerMachine, WorkerSettings
from distributed.worker_state_machine import events as ev
from distributed.worker_state_machine.instructions import (
    DropData,
    Execute,
    GatherData,
    SendAddKeys,
    SendLongRunning,
    SendRefreshRequest,
    SendReleased,
    SendReschedule,
    SendStealResponse,
    SendTaskErred,
    SendTaskFinished,
)


class Driver:
    def __init__(self, nthreads: int = 1, **kwargs: Any) -> None:
        self.machine = WorkerMachine(WorkerSettings(validate=True), address="me", nthreads=nthreads, **kwargs)
        self.now = 0.0
        self.out: list[Any] = []

    def send(self, event: Any) -> None:
        self.out += self.machine.handle(event, now=self.now)

    def compute(
        self, key: str, deps: Any = (), run_id: int = 0, priority: Any = (0, 1, 0), resources: Any = None
    ) -> None:
        self.send(ev.ComputeTask(key, run_id, priority, b"spec", deps, resources, False, None, "s"))

    def finished(self, key: str, run_id: int = 0, nbytes: int = 10) -> ev.Executed:
        done = ev.Executed(key, run_id, nbytes, "int", b"t", 1, 0.0, 1.0, None, None, None)
        self.send(done)
        return done

    def free(self, *keys: str, withdrawn: Any = ()) -> None:
        self.send(ev.FreeKeys(keys, withdrawn, "f"))

    def take(self, kind: type) -> list[Any]:
        found = [item for item in self.out if type(item) is kind]
        self.out = [item for item in self.out if type(item) is not kind]
        return found

    def nothing_else(self) -> None:
        assert not self.out


def failure(key: str, run_id: int = 0) -> ev.ExecutionFailed:
    return ev.ExecutionFailed(key, run_id, "exc", None, "exc", "", 1, 0.0, 1.0)


def test_run_and_free() -> None:
    d = Driver()
    d.compute("x")
    assert d.take(Execute) == [Execute("x", 0, b"spec", (), False, None)]
    done = d.finished("x")
    assert d.take(SendTaskFinished) == [SendTaskFinished(done)]
    d.free("x")
    assert d.take(SendReleased) == [SendReleased("x", True)]
    assert d.take(DropData) == [DropData(("x",))]
    d.nothing_else()
    assert not d.machine.tasks and d.machine.nbytes == 0


def test_priorities_and_slots() -> None:
    d = Driver()
    d.compute("first")
    d.compute("low", priority=(0, 3, 0))
    d.compute("high", priority=(0, 2, 0))
    assert [e.key for e in d.take(Execute)] == ["first"]
    d.finished("first")
    assert [e.key for e in d.take(Execute)] == ["high"]


def test_short_tasks_are_offered_ahead() -> None:
    d = Driver()
    d.compute("x")
    d.take(Execute)
    d.send(ev.Executed("x", 0, 10, "int", b"t", 1, 0.0, 1e-6, None, None, None))
    for i in range(100):
        d.compute(f"y{i}")
    assert 10 < len(d.take(Execute)) <= 65


def test_fetch_group_by_peer() -> None:
    d = Driver()
    d.compute("x", deps=[("a", 1, ["p"]), ("b", 1, ["p"])])
    assert d.take(GatherData) == [GatherData("p", ("a", "b"))] or d.out == []
    d.send(ev.GatherDone("p", ("a", "b"), "ok", {"a": 5, "b": 6}, {}))
    (added,) = d.take(SendAddKeys)
    assert set(added.keys) == {"a", "b"}
    (execute,) = d.take(Execute)
    assert set(execute.deps) == {"a", "b"}
    d.nothing_else()


def test_busy_peer_is_asked_again_later() -> None:
    d = Driver()
    d.compute("x", deps=[("a", 1, ["p"])])
    d.take(GatherData)
    d.send(ev.GatherDone("p", ("a",), "busy", {}, {}))
    assert d.take(SendRefreshRequest) == [SendRefreshRequest(("a",))]
    d.nothing_else()
    due = d.machine.next_deadline()
    assert due is not None and abs(due - 0.15) < 1e-9
    d.now = due
    d.send(ev.DeadlineReached("t"))
    assert d.take(GatherData) == [GatherData("p", ("a",))]


def test_missing_data_is_asked_for() -> None:
    d = Driver()
    d.compute("x", deps=[("a", 1, ["p"])])
    d.take(GatherData)
    d.send(ev.GatherDone("p", ("a",), "failed", {}, {}))
    assert d.machine.tasks["a"].state == "missing"
    d.now = d.machine.next_deadline() or 0
    d.send(ev.DeadlineReached("t"))
    assert d.take(SendRefreshRequest) == [SendRefreshRequest(("a",))]
    d.send(ev.RefreshWhoHas({"a": ["q"]}, "r"))
    assert d.take(GatherData) == [GatherData("q", ("a",))]


def test_key_that_the_holder_does_not_have_comes_from_another() -> None:
    d = Driver()
    d.compute("x", deps=[("a", 1, ["p", "q"])])
    (gather,) = d.take(GatherData)
    d.send(ev.GatherDone(gather.worker, ("a",), "ok", {}, {}))
    (other,) = d.take(GatherData)
    assert {gather.worker, other.worker} == {"p", "q"}


def test_cancelled_execution_keeps_its_slot_and_is_discarded() -> None:
    d = Driver()
    d.compute("x")
    d.compute("y")
    assert len(d.take(Execute)) == 1
    d.free("x")
    d.nothing_else()
    d.finished("x")
    assert d.take(DropData) == [DropData(("x",))]
    assert [e.key for e in d.take(Execute)] == ["y"]
    d.nothing_else()
    assert "x" not in d.machine.tasks


def test_withdrawn_offer_frees_its_slot_at_once() -> None:
    d = Driver()
    d.compute("x")
    d.compute("y")
    d.take(Execute)
    d.free("x", withdrawn=["x"])
    assert [e.key for e in d.take(Execute)] == ["y"]
    assert "x" not in d.machine.tasks


def test_cancelled_and_wanted_again_keeps_running() -> None:
    d = Driver()
    d.compute("x", run_id=1)
    d.take(Execute)
    d.free("x")
    d.compute("x", run_id=2)
    d.nothing_else()
    done = d.finished("x", run_id=1)
    # the scheduler learns of the run that was current when the execution started, and treats it as stale
    assert d.take(SendTaskFinished) == [SendTaskFinished(done)]


def test_cancelled_and_then_needed_as_data() -> None:
    d = Driver(nthreads=2)
    d.compute("x")
    d.take(Execute)
    d.free("x")
    d.compute("y", deps=[("x", 1, ["p"])])
    assert d.machine.tasks["x"].state == "resumed"
    d.finished("x")
    assert d.take(SendAddKeys) == [SendAddKeys(("x",))]
    assert [e.key for e in d.take(Execute)] == ["y"]
    d.nothing_else()


def test_resumed_execution_that_fails_is_fetched() -> None:
    d = Driver(nthreads=2)
    d.compute("x")
    d.take(Execute)
    d.free("x")
    d.compute("y", deps=[("x", 1, ["p"])])
    d.send(failure("x"))
    assert d.take(GatherData) == [GatherData("p", ("x",))]
    d.nothing_else()


def test_flight_that_is_to_be_computed() -> None:
    d = Driver(nthreads=2)
    d.compute("y", deps=[("x", 1, ["p"])])
    d.take(GatherData)
    d.compute("x", run_id=3)
    d.nothing_else()
    d.send(ev.GatherDone("p", ("x",), "failed", {}, {}))
    assert [e.key for e in d.take(Execute)] == ["x"]
    done = d.finished("x", run_id=3)
    assert d.take(SendTaskFinished) == [SendTaskFinished(done)]
    assert [e.key for e in d.take(Execute)] == ["y"]
    d.nothing_else()


def test_flight_that_is_to_be_computed_and_arrives() -> None:
    d = Driver()
    d.compute("y", deps=[("x", 1, ["p"])])
    d.take(GatherData)
    d.compute("x", run_id=3)
    d.send(ev.GatherDone("p", ("x",), "ok", {"x": 7}, {}))
    (finished,) = d.take(SendTaskFinished)
    assert (finished.result.key, finished.result.run_id, finished.result.nbytes) == ("x", 3, 7)
    assert [e.key for e in d.take(Execute)] == ["y"]
    d.nothing_else()


def test_freed_dependency_in_flight_is_discarded() -> None:
    d = Driver()
    d.compute("y", deps=[("x", 1, ["p"])])
    d.take(GatherData)
    d.free("y")
    assert d.machine.tasks["x"].state == "cancelled"
    d.send(ev.GatherDone("p", ("x",), "ok", {"x": 7}, {}))
    assert d.take(DropData) == [DropData(("x",))]
    d.nothing_else()
    assert not d.machine.tasks


def test_error_and_run_again() -> None:
    d = Driver()
    d.compute("x")
    d.take(Execute)
    d.send(failure("x"))
    assert d.take(SendTaskErred) == [SendTaskErred(failure("x"))]
    d.free("x")
    d.nothing_else()
    assert not d.machine.tasks
    d.compute("x", run_id=1)
    assert [e.run_id for e in d.take(Execute)] == [1]


def test_undecodable_data_errs_its_own_key_once() -> None:
    d = Driver()
    d.compute("y", deps=[("x", 1, ["p"])])
    d.take(GatherData)
    d.send(ev.GatherDone("p", ("x",), "ok", {}, {"x": failure("x", -1)}))
    assert d.take(SendTaskErred) == [SendTaskErred(failure("x", -1))]
    d.nothing_else()
    d.free("y")
    d.nothing_else()


def test_resources() -> None:
    d = Driver(nthreads=3, resources={"GPU": 1})
    d.compute("x", resources={"GPU": 1})
    d.compute("y", resources={"GPU": 1})
    d.compute("z")
    assert [e.key for e in d.take(Execute)] == ["x", "z"]
    d.finished("x")
    assert [e.key for e in d.take(Execute)] == ["y"]
    assert d.machine.available_resources == {"GPU": 0}
    d.send(failure("y"))
    assert d.machine.available_resources == {"GPU": 1}


def test_seceded_task_frees_its_slot() -> None:
    d = Driver()
    d.compute("x", run_id=5)
    d.compute("y")
    d.take(Execute)
    d.send(ev.Seceded("x", 1.5))
    assert d.take(SendLongRunning) == [SendLongRunning("x", 5, 1.5)]
    assert [e.key for e in d.take(Execute)] == ["y"]
    done = d.finished("x", run_id=5)
    assert d.take(SendTaskFinished) == [SendTaskFinished(done)]
    d.nothing_else()


def test_reschedule() -> None:
    d = Driver()
    d.compute("x")
    d.take(Execute)
    d.send(ev.ExecutionRescheduled("x", 0))
    assert d.take(SendReschedule) == [SendReschedule("x")]
    d.nothing_else()
    assert not d.machine.tasks


def test_steal() -> None:
    d = Driver()
    d.compute("x")
    d.compute("y")
    d.take(Execute)
    d.send(ev.StealRequested("y", False, "steal-1"))
    assert d.take(SendStealResponse) == [SendStealResponse("y", "ready")]
    d.send(ev.StealRequested("x", False, "steal-2"))
    assert d.take(SendStealResponse) == [SendStealResponse("x", "executing")]
    d.send(ev.StealRequested("unknown", False, "steal-3"))
    assert d.take(SendStealResponse) == [SendStealResponse("unknown", None)]
    d.nothing_else()
    assert set(d.machine.tasks) == {"x"}


def test_replica_that_is_needed_is_kept() -> None:
    d = Driver()
    d.send(ev.DataStored({"x": 1}))
    d.compute("y", deps=[("x", 1, ["me"])])
    d.take(Execute)
    d.send(ev.RemoveReplicas(["x"], "r"))
    assert d.take(SendAddKeys) == [SendAddKeys(("x",))]
    d.finished("y")
    d.take(SendTaskFinished)
    d.send(ev.RemoveReplicas(["x"], "r"))
    assert d.take(SendReleased) == [SendReleased("x", False)]
    assert d.take(DropData) == [DropData(("x",))]
    d.nothing_else()


def test_paused() -> None:
    d = Driver()
    d.send(ev.Paused("p"))
    d.compute("x")
    d.compute("y", deps=[("a", 1, ["p"])])
    d.nothing_else()
    d.send(ev.Resumed("r"))
    assert len(d.take(Execute)) == 1 and len(d.take(GatherData)) == 1


def test_known_value_is_reported_with_the_new_run() -> None:
    d = Driver()
    d.compute("x", run_id=1)
    d.take(Execute)
    d.finished("x", run_id=1)
    d.take(SendTaskFinished)
    d.compute("x", run_id=2)
    (finished,) = d.take(SendTaskFinished)
    assert finished.result.run_id == 2
    d.nothing_else()


def test_freed_data_that_a_task_still_counts_on() -> None:
    """Between two messages of one cascade of the scheduler a task may be left without its data: it must not run."""
    d = Driver()
    d.send(ev.DataStored({"x": 1}))
    d.compute("busy")
    d.compute("y", deps=[("x", 1, ["me"])])
    assert [e.key for e in d.take(Execute)] == ["busy"]
    d.free("x")
    d.take(SendReleased), d.take(DropData)
    d.finished("busy")
    d.take(SendTaskFinished)
    d.nothing_else()
    assert d.machine.tasks["y"].state == "waiting" and d.machine.tasks["x"].state == "missing"
    d.send(ev.RefreshWhoHas({"x": ["p"]}, "r"))
    assert d.take(GatherData) == [GatherData("p", ("x",))]
    d.send(ev.GatherDone("p", ("x",), "ok", {"x": 1}, {}))
    assert [e.key for e in d.take(Execute)] == ["y"]
    d.free("y", "x", "busy")
    d.finished("y")
    assert not d.machine.tasks
