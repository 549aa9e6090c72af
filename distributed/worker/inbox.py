"""The only place where a message of the scheduler's stream becomes an event of the worker machine."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from distributed.core import Server
from distributed.worker.execution import FunctionTable
from distributed.worker.threads import TaskThreads
from distributed.worker_state_machine import WorkerMachine
from distributed.worker_state_machine import events as ev

Key = Any


class Inbox(Server):
    """Stream handlers of a worker. `deliver` gives an event to the machine and does what follows."""

    machine: WorkerMachine
    functions: FunctionTable
    threads: TaskThreads | None
    deliver: Callable[[ev.Event], None]
    deliver_all: Callable[[Collection[ev.Event]], None]

    def scheduler_stream_handlers(self) -> dict[str, Callable[..., Any]]:
        """op -> handler."""
        return {
            "compute-tasks": self.on_compute_tasks,
            "compute-task": self.on_compute_task,
            "functions": self.on_functions,
            "forget-functions": self.on_forget_functions,
            "free-keys": self.on_free_keys,
            "cancel-compute": self.on_cancel_compute,
            "remove-replicas": self.on_remove_replicas,
            "acquire-replicas": self.on_acquire_replicas,
            "refresh-who-has": self.on_refresh_who_has,
            "remove-worker": self.on_remove_worker,
            "steal-request": self.on_steal_request,
            "worker-status-change": self.on_worker_status_change,
            "close": self.on_close,
        }

    def on_functions(self, items: Collection[Any]) -> None:
        for id, data in items:
            self.functions.define(id, data)

    def on_forget_functions(self, ids: Collection[int]) -> None:
        for id in ids:
            self.functions.forget(id)

    def on_compute_tasks(self, rows: Collection[Any], stimulus_id: str) -> None:
        make = ev.ComputeTask
        events = []
        for key, run_id, priority, spec, deps, extra in rows:
            if extra is None:
                events.append(make(key, run_id, priority, spec, deps or (), None, False, None, stimulus_id))
            else:
                events.append(
                    make(
                        key,
                        run_id,
                        priority,
                        spec,
                        deps or (),
                        extra.get("resource_restrictions"),
                        extra.get("actor", False),
                        extra.get("annotations"),
                        stimulus_id,
                    )
                )
        self.deliver_all(events)

    def on_compute_task(
        self,
        key: Key,
        run_id: int,
        priority: tuple[float, ...],
        who_has: dict[Key, Collection[str]],
        nbytes: dict[Key, int],
        run_spec: Any,
        resource_restrictions: dict[str, float] | None,
        actor: bool,
        annotations: dict[str, Any],
        stimulus_id: str,
        span_id: str | None = None,
    ) -> None:
        deps = [(dep, nbytes.get(dep, -1), holders) for dep, holders in who_has.items()]
        self.deliver(
            ev.ComputeTask(
                key,
                run_id,
                tuple(priority),
                run_spec,
                deps,
                resource_restrictions,
                actor,
                annotations,
                stimulus_id,
            )
        )

    def withdraw(self, keys: Collection[Key]) -> list[Key]:
        """Take back what no thread has started."""
        if self.threads is None:
            return []
        withdraw = self.threads.withdraw
        return [key for key in keys if withdraw(key)]

    def on_free_keys(self, keys: Collection[Key], stimulus_id: str) -> None:
        executing = self.machine.executing
        withdrawn = self.withdraw(keys) if executing else ()
        self.deliver(ev.FreeKeys(keys, withdrawn, stimulus_id))

    def on_cancel_compute(self, key: Key, stimulus_id: str) -> None:
        self.on_free_keys((key,), stimulus_id)

    def on_remove_replicas(self, keys: Collection[Key], stimulus_id: str) -> None:
        self.deliver(ev.RemoveReplicas(keys, stimulus_id))

    def on_acquire_replicas(
        self, who_has: dict[Key, Collection[str]], nbytes: dict[Key, int], stimulus_id: str
    ) -> None:
        self.deliver(ev.AcquireReplicas(who_has, nbytes, stimulus_id))

    def on_refresh_who_has(self, who_has: dict[Key, Collection[str]], stimulus_id: str) -> None:
        self.deliver(ev.RefreshWhoHas(who_has, stimulus_id))

    def on_remove_worker(self, worker: str, stimulus_id: str) -> None:
        self.rpc.remove(worker)
        self.deliver(ev.PeerRemoved(worker, stimulus_id))

    def on_steal_request(self, key: Key, stimulus_id: str) -> None:
        self.deliver(ev.StealRequested(key, bool(self.withdraw((key,))), stimulus_id))

    def on_worker_status_change(self, status: str, stimulus_id: str) -> None:
        raise NotImplementedError

    def on_close(
        self, reason: str = "", timeout: float | None = None, executor_wait: bool = True, nanny: bool = True
    ) -> None:
        raise NotImplementedError
