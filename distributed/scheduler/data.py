"""Requests about data: gather, scatter, who has what. Facts are gathered first, then one event tells the machine."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection
from typing import Any

from distributed.core import Status
from distributed.scheduler.inbox import Inbox
from distributed.scheduler_state_machine import TaskState, WorkerState
from distributed.scheduler_state_machine import events as ev
from distributed.utils_comm import gather_from_workers, scatter_to_workers

Key = Any


class DataHandlers(Inbox):
    """Handlers of requests about data."""

    _scatter_counter = 0

    def data_handlers(self) -> dict[str, Any]:
        """op -> handler."""
        return {
            "gather": self.gather,
            "scatter": self.scatter,
            "update_data": self.update_data,
            "who_has": self.get_who_has,
            "has_what": self.get_has_what,
            "ncores": self.get_ncores,
            "ncores_running": self.get_ncores_running,
            "nbytes": self.get_nbytes,
            "processing": self.get_processing,
            "retry": self.retry,
            "add_keys": self.add_keys,
            "replicate": self.replicate,
            "get_task_status": self.get_task_status,
            "get_task_prefix_states": self.get_task_prefix_states,
        }

    def worker_addresses(self, workers: Any) -> list[str]:
        """Addresses of the given workers: None for all, addresses or names. ValueError names an unknown one."""
        machine = self.machine
        if workers is None:
            return list(machine.workers)
        if isinstance(workers, (str, int)):
            workers = [workers]
        addresses = []
        for worker in workers:
            address = machine.aliases.get(worker, worker)
            if address not in machine.workers and isinstance(address, str) and "://" not in address:
                address = "tcp://" + address
            if address not in machine.workers:
                raise ValueError(f"unknown worker {worker!r}; known: {list(machine.workers)}")
            addresses.append(address)
        return addresses

    async def gather(self, keys: Collection[Key], serializers: Any = None) -> dict[str, Any]:
        """Collect results from workers. Values stay as they are serialised."""
        tasks = self.machine.tasks
        who_has: dict[Key, list[str]] = {}
        missing: list[Key] = []
        for key in keys:
            ts = tasks.get(key)
            if ts is not None and ts.who_has:
                who_has[key] = [ws.address for ws in ts.who_has]
            else:
                missing.append(key)
        gathered = await gather_from_workers(who_has, self.rpc, serializers=serializers)
        missing.extend(gathered.missing)
        for key in gathered.missing:
            for address in who_has[key]:
                if address not in gathered.failed_workers:
                    # it answered and does not have the key: what we believed is wrong
                    self.deliver(ev.ReplicaReleased(address, key, "gather-missing"))
        if missing:
            return {"status": "error", "keys": missing}
        return {"status": "OK", "data": gathered.data}

    async def scatter(
        self,
        data: dict[Key, Any],
        workers: Any,
        client: str,
        broadcast: bool | int = False,
        timeout: float = 2,
    ) -> list[Key]:
        """Put data on workers. TimeoutError if there is no running worker in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            wanted = set(self.worker_addresses(workers)) if workers is not None else None
            addresses = [ws.address for ws in self.machine.running if wanted is None or ws.address in wanted]
            if addresses:
                break
            if loop.time() > deadline:
                raise TimeoutError(f"No valid workers found within {timeout} s")
            await asyncio.sleep(0.02)
        copies = len(addresses) if broadcast is True else min(max(int(broadcast), 1), len(addresses))
        who_has: dict[Key, list[str]] = defaultdict(list)
        nbytes: dict[Key, int] = {}
        for copy in range(copies):
            # the following copy goes to the following worker
            holders, sizes = await scatter_to_workers(addresses, data, self.rpc, self._scatter_counter + copy)
            for key, some in holders.items():
                who_has[key].extend(some)
            nbytes.update(sizes)
        self._scatter_counter += len(data)
        self.deliver(ev.DataAdded(client, dict(who_has), nbytes, "scatter"))
        return list(data)

    def update_data(
        self, who_has: dict[Key, Collection[str]], nbytes: dict[Key, int], client: str | None = None
    ) -> None:
        """Data has been put on workers by somebody else."""
        self.deliver(ev.DataAdded(client, who_has, nbytes, "update-data"))

    def get_who_has(self, keys: Collection[Key] | None = None) -> dict[Key, list[str]]:
        tasks = self.machine.tasks
        if keys is None:
            return {key: [ws.address for ws in ts.who_has] for key, ts in tasks.items()}
        return {key: [ws.address for ws in tasks[key].who_has] if key in tasks else [] for key in keys}

    def get_has_what(self, workers: Any = None) -> dict[str, list[Key]]:
        return {
            a: [ts.key for ts in self.machine.workers[a].has_what] for a in self.worker_addresses(workers)
        }

    def get_ncores(self, workers: Any = None) -> dict[str, int]:
        return {a: self.machine.workers[a].nthreads for a in self.worker_addresses(workers)}

    def get_ncores_running(self, workers: Any = None) -> dict[str, int]:
        ncores = self.get_ncores(workers)
        return {a: n for a, n in ncores.items() if self.machine.workers[a].status == Status.running.name}

    def get_nbytes(self, keys: Collection[Key] | None = None, summary: bool = True) -> dict[Any, int]:
        tasks = self.machine.tasks
        if keys is not None:
            sizes: dict[Any, int] = {key: tasks[key].nbytes for key in keys}
        else:
            sizes = {key: ts.nbytes for key, ts in tasks.items() if ts.nbytes >= 0}
        if summary:
            total: dict[Any, int] = defaultdict(int)
            for key, size in sizes.items():
                total[tasks[key].prefix.name] += size
            return dict(total)
        return sizes

    def get_processing(self, workers: Any = None) -> dict[str, list[Key]]:
        return {
            a: [ts.key for ts in self.machine.workers[a].processing] for a in self.worker_addresses(workers)
        }

    def retry(self, keys: Collection[Key], client: str | None = None) -> list[Key]:
        """Run erred keys again; returns every key visited. KeyError names an unknown one."""
        visited = self.machine.erred_ancestors(keys)
        self.deliver(ev.KeysRetried(keys, "retry"))
        return visited

    def add_keys(self, worker: str, keys: Collection[Key] = (), stimulus_id: str | None = None) -> str:
        """A worker has acquired replicas."""
        if worker not in self.machine.workers:
            return "not found"
        self.deliver(ev.ReplicasAdded(worker, keys, stimulus_id or "add-keys"))
        return "OK"

    async def copy_to(self, recipient: WorkerState, tasks: Collection[TaskState]) -> list[Key]:
        """Have a worker fetch results from their holders; returns the keys that it could not get."""
        who_has = {ts.key: [ws.address for ws in ts.who_has] for ts in tasks}
        reply = await self.rpc(recipient.address).gather(who_has=who_has)
        failed = list(reply.get("keys", ())) if reply["status"] != "OK" else []
        got = [key for key in who_has if key not in set(failed)]
        self.deliver(ev.ReplicasAdded(recipient.address, got, "copy"))
        return failed

    async def replicate(
        self,
        keys: Collection[Key],
        n: int | None = None,
        workers: Any = None,
        branching_factor: int = 2,
        delete: bool = True,
    ) -> dict[str, Any] | None:
        """Have `n` copies of each key (default: one on each worker). None, or ``partial-fail`` with keys."""
        targets = [self.machine.workers[a] for a in self.worker_addresses(workers)]
        targets = [ws for ws in targets if ws in self.machine.running]
        if not targets:
            raise ValueError("There are no running workers to replicate to")
        copies = len(targets) if n is None else n
        if copies < 1:
            raise ValueError(f"Can not use replicate to delete data: n={n}")
        missing = [
            key for key in keys if key not in self.machine.tasks or not self.machine.tasks[key].who_has
        ]
        if missing:
            return {"status": "partial-fail", "keys": missing}
        plan: dict[WorkerState, list[TaskState]] = defaultdict(list)
        for key in keys:
            ts = self.machine.tasks[key]
            have = sum(ws in ts.who_has for ws in targets)
            for ws in sorted((w for w in targets if w not in ts.who_has), key=lambda w: w.nbytes):
                if have >= copies:
                    break
                plan[ws].append(ts)
                have += 1
        failed: list[Key] = []
        for result in await asyncio.gather(*(self.copy_to(ws, tasks) for ws, tasks in plan.items())):
            failed.extend(result)
        return {"status": "partial-fail", "keys": failed} if failed else None

    def get_task_status(self, keys: Collection[Key]) -> dict[Key, str | None]:
        tasks = self.machine.tasks
        return {key: tasks[key].state if key in tasks else None for key in keys}

    def get_task_prefix_states(self) -> dict[str, dict[str, int]]:
        wanted = ("memory", "erred", "released", "processing", "waiting", "queued", "no-worker")
        return {
            name: {state: n for state, n in prefix.states.items() if state in wanted}
            for name, prefix in self.machine.task_prefixes.items()
            if prefix.groups
        }
