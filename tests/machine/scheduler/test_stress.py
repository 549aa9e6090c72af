"""Random lives of one scheduler machine with everything that clients and workers may do, in any order, from one seed."""

from __future__ import annotations

import random
from typing import Any

import pytest

from distributed.scheduler_state_machine import SchedulerMachine, SchedulerSettings
from distributed.scheduler_state_machine import events as ev
from distributed.scheduler_state_machine import instructions as ins

CLIENTS = ("c0", "c1")


class World:
    """Clients and workers that answer what the machine asks of them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.machine = SchedulerMachine(SchedulerSettings(validate=True, allowed_failures=1000), seed=seed)
        self.now = 0.0
        self.n_workers = self.n_keys = self.n_intakes = 0
        self.open: list[ins.ComputeTask] = []
        #: requests, and the run that each is about: on an ordered stream a later one cannot be meant
        self.asked: list[tuple[ins.RequestSteal, int | None]] = []
        self.finished: set[str] = set()
        self.wanted: dict[str, set[str]] = {client: set() for client in CLIENTS}
        self.news: dict[str, dict[str, str]] = {client: {} for client in CLIENTS}
        self.arriving: dict[str, tuple[int, int]] = {}
        for client in CLIENTS:
            self.send(ev.ClientAdded(client, {}))
            self.send(ev.FunctionsDefined(client, [(1, b"f")]))
        for _ in range(3):
            self.add_worker()

    def send(self, event: Any) -> None:
        self.now += 0.001
        for item in self.machine.handle(event, now=self.now):
            kind = type(item)
            if kind is ins.ComputeTask:
                assert item.worker in self.machine.workers, "work goes to workers that exist"
                assert all(holders for _, _, holders in item.deps or ()), "dependencies have holders"
                self.open.append(item)
            elif kind is ins.RequestSteal:
                assert item.worker in self.machine.workers, "workers that exist are asked"
                self.asked.append((item, self.machine.tasks[item.key].run_id))
            elif kind is ins.FreeKeys:
                self.open = [c for c in self.open if c.worker != item.worker or c.key not in item.keys]
            elif kind in (ins.ReportInMemory, ins.ReportErred):
                self.news[item.client][item.key] = "memory" if kind is ins.ReportInMemory else "erred"
            elif kind in (ins.ReportLost, ins.ReportRetried):
                self.news[item.client].pop(item.key, None)
            elif kind is ins.ReportCancelled:
                for key in item.keys:
                    self.wanted[item.client].discard(key)

    def add_worker(self) -> None:
        self.n_workers += 1
        address = f"tcp://127.0.0.1:{self.n_workers}"
        resources = {"GPU": 1.0} if self.n_workers % 3 == 0 else {}
        self.send(
            ev.WorkerAdded(
                address,
                address,
                "127.0.0.1",
                2,
                2**30,
                resources,
                "running",
                "",
                None,
                0,
                "",
                {},
                {},
                {},
                "w",
            )
        )

    def rows(self, offset: int) -> list[ev.Row]:
        rng = self.rng
        rows: list[ev.Row] = []
        for i in range(rng.randint(1, 8)):
            key = f"{rng.choice('abc')}-{self.n_keys}"
            self.n_keys += 1
            known = sorted(self.machine.tasks)
            extra: dict[str, Any] = {}
            if known and rng.random() < 0.3:
                extra["keys"] = rng.sample(known, min(2, len(known)))
            if rng.random() < 0.1:
                extra["annotations"] = rng.choice(
                    [{"resources": {"GPU": 1}}, {"retries": 2}, {"priority": 3}]
                )
            inner = rng.sample(range(offset + i), min(offset + i, rng.randint(0, 2)))
            rows.append((key, (1, b"", None), inner or None, i, extra or None))
        return rows

    def graph_message(self, client: str) -> None:
        """The next message of a graph, which begins with it or ends with it or both."""
        rng = self.rng
        if client not in self.arriving:
            self.n_intakes += 1
            self.arriving[client] = (self.n_intakes, 0)
            self.send(ev.GraphStarted(client, self.n_intakes, None, 0.0, 0, "g"))
        intake, offset = self.arriving[client]
        rows = self.rows(offset)
        wants = [i for i in range(len(rows)) if rng.random() < 0.5]
        last = rng.random() < 0.6
        self.wanted[client].update(rows[i][0] for i in wants)
        self.send(ev.GraphRowsAdded(client, intake, rows, wants, last))
        self.arriving[client] = (intake, offset + len(rows))
        if last:
            self.end_graph(client)

    def end_graph(self, client: str) -> None:
        intake, _ = self.arriving.pop(client)
        if self.rng.random() < 0.9:
            self.send(ev.GraphCommitted(client, intake, ()))
        else:
            intake_state = self.machine.clients[client].intakes[intake]
            self.wanted[client].difference_update(intake_state.wanted)
            self.send(ev.GraphAborted(client, intake, (), "lost dependencies", None, None, "g"))

    def answer(self) -> None:
        rng = self.rng
        if not self.open:
            return
        compute = self.open.pop(rng.randrange(len(self.open)))
        chance = rng.random()
        if chance < 0.8:
            self.finish(compute)
        elif chance < 0.88:
            self.send(
                ev.TaskErred(compute.worker, compute.key, compute.run_id, "boom", None, "boom", "", "e")
            )
        elif chance < 0.94:
            self.send(ev.TaskRescheduled(compute.worker, compute.key, "r"))
        else:
            self.open.append(compute)
            self.send(ev.TaskLongRunning(compute.worker, compute.key, compute.run_id, 0.1, "l"))

    def give_back(self) -> None:
        """A worker answers that it was asked for a task."""
        rng = self.rng
        if not self.asked:
            self.send(ev.BalanceDue("b"))
            return
        request, run_id = self.asked.pop(rng.randrange(len(self.asked)))
        if request.worker not in self.machine.workers:
            return
        mine = [c for c in self.open if (c.worker, c.key, c.run_id) == (request.worker, request.key, run_id)]
        state: str | None = None
        if mine:
            state = rng.choice(["ready", "waiting", "constrained", "executing"])
            if state != "executing":
                self.open = [c for c in self.open if c is not mine[0]]
        elif rng.random() < 0.5:
            state = "memory" if request.key in self.finished else None
        self.send(ev.StealAnswered(request.worker, request.key, state, request.stimulus_id))

    def finish(self, compute: ins.ComputeTask) -> None:
        duration = self.rng.choice((1e-5, 1e-2, 10.0))
        self.finished.add(compute.key)
        done = ev.TaskFinished(
            compute.key, compute.run_id, self.rng.randrange(1000), "int", None, 1, 0.0, duration, None, None
        )
        self.send(ev.TasksFinished(compute.worker, [done], "f"))

    def kill(self) -> None:
        address = self.rng.choice(sorted(self.machine.workers))
        self.open = [c for c in self.open if c.worker != address]
        self.send(ev.WorkerRemoved(address, self.rng.random() < 0.5, "w"))

    def step(self) -> None:
        rng = self.rng
        machine = self.machine
        client = rng.choice(CLIENTS)
        wanted = sorted(self.wanted[client])
        workers = sorted(machine.workers)
        chance = rng.random()
        if chance < 0.2:
            self.graph_message(client)
        elif chance < 0.55:
            self.answer()
        elif chance < 0.62:
            self.give_back()
        elif chance < 0.66 and workers:
            self.kill()
        elif chance < 0.71 and len(workers) < 5:
            self.add_worker()
        elif chance < 0.76 and workers:
            self.send(ev.WorkerStatusChanged(rng.choice(workers), rng.choice(("running", "paused")), "s"))
        elif chance < 0.84 and wanted:
            keys = rng.sample(wanted, min(len(wanted), 3))
            self.wanted[client].difference_update(keys)
            self.send(ev.KeysReleased(client, keys, "r"))
        elif chance < 0.87 and wanted:
            keys = rng.sample(wanted, 1)
            self.wanted[client].difference_update(keys)
            self.send(ev.KeysCancelled(client, keys, rng.random() < 0.3, None, None, "c"))
        elif chance < 0.9 and (erred := [key for key in wanted if machine.tasks[key].state == "erred"]):
            self.send(ev.KeysRetried([rng.choice(erred)], "r"))
        elif chance < 0.94 and workers:
            key = f"data-{self.n_keys}"
            self.n_keys += 1
            self.wanted[client].add(key)
            self.send(
                ev.DataAdded(client, {key: [rng.choice([*workers, "tcp://127.0.0.1:0"])]}, {key: 9}, "d")
            )
        elif chance < 0.97 and workers and machine.tasks:
            # copies come and go
            address, key = rng.choice(workers), rng.choice(sorted(machine.tasks))
            if rng.random() < 0.5:
                self.send(ev.ReplicasAdded(address, [key], "a"))
            else:
                self.send(ev.ReplicaReleased(address, key, "r"))
        elif chance < 0.99 and machine.tasks:
            key = rng.choice(sorted(machine.tasks))
            self.wanted[client].add(key)
            self.send(ev.KeysDesired(client, [key]))
        elif chance < 0.991:
            self.arriving.clear()
            for keys in self.wanted.values():
                keys.clear()
            self.send(ev.Restarted("r"))
            assert not machine.tasks, f"left after a restart: {machine.tasks}"

    def come_to_rest(self) -> None:
        for client in list(self.arriving):
            self.end_graph(client)
        for address in list(self.machine.workers):
            self.send(ev.WorkerStatusChanged(address, "running", "s"))
        for _ in range(3):
            # one of three consecutive workers has a GPU
            self.add_worker()
        for _ in range(20_000):
            while self.asked:
                self.give_back()
            if not self.open:
                return
            self.finish(self.open.pop(0))
        raise AssertionError(f"does not come to rest: {self.open}")


@pytest.mark.parametrize("seed", range(60))
def test_what_is_wanted_ends_and_what_is_not_is_gone(seed: int) -> None:
    world = World(seed)
    for _ in range(250):
        world.step()
    world.come_to_rest()
    machine = world.machine
    for client in CLIENTS:
        for key in world.wanted[client]:
            state = machine.tasks[key].state
            assert state in ("memory", "erred"), (client, key, state, machine.story(key))
            assert world.news[client].get(key) == state, (client, key, state, machine.story(key))
    for client in CLIENTS:
        world.send(ev.ClientRemoved(client, "bye"))
    assert not machine.tasks and not machine.task_groups and not machine.functions and not machine.n_queued
    for ws in machine.workers.values():
        assert not ws.processing and not ws.has_what and not ws.functions and not ws.nbytes


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_computed_twice_while_nothing_is_lost(seed: int) -> None:
    """Errors that are retried, reschedules and pauses do not touch the results that exist."""
    world = World(seed)
    rng, runs = world.rng, {}
    for _ in range(5):
        world.graph_message("c0")
    while "c0" in world.arriving:
        world.graph_message("c0")
    for _ in range(3):
        world.add_worker()
    repeated: dict[str, int] = {}
    for _ in range(5_000):
        if not world.open:
            break
        compute = world.open.pop(rng.randrange(len(world.open)))
        runs[compute.key] = runs.get(compute.key, 0) + 1
        if rng.random() < 0.3:
            repeated[compute.key] = repeated.get(compute.key, 0) + 1
            world.send(ev.TaskRescheduled(compute.worker, compute.key, "r"))
        else:
            world.finish(compute)
    assert not world.open
    assert runs == {key: 1 + repeated.get(key, 0) for key in runs}
