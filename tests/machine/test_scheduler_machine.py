"""The scheduler machine alone: events in, exactly the expected instructions out, invariants after each event."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from distributed.scheduler_state_machine import (
    KilledWorker,
    NoValidWorkerError,
    SchedulerMachine,
    SchedulerSettings,
)
from distributed.scheduler_state_machine import events as ev
from distributed.scheduler_state_machine.instructions import (
    ComputeTask,
    DefineFunction,
    ForgetFunctions,
    FreeKeys,
    RefreshWhoHas,
    RemoveReplicas,
    ReportCancelled,
    ReportErred,
    ReportInMemory,
    ReportLost,
    ReportRetried,
    TellWorkerRemoved,
)
from distributed.scheduler_state_machine.intake import MalformedGraph

A, B, C = "tcp://127.0.0.1:1", "tcp://127.0.0.1:2", "tcp://127.0.0.1:3"


class Driver:
    """Drives a machine and holds what it asked for until a test takes it."""

    def __init__(self, workers: tuple[str, ...] = (A,), nthreads: int = 1, **settings: Any) -> None:
        self.machine = SchedulerMachine(SchedulerSettings(validate=True, **settings))
        self.now = 0.0
        self.out: list[Any] = []
        self.intake = 0
        self.send(ev.ClientAdded("c", {}))
        for address in workers:
            self.add_worker(address, nthreads)
        self.send(ev.FunctionsDefined("c", [(1, b"function")]))
        self.nothing_else()

    def send(self, event: Any) -> None:
        self.out += self.machine.handle(event, now=self.now)

    def add_worker(
        self, address: str, nthreads: int = 1, name: Any = None, memory_limit: int = 2**30, **resources: float
    ) -> None:
        self.send(
            ev.WorkerAdded(
                address,
                name or address,
                address.split("://")[1].split(":")[0],
                nthreads,
                memory_limit,
                resources,
                "init",
                "id",
                None,
                0,
                "",
                {},
                {},
                {},
                "s",
            )
        )
        self.send(ev.WorkerStatusChanged(address, "running", "s"))

    def graph(self, rows: dict[Any, Any], wants: Any = None, client: str = "c", **begin: Any) -> None:
        """Rows as key -> list of dependencies, or (list, extra)."""
        self.intake += 1
        numbers = {key: i for i, key in enumerate(rows)}
        wire = []
        for i, (key, value) in enumerate(rows.items()):
            deps, extra = value if isinstance(value, tuple) else (value, {})
            external = [dep for dep in deps if dep not in numbers]
            extra = {**extra, **({"keys": external} if external else {})}
            wire.append(
                (
                    key,
                    (1, b"args", None),
                    [numbers[dep] for dep in deps if dep in numbers] or None,
                    i,
                    extra or None,
                )
            )
        self.send(
            ev.GraphStarted(
                client, self.intake, begin.get("submitting_task"), 0.0, begin.get("user_priority", 0), "g"
            )
        )
        wanted = True if wants is None else [numbers[key] for key in wants]
        self.send(ev.GraphRowsAdded(client, self.intake, wire, wanted, True))
        self.send(ev.GraphCommitted(client, self.intake, ()))

    def take(self, kind: type) -> list[Any]:
        found = [item for item in self.out if type(item) is kind]
        self.out = [item for item in self.out if type(item) is not kind]
        return found

    def computes(self) -> dict[Any, ComputeTask]:
        self.take(DefineFunction)
        return {item.key: item for item in self.take(ComputeTask)}

    def finish(self, compute: ComputeTask, nbytes: int = 10, duration: float = 1.0) -> None:
        done = ev.TaskFinished(
            compute.key, compute.run_id, nbytes, "int", b"type", 1, 0.0, duration, None, None
        )
        self.send(ev.TasksFinished(compute.worker, [done], "f"))

    def err(self, compute: ComputeTask, exception: Any = "boom") -> None:
        self.send(ev.TaskErred(compute.worker, compute.key, compute.run_id, exception, None, "boom", "", "e"))

    def nothing_else(self) -> None:
        assert not self.out


def test_one_task_from_arrival_to_oblivion() -> None:
    d = Driver()
    d.graph({"x": []})
    assert d.take(DefineFunction) == [DefineFunction(A, 0, b"function")]
    (compute,) = d.take(ComputeTask)
    assert (compute.worker, compute.key, compute.run_id, compute.deps) == (A, "x", 0, None)
    d.nothing_else()
    d.finish(compute)
    assert d.take(ReportInMemory) == [ReportInMemory("c", "x", b"type", None)]
    d.send(ev.KeysReleased("c", ["x"], "r"))
    assert d.take(FreeKeys) == [FreeKeys(A, ("x",))]
    d.nothing_else()
    assert not d.machine.tasks, [
        (t, t.who_wants, t.dependents, t.waiters, d.machine.story(t.key))
        for t in d.machine.tasks.values()
        if not t.dependents
    ]
    # the function lives as long as the client may refer to it
    d.send(ev.FunctionsForgotten("c", [1]))
    assert d.take(ForgetFunctions) == [ForgetFunctions(A, (0,))]
    d.nothing_else()


def test_function_is_sent_once_per_worker() -> None:
    d = Driver(worker_saturation=math.inf)
    d.graph({f"x-{i}": [] for i in range(5)})
    assert len(d.take(DefineFunction)) == 1
    assert len(d.take(ComputeTask)) == 5
    d.nothing_else()


def test_dependency_is_released_when_its_last_dependent_is_done() -> None:
    d = Driver()
    d.graph({"x": [], "y": ["x"]}, wants=["y"])
    d.finish(d.computes()["x"])
    compute = d.computes()["y"]
    assert compute.deps == [("x", 10, (A,))]
    d.finish(compute)
    assert d.take(FreeKeys) == [FreeKeys(A, ("x",))]
    assert d.take(ReportInMemory) == [ReportInMemory("c", "y", b"type", None)]
    d.nothing_else()


def test_error_reaches_dependents_and_blames_the_task_that_failed() -> None:
    d = Driver()
    d.graph({"x": [], "y": ["x"], "z": ["y"]})
    d.err(d.computes()["x"])
    assert sorted(d.take(ReportErred)) == [ReportErred("c", key, "boom", None) for key in "xyz"]
    d.nothing_else()
    assert d.machine.tasks["z"].exception_blame is d.machine.tasks["x"]


def test_retries_run_the_task_again() -> None:
    d = Driver()
    d.graph({"x": ([], {"annotations": {"retries": 1}})})
    first = d.computes()["x"]
    d.err(first)
    assert d.take(FreeKeys) == [FreeKeys(A, ("x",))]
    second = d.computes()["x"]
    assert second.run_id != first.run_id
    d.err(second)
    assert len(d.take(ReportErred)) == 1
    d.nothing_else()


def test_retry_of_an_erred_key_runs_what_failed() -> None:
    d = Driver()
    d.graph({"x": [], "y": ["x"]}, wants=["y"])
    d.err(d.computes()["x"])
    d.take(ReportErred)
    assert set(d.machine.erred_ancestors(["y"])) == {"x", "y"}
    d.send(ev.KeysRetried(["y"], "retry"))
    assert d.take(FreeKeys) == [FreeKeys(A, ("x",))]
    assert d.take(ReportRetried) == [ReportRetried("c", "y")]
    d.finish(d.computes()["x"])
    d.finish(d.computes()["y"])
    assert [r.key for r in d.take(ReportInMemory)] == ["y"]
    with pytest.raises(KeyError):
        d.machine.erred_ancestors(["nonsense"])


def test_result_of_an_old_run_is_not_taken() -> None:
    d = Driver(workers=(A, B))
    d.graph({"x": []})
    first = d.computes()["x"]
    d.send(ev.WorkerRemoved(first.worker, True, "w"))
    d.take(TellWorkerRemoved)
    second = d.computes()["x"]
    assert second.worker != first.worker and second.run_id == first.run_id + 1
    stale = ev.TaskFinished("x", first.run_id, 1, "int", None, 1, 0, 1, None, None)
    d.send(ev.TasksFinished(second.worker, [stale], "f"))
    # the worker answered for a run that is over: it is asked again
    assert d.take(FreeKeys) == [FreeKeys(second.worker, ("x",))]
    third = d.computes()["x"]
    assert third.run_id == second.run_id + 1
    d.nothing_else()


def test_result_of_an_unknown_task_is_freed() -> None:
    d = Driver()
    d.send(ev.TasksFinished(A, [ev.TaskFinished("x", 7, 1, "int", None, 1, 0, 1, None, None)], "f"))
    assert d.take(FreeKeys) == [FreeKeys(A, ("x",))]
    d.nothing_else()


def test_lost_worker_data_is_computed_again() -> None:
    d = Driver(workers=(A, B))
    d.graph({"x": [], "y": ["x"]})
    x = d.computes()["x"]
    d.finish(x)
    y = d.computes()["y"]
    d.take(ReportInMemory)
    d.send(ev.WorkerRemoved(x.worker, False, "w"))
    assert len(d.take(TellWorkerRemoved)) == 1
    assert d.take(ReportLost) == [ReportLost("c", "x")]
    if y.worker != x.worker:
        assert d.take(FreeKeys) == [FreeKeys(y.worker, ("y",))]
    again = d.computes()["x"]
    assert again.worker != x.worker
    d.finish(again)
    d.finish(d.computes()["y"])
    assert [r.key for r in d.take(ReportInMemory)] == ["x", "y"]
    d.nothing_else()


@pytest.mark.parametrize("allowed", [0, 3])
def test_task_that_kills_its_workers_is_given_up(allowed: int) -> None:
    d = Driver(allowed_failures=allowed)
    d.graph({"x": []})
    for i in range(allowed + 1):
        (compute,) = d.computes().values()
        d.send(ev.WorkerRemoved(compute.worker, False, "w"))
        d.nothing_else() if i < allowed else None
        if i < allowed:
            d.add_worker(f"tcp://127.0.0.1:{10 + i}")
    (erred,) = d.take(ReportErred)
    assert isinstance(erred.exception, KilledWorker)
    assert erred.exception.task == "x" and erred.exception.allowed_failures == allowed
    d.nothing_else()


def test_innocent_tasks_on_a_dying_worker_are_not_blamed() -> None:
    """A worker holds many short tasks; the one that kills it must be found, the others must survive."""
    d = Driver(allowed_failures=1, unknown_task_duration_s=1e-6)
    d.machine.task_prefixes.clear()
    d.graph({f"t-{i}": [] for i in range(20)})
    killer = "t-7"
    generation = 0
    done: set[str] = set()
    erred: dict[str, Any] = {}
    while len(done) + len(erred) < 20:
        computes = d.computes()
        worker_died = False
        for compute in sorted(computes.values(), key=lambda c: c.priority):
            if compute.key == killer:
                generation += 1
                d.send(ev.WorkerRemoved(compute.worker, False, "w"))
                d.add_worker(f"tcp://127.0.0.1:{100 + generation}")
                worker_died = True
                break
            d.finish(compute, duration=1e-6)
        erred.update({r.key: r.exception for r in d.take(ReportErred)})
        done.update(r.key for r in d.take(ReportInMemory))
        d.take(FreeKeys)
        assert worker_died or computes
    assert set(erred) == {killer} and isinstance(erred[killer], KilledWorker)
    assert generation <= 1 + 1 + 1


def test_restrictions_and_no_worker() -> None:
    d = Driver(workers=(A,), no_workers_timeout_s=10.0)
    d.graph({"x": ([], {"annotations": {"workers": ["alice"]}})})
    d.nothing_else()
    assert d.machine.tasks["x"].state == "no-worker"
    d.add_worker(B, name="alice")
    assert d.computes()["x"].worker == B
    d.graph({"y": ([], {"annotations": {"resources": {"GPU": 1}}})})
    assert d.machine.tasks["y"].state == "no-worker"
    assert d.machine.next_deadline() == 10.0
    d.now = 11.0
    d.send(ev.DeadlineReached("t"))
    (erred,) = d.take(ReportErred)
    assert isinstance(erred.exception, NoValidWorkerError)
    d.nothing_else()


def test_loose_restrictions_are_a_preference() -> None:
    d = Driver(workers=(A,))
    d.graph({"x": ([], {"annotations": {"workers": ["alice"], "allow_other_workers": True}})})
    assert d.computes()["x"].worker == A


def test_host_restriction() -> None:
    d = Driver(workers=("tcp://10.0.0.1:1", "tcp://10.0.0.2:1"))
    d.graph({"x": ([], {"annotations": {"workers": "10.0.0.2"}})})
    assert d.computes()["x"].worker == "tcp://10.0.0.2:1"


def test_priority_decides_who_runs_first() -> None:
    d = Driver(workers=())
    d.graph(
        {
            "low": ([], {"annotations": {"priority": -1}}),
            "middle": [],
            "high": ([], {"annotations": {"priority": 5}}),
        }
    )
    d.add_worker(A)
    order = []
    computes = list(d.computes().values())
    while computes:
        order += [c.key for c in computes]
        for compute in computes:
            d.finish(compute)
        computes = list(d.computes().values())
    assert order == ["high", "middle", "low"]


def test_roots_wait_in_the_queue_and_the_depth_follows_the_duration() -> None:
    d = Driver()
    d.graph({f"x-{i}": [] for i in range(1000)})
    first = d.computes()
    assert len(first) == 2, "one ahead until the duration is known"
    for compute in first.values():
        d.finish(compute, duration=10.0)
    assert len(d.computes()) == 2, "long tasks: nothing is gained by holding more"
    d = Driver()
    d.graph({f"x-{i}": [] for i in range(1000)})
    for compute in d.computes().values():
        d.finish(compute, duration=1e-5)
    assert 100 < len(d.computes()) <= 201, "short tasks: enough to cover a round trip"


def test_explicit_saturation_has_its_released_meaning() -> None:
    d = Driver(worker_saturation=2.0, nthreads=3)
    d.graph({f"x-{i}": [] for i in range(100)})
    assert len(d.computes()) == 6
    d = Driver(worker_saturation=math.inf)
    d.graph({f"x-{i}": [] for i in range(100)})
    assert len(d.computes()) == 100


def test_big_outputs_bound_the_depth() -> None:
    d = Driver()
    d.graph({f"x-{i}": [] for i in range(1000)})
    for compute in d.computes().values():
        d.finish(compute, duration=1e-5, nbytes=2**27)
    assert len(d.computes()) == 2


def test_few_tasks_are_spread_over_workers() -> None:
    d = Driver(workers=(A, B), nthreads=4)
    d.graph({f"x-{i}": [] for i in range(4)})
    computes = d.computes().values()
    assert sorted(c.worker for c in computes) == [A, A, B, B]


def test_locality() -> None:
    d = Driver(workers=(A, B))
    d.graph({"x": [], "y": []})
    computes = d.computes()
    d.finish(computes["x"], nbytes=10**8)
    d.finish(computes["y"], nbytes=10)
    d.take(ReportInMemory)
    d.graph({"z": ["x", "y"]})
    assert d.computes()["z"].worker == computes["x"].worker


def test_chunked_intake_holds_what_finishes_early() -> None:
    d = Driver()
    d.send(ev.GraphStarted("c", 9, None, 0.0, 0, "g"))
    d.send(ev.GraphRowsAdded("c", 9, [("x", (1, b"", None), None, 0, None)], [], False))
    d.finish(d.computes()["x"])
    d.nothing_else()
    assert d.machine.tasks["x"].state == "memory"
    d.send(ev.GraphRowsAdded("c", 9, [("y", (1, b"", None), [0], 1, None)], True, True))
    y = d.computes()["y"]
    d.send(ev.GraphCommitted("c", 9, ()))
    d.finish(y)
    assert d.take(FreeKeys) == [FreeKeys(A, ("x",))]
    assert [r.key for r in d.take(ReportInMemory)] == ["y"]
    d.nothing_else()


def test_client_that_leaves_in_the_middle_of_an_intake_leaves_nothing_behind() -> None:
    d = Driver()
    d.send(ev.GraphStarted("c", 9, None, 0.0, 0, "g"))
    d.send(
        ev.GraphRowsAdded("c", 9, [(f"x-{i}", (1, b"", None), None, i, None) for i in range(10)], True, False)
    )
    assert d.computes()
    d.send(ev.ClientRemoved("c", "bye"))
    d.take(FreeKeys)
    d.take(ForgetFunctions)
    d.nothing_else()
    assert not d.machine.tasks and not d.machine.functions


def test_malformed_rows_name_what_is_wrong() -> None:
    d = Driver()
    d.send(ev.GraphStarted("c", 9, None, 0.0, 0, "g"))
    with pytest.raises(MalformedGraph, match="function 77"):
        d.machine.handle(
            ev.GraphRowsAdded("c", 9, [("x", (77, b"", None), None, 0, None)], True, True), now=0
        )
    with pytest.raises(MalformedGraph, match="row 5"):
        d.machine.handle(ev.GraphRowsAdded("c", 9, [("y", (1, b"", None), [5], 0, None)], True, True), now=0)


def test_lost_dependencies_cancel() -> None:
    d = Driver()
    d.graph({"y": ["gone"]})
    assert d.take(ReportCancelled) == [ReportCancelled("c", ("y",), "lost dependencies", None)]
    d.nothing_else()
    assert not d.machine.tasks, [
        (t, t.who_wants, t.dependents, t.waiters, d.machine.story(t.key))
        for t in d.machine.tasks.values()
        if not t.dependents
    ]


def test_cancel_takes_dependents_along() -> None:
    d = Driver()
    d.graph({"x": [], "y": ["x"]})
    d.computes()
    d.send(ev.KeysCancelled("c", ["x"], False, "reason", None, "cancel"))
    assert d.take(FreeKeys) == [FreeKeys(A, ("x",))]
    (report,) = d.take(ReportCancelled)
    assert set(report.keys) == {"x", "y"} and report.reason == "reason"
    d.nothing_else()
    assert not d.machine.tasks, [
        (t, t.who_wants, t.dependents, t.waiters, d.machine.story(t.key))
        for t in d.machine.tasks.values()
        if not t.dependents
    ]


def test_cancel_respects_other_clients() -> None:
    d = Driver()
    d.send(ev.ClientAdded("other", {}))
    d.graph({"x": []})
    d.send(ev.KeysDesired("other", ["x"]))
    compute = d.computes()["x"]
    d.send(ev.KeysCancelled("c", ["x"], False, None, None, "cancel"))
    d.nothing_else()
    d.finish(compute)
    assert d.take(ReportInMemory) == [ReportInMemory("other", "x", b"type", None)]


def test_fire_and_forget() -> None:
    d = Driver()
    d.graph({"x": []})
    compute = d.computes()["x"]
    d.send(ev.KeysDesired("fire-and-forget", ["x"]))
    d.send(ev.KeysReleased("c", ["x"], "r"))
    d.nothing_else()
    d.finish(compute)
    assert d.take(FreeKeys) == [FreeKeys(A, ("x",))]
    assert not d.machine.tasks, [
        (t, t.who_wants, t.dependents, t.waiters, d.machine.story(t.key))
        for t in d.machine.tasks.values()
        if not t.dependents
    ]


def test_scattered_data_and_its_loss() -> None:
    d = Driver(workers=(A, B))
    d.send(ev.DataAdded("c", {"d": [A]}, {"d": 100}, "scatter"))
    assert d.take(ReportInMemory) == [ReportInMemory("c", "d", None, None)]
    d.graph({"x": ["d"]})
    d.computes()
    d.send(ev.WorkerRemoved(A, False, "w"))
    d.take(TellWorkerRemoved)
    d.take(ReportLost)
    d.take(FreeKeys)
    cancelled = {key for report in d.take(ReportCancelled) for key in report.keys}
    assert cancelled == {"d", "x"}
    assert not d.machine.tasks, [
        (t, t.who_wants, t.dependents, t.waiters, d.machine.story(t.key))
        for t in d.machine.tasks.values()
        if not t.dependents
    ]


def test_replicas() -> None:
    d = Driver(workers=(A, B))
    d.graph({"x": []})
    d.finish(d.computes()["x"])
    d.take(ReportInMemory)
    holder = next(iter(d.machine.tasks["x"].who_has)).address
    other = B if holder == A else A
    d.send(ev.ReplicasAdded(other, ["x", "unknown"], "a"))
    assert d.take(RemoveReplicas) == [RemoveReplicas(other, ("unknown",))]
    d.send(ev.ReplicaReleased(holder, "x", "r"))
    d.nothing_else()
    d.send(ev.WhoHasRequested(holder, ["x", "unknown"], "q"))
    assert d.take(FreeKeys) == [FreeKeys(holder, ("unknown",))]
    assert d.take(RefreshWhoHas) == [RefreshWhoHas(holder, {"x": [other]})]
    d.nothing_else()


def test_seceded_tasks_free_their_slot() -> None:
    d = Driver(worker_saturation=1.0)
    d.graph({"x": [], "y": []})
    (first,) = d.computes().values()
    d.send(ev.TaskLongRunning(A, first.key, first.run_id, 1.0, "l"))
    assert len(d.computes()) == 1


def test_submitted_from_a_task_comes_first() -> None:
    d = Driver(workers=())
    d.graph({"parent": [], "x": []})
    d.graph({"child": []}, submitting_task="parent")
    tasks = d.machine.tasks
    assert tasks["child"].priority < tasks["parent"].priority


def test_more_input_than_memory_is_refused() -> None:
    d = Driver(workers=())
    d.add_worker(A, memory_limit=1000)
    d.send(ev.DataAdded("c", {"d": [A]}, {"d": 2000}, "scatter"))
    d.take(ReportInMemory)
    d.graph({"x": ["d"]})
    (erred,) = d.take(ReportErred)
    assert isinstance(erred.exception, MemoryError) and "2000 B" in str(erred.exception)


def test_restart_forgets_everything() -> None:
    d = Driver()
    d.graph({"x": [], "y": ["x"]})
    d.finish(d.computes()["x"])
    d.send(ev.Restarted("restart"))
    assert not d.machine.tasks, [
        (t, t.who_wants, t.dependents, t.waiters, d.machine.story(t.key))
        for t in d.machine.tasks.values()
        if not t.dependents
    ]
    d.finish(ComputeTask(A, "y", 1, (0,), None, None, None, False, None))
    assert d.take(FreeKeys)[-1] == FreeKeys(A, ("y",))


@pytest.mark.parametrize("seed", range(30))
def test_random_life(seed: int) -> None:
    """Random graphs, failures, deaths, releases: in the end what is wanted is done, and after the release nothing is left."""
    rng = random.Random(seed)
    d = Driver(workers=(A, B, C), nthreads=2, allowed_failures=100)
    open_computes: list[ComputeTask] = []
    workers = {A, B, C}
    counter = 10
    keys: list[str] = []
    wanted: set[str] = set()
    settled: set[str] = set()

    def collect() -> None:
        for item in d.out:
            if type(item) is ComputeTask:
                open_computes.append(item)
            elif type(item) is ReportInMemory or type(item) is ReportErred:
                settled.add(item.key)
            elif type(item) is ReportLost or type(item) is ReportRetried:
                settled.discard(item.key)
            elif type(item) is FreeKeys:
                open_computes[:] = [
                    c for c in open_computes if not (c.worker == item.worker and c.key in item.keys)
                ]
        d.out.clear()

    for _ in range(120):
        action = rng.random()
        if action < 0.25:
            rows: dict[Any, Any] = {}
            for _ in range(rng.randint(1, 6)):
                key = f"k{len(keys)}"
                pool = [k for k in keys if k in d.machine.tasks] + list(rows)
                rows[key] = rng.sample(pool, min(len(pool), rng.randint(0, 3)))
                keys.append(key)
            wants = [key for key in rows if rng.random() < 0.7] or [next(iter(rows))]
            wanted.update(wants)
            d.graph(rows, wants=wants)
        elif action < 0.7 and open_computes:
            compute = open_computes.pop(rng.randrange(len(open_computes)))
            if compute.worker in workers:
                if rng.random() < 0.9:
                    d.finish(compute, nbytes=rng.randint(0, 10**6), duration=rng.random() * 1e-3)
                else:
                    d.err(compute)
        elif action < 0.8 and len(workers) > 1:
            worker = rng.choice(sorted(workers))
            workers.discard(worker)
            open_computes[:] = [c for c in open_computes if c.worker != worker]
            d.send(ev.WorkerRemoved(worker, rng.random() < 0.5, "w"))
        elif action < 0.88:
            counter += 1
            workers.add(f"tcp://127.0.0.1:{counter}")
            d.add_worker(f"tcp://127.0.0.1:{counter}", nthreads=2)
        elif action < 0.94 and wanted:
            key = rng.choice(sorted(wanted))
            wanted.discard(key)
            d.send(ev.KeysReleased("c", [key], "r"))
        collect()
    for _ in range(2000):
        if not open_computes:
            break
        compute = open_computes.pop()
        d.finish(compute)
        collect()
    for key in wanted:
        assert d.machine.tasks[key].state in ("memory", "erred"), d.machine.story(key)
        assert key in settled
    d.send(ev.KeysReleased("c", list(wanted), "r"))
    assert not d.machine.tasks, [
        (t, t.who_wants, t.dependents, t.waiters, d.machine.story(t.key))
        for t in d.machine.tasks.values()
        if not t.dependents
    ]
    assert all(not ws.processing and not ws.has_what for ws in d.machine.workers.values())
