"""One scheduler machine and several worker machines on simulated links: delays, deaths, restarts, lost data. One seed decides everything."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest

from distributed.scheduler_state_machine import SchedulerMachine, SchedulerSettings
from distributed.scheduler_state_machine import events as sev
from distributed.scheduler_state_machine import instructions as sins
from distributed.worker_state_machine import WorkerMachine, WorkerSettings
from distributed.worker_state_machine import events as wev
from distributed.worker_state_machine import instructions as wins


class SimulatedWorker:
    """A worker machine with its values, its running tasks and its transfers."""

    def __init__(self, address: str, rng: random.Random) -> None:
        self.address = address
        self.machine = WorkerMachine(
            WorkerSettings(validate=True), address=address, nthreads=2, seed=rng.randrange(2**32)
        )
        self.data: set[Any] = set()
        self.running: list[wins.Execute] = []
        self.transfers: list[wins.GatherData] = []
        #: in order, one direction each
        self.to_worker: deque[Any] = deque()
        self.to_scheduler: deque[Any] = deque()


class Cluster:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.scheduler = SchedulerMachine(SchedulerSettings(validate=True, allowed_failures=1000), seed=seed)
        self.workers: dict[str, SimulatedWorker] = {}
        self.count = 0
        self.reported: dict[Any, str] = {}
        self.tell_scheduler(sev.ClientAdded("c", {}))
        self.tell_scheduler(sev.FunctionsDefined("c", [(1, b"f")]))
        for _ in range(3):
            self.add_worker()

    def tell_scheduler(self, event: Any) -> None:
        for item in self.scheduler.handle(event, now=self.now):
            worker = self.workers.get(getattr(item, "worker", ""))
            if type(item) is sins.ReportInMemory:
                self.reported[item.key] = "memory"
            elif type(item) is sins.ReportErred:
                self.reported[item.key] = "erred"
            elif type(item) in (sins.ReportLost, sins.ReportRetried):
                self.reported.pop(item.key, None)
            elif worker is None:
                continue
            elif type(item) is sins.ComputeTask:
                worker.to_worker.append(
                    wev.ComputeTask(
                        item.key,
                        item.run_id,
                        item.priority,
                        item.spec,
                        item.deps or (),
                        None,
                        False,
                        None,
                        "s",
                    )
                )
            elif type(item) is sins.FreeKeys:
                worker.to_worker.append(wev.FreeKeys(item.keys, (), "s"))
            elif type(item) is sins.RequestSteal:
                worker.to_worker.append(wev.StealRequested(item.key, False, item.stimulus_id))
            elif type(item) is sins.RemoveReplicas:
                worker.to_worker.append(wev.RemoveReplicas(item.keys, "s"))
            elif type(item) is sins.RefreshWhoHas:
                worker.to_worker.append(wev.RefreshWhoHas(item.who_has, "s"))
            elif type(item) is sins.TellWorkerRemoved:
                worker.to_worker.append(wev.PeerRemoved(item.removed, "s"))

    def tell_worker(self, worker: SimulatedWorker, event: Any) -> None:
        if type(event) is wev.FreeKeys:
            # the shell takes back what has not started
            withdrawn = [e.key for e in worker.running if e.key in event.keys and self.rng.random() < 0.5]
            worker.running = [e for e in worker.running if e.key not in withdrawn]
            event = event._replace(withdrawn=withdrawn)
        elif type(event) is wev.StealRequested and self.rng.random() < 0.5:
            kept = [e for e in worker.running if e.key != event.key]
            event = event._replace(withdrawn=len(kept) < len(worker.running))
            worker.running = kept
        for item in worker.machine.handle(event, now=self.now):
            if type(item) is wins.Execute:
                assert set(item.deps) <= worker.data, f"{item.key} lacks {set(item.deps) - worker.data}"
                worker.running.append(item)
            elif type(item) is wins.GatherData:
                worker.transfers.append(item)
            elif type(item) is wins.DropData:
                worker.data.difference_update(item.keys)
            elif type(item) is wins.SendTaskFinished:
                r = item.result
                done = sev.TaskFinished(r.key, r.run_id, r.nbytes, "int", None, 1, 0.0, 0.001, None, None)
                worker.to_scheduler.append(sev.TasksFinished(worker.address, [done], "w"))
            elif type(item) is wins.SendTaskErred:
                r = item.result
                worker.to_scheduler.append(
                    sev.TaskErred(worker.address, r.key, r.run_id, "exc", None, "", "", "w")
                )
            elif type(item) is wins.SendStealResponse:
                worker.to_scheduler.append(
                    sev.StealAnswered(worker.address, item.key, item.state, event.stimulus_id)
                )
            elif type(item) is wins.SendAddKeys:
                worker.to_scheduler.append(sev.ReplicasAdded(worker.address, item.keys, "w"))
            elif type(item) is wins.SendReleased and not item.freed:
                worker.to_scheduler.append(sev.ReplicaReleased(worker.address, item.key, "w"))
            elif type(item) is wins.SendRefreshRequest:
                worker.to_scheduler.append(sev.WhoHasRequested(worker.address, item.keys, "w"))
            elif type(item) is wins.SendReschedule:
                worker.to_scheduler.append(sev.TaskRescheduled(worker.address, item.key, "w"))

    def add_worker(self) -> None:
        self.count += 1
        address = f"tcp://127.0.0.1:{self.count}"
        self.workers[address] = SimulatedWorker(address, self.rng)
        self.tell_scheduler(
            sev.WorkerAdded(
                address,
                address,
                "127.0.0.1",
                2,
                2**30,
                {},
                "running",
                str(self.count),
                None,
                0,
                "",
                {},
                {},
                {},
                "s",
            )
        )

    def kill_worker(self) -> None:
        if len(self.workers) > 1:
            address = self.rng.choice(sorted(self.workers))
            del self.workers[address]
            self.tell_scheduler(sev.WorkerRemoved(address, False, "killed"))

    def step(self, failures: bool) -> bool:
        """Let one thing happen somewhere; False if there is nothing to happen."""
        actions: list[Any] = []
        for worker in self.workers.values():
            if worker.to_worker:
                actions.append(("down", worker))
            if worker.to_scheduler:
                actions.append(("up", worker))
            if worker.running:
                actions.append(("run", worker))
            if worker.transfers:
                actions.append(("transfer", worker))
        if not actions:
            deadlines = [d for w in self.workers.values() if (d := w.machine.next_deadline()) is not None]
            if not deadlines:
                return False
            self.now = max(self.now, min(deadlines))
            for worker in self.workers.values():
                due = worker.machine.next_deadline()
                if due is not None and due <= self.now:
                    self.tell_worker(worker, wev.DeadlineReached("t"))
            return True
        self.now += self.rng.random() * 0.01
        if self.scheduler.starving and self.rng.random() < 0.3:
            self.tell_scheduler(sev.BalanceDue("b"))
        kind, worker = self.rng.choice(actions)
        if kind == "down":
            self.tell_worker(worker, worker.to_worker.popleft())
        elif kind == "up":
            self.tell_scheduler(worker.to_scheduler.popleft())
        elif kind == "run":
            item = worker.running.pop(self.rng.randrange(len(worker.running)))
            chance = self.rng.random()
            if failures and chance < 0.05:
                self.tell_worker(
                    worker, wev.ExecutionFailed(item.key, item.run_id, "exc", None, "", "", 1, 0, 0.001)
                )
            elif chance < 0.1:
                self.tell_worker(worker, wev.ExecutionRescheduled(item.key, item.run_id))
            else:
                worker.data.add(item.key)
                self.tell_worker(
                    worker,
                    wev.Executed(item.key, item.run_id, 10, "int", None, 1, 0, 0.001, None, None, None),
                )
        else:
            item = worker.transfers.pop(self.rng.randrange(len(worker.transfers)))
            peer = self.workers.get(item.worker)
            if peer is None:
                self.tell_worker(worker, wev.GatherDone(item.worker, item.keys, "failed", {}, {}))
            elif self.rng.random() < 0.1:
                self.tell_worker(worker, wev.GatherDone(item.worker, item.keys, "busy", {}, {}))
            else:
                arrived = {key: 10 for key in item.keys if key in peer.data}
                worker.data.update(arrived)
                self.tell_worker(worker, wev.GatherDone(item.worker, item.keys, "ok", arrived, {}))
        return True


@pytest.mark.parametrize("seed", range(40))
def test_everything_wanted_ends_and_nothing_is_left(seed: int) -> None:
    cluster = Cluster(seed)
    rng = cluster.rng
    keys: list[str] = []
    wanted: set[str] = set()
    for number in range(40):
        rows, numbers = [], {}
        for i in range(rng.randint(1, 6)):
            key = f"k{len(keys)}"
            keys.append(key)
            pool = [k for k in keys[-15:-1] if k in cluster.scheduler.tasks and k not in numbers]
            inner = rng.sample(range(i), min(i, rng.randint(0, 2)))
            outer = rng.sample(pool, min(len(pool), rng.randint(0, 2)))
            rows.append((key, (1, b"", None), inner or None, i, {"keys": outer} if outer else None))
            numbers[key] = i
        wants = [i for i in range(len(rows)) if rng.random() < 0.6] or [len(rows) - 1]
        wanted.update(rows[i][0] for i in wants)
        cluster.tell_scheduler(sev.GraphStarted("c", number, None, 0.0, 0, "g"))
        cluster.tell_scheduler(sev.GraphRowsAdded("c", number, rows, wants, True))
        cluster.tell_scheduler(sev.GraphCommitted("c", number, ()))
        for _ in range(rng.randint(0, 25)):
            cluster.step(failures=True)
        chance = rng.random()
        if chance < 0.15:
            cluster.kill_worker()
        elif chance < 0.3:
            cluster.add_worker()
        if rng.random() < 0.3 and wanted:
            key = rng.choice(sorted(wanted))
            wanted.discard(key)
            cluster.tell_scheduler(sev.KeysReleased("c", [key], "r"))
    # the failures stop: everything has to come to an end
    for _ in range(20_000):
        if not cluster.step(failures=False):
            break
    else:
        raise AssertionError(f"seed {seed} does not come to rest")
    for key in wanted:
        state = cluster.scheduler.tasks[key].state
        assert state in ("memory", "erred"), (key, state, cluster.scheduler.story(key))
        assert cluster.reported.get(key) == state
    for address, worker in cluster.workers.items():
        recorded = {ts.key for ts in cluster.scheduler.workers[address].has_what}
        assert recorded == worker.data, (
            f"{address}: the scheduler believes {recorded}, there is {worker.data}"
        )
    cluster.tell_scheduler(sev.KeysReleased("c", list(wanted), "r"))
    while cluster.step(failures=False):
        pass
    assert not cluster.scheduler.tasks
    for worker in cluster.workers.values():
        assert not worker.machine.tasks and not worker.data and not worker.machine.executing
