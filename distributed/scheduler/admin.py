"""Administrative requests: broadcast, running functions, restarting and retiring workers, plugins, metadata, logs."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Collection
from typing import Any

import dask.config
from dask.typing import no_default
from dask.utils import parse_timedelta

from distributed.comm import get_address_host
from distributed.core import Status, maybe_await
from distributed.plugins import install_upload
from distributed.protocol import Serialize, pickle
from distributed.requests import LogBuffer, run_user_function
from distributed.scheduler.data import DataHandlers
from distributed.scheduler.events import EventBus
from distributed.scheduler_state_machine import WorkerState
from distributed.scheduler_state_machine import events as ev
from distributed.scheduler_state_machine.scaling import wanted_workers
from distributed.versions import get_versions

logger = logging.getLogger("distributed.scheduler")


class AdminHandlers(DataHandlers):
    """Handlers of administrative requests."""

    bus: EventBus
    log_buffer: LogBuffer
    task_metadata: dict[Any, Any]
    worker_plugins: dict[str, bytes]
    nanny_plugins: dict[str, bytes]
    plugins: dict[str, Any]
    _upload_directory: tempfile.TemporaryDirectory[str] | None = None

    def admin_handlers(self) -> dict[str, Any]:
        """op -> handler."""
        return {
            "broadcast": self.broadcast,
            "proxy": self.proxy,
            "run_function": self.run_function,
            "restart": self.restart,
            "restart_workers": self.restart_workers,
            "retire_workers": self.retire_workers,
            "workers_to_close": self.workers_to_close,
            "adaptive_target": self.adaptive_target,
            "versions": self.versions,
            "get_metadata": self.get_metadata,
            "set_metadata": self.set_metadata,
            "log_event": self.log_event,
            "events": self.get_events,
            "get_logs": self.get_logs,
            "logs": self.get_logs,
            "worker_logs": self.get_worker_logs,
            "call_stack": self.get_call_stack,
            "get_story": self.get_story,
            "set_restrictions": self.set_restrictions,
            "set_resources": self.set_resources,
            "register_scheduler_plugin": self.register_scheduler_plugin,
            "unregister_scheduler_plugin": self.unregister_scheduler_plugin,
            "register_worker_plugin": self.register_worker_plugin,
            "unregister_worker_plugin": self.unregister_worker_plugin,
            "register_nanny_plugin": self.register_nanny_plugin,
            "unregister_nanny_plugin": self.unregister_nanny_plugin,
        }

    # --- reaching workers ----------------------------------------------------------------------------------

    async def broadcast(
        self,
        *,
        msg: dict[str, Any],
        workers: Any = None,
        hosts: Collection[str] | None = None,
        nanny: bool = False,
        serializers: Any = None,
        on_error: str = "raise",
    ) -> dict[str, Any]:
        """Send a request to workers (or their nannies) and collect the replies by worker address.

        `on_error`: raise, return (the exception), return_pickle, or ignore (leave the worker out).
        """
        if on_error not in ("raise", "return", "return_pickle", "ignore"):
            raise ValueError(f"on_error must be raise, return, return_pickle or ignore; got {on_error!r}")
        if workers is None and hosts is not None:
            addresses = [a for a in self.machine.workers if get_address_host(a) in hosts]
        else:
            addresses = self.worker_addresses(workers)
            if hosts is not None:
                addresses += [
                    a for a in self.machine.workers if get_address_host(a) in hosts and a not in addresses
                ]
        targets: list[tuple[str, str]] = []
        for address in addresses:
            target = self.machine.workers[address].nanny if nanny else address
            if target is None:
                raise ValueError(f"worker {address} has no nanny")
            targets.append((address, target))

        async def ask(target: str) -> Any:
            request = dict(msg)
            op = request.pop("op")
            return await getattr(self.rpc(target), op)(serializers=serializers, **request)

        replies = await asyncio.gather(*(ask(target) for _, target in targets), return_exceptions=True)
        results: dict[str, Any] = {}
        for (address, _), reply in zip(targets, replies, strict=True):
            if isinstance(reply, BaseException):
                if on_error == "raise":
                    raise reply
                if on_error == "ignore":
                    continue
                reply = reply if on_error == "return" else pickle.dumps(reply)
            results[address] = reply
        return results

    async def proxy(self, msg: dict[str, Any], worker: str, serializers: Any = None) -> Any:
        """Pass a request on to one worker."""
        replies = await self.broadcast(msg=msg, workers=[worker], serializers=serializers)
        return replies[worker]

    async def run_function(
        self, function: bytes, args: Any = (), kwargs: Any = None, wait: bool = True
    ) -> Any:
        """Run a function in this process."""
        return await run_user_function(self, "dask_scheduler", function, args, kwargs, wait)

    # --- restarting and retiring ---------------------------------------------------------------------------

    async def remove_worker(
        self, address: str, *, stimulus_id: str, expected: bool = False, close: bool = True
    ) -> str:
        """Forget a worker and, if `close`, tell it to stop."""
        raise NotImplementedError

    async def restart(
        self,
        timeout: float = 30,
        wait_for_workers: bool = True,
        stimulus_id: str = "restart",
        client: str | None = None,
    ) -> None:
        """Forget all tasks and restart all workers. TimeoutError if they are not back in time."""
        logger.info("Restarting workers and releasing all keys (%s)", stimulus_id)
        self.deliver(ev.Restarted(stimulus_id))
        for plugin in list(self.plugins.values()):
            plugin.restart(self)
        await self.restart_workers(
            timeout=timeout, wait_for_workers=wait_for_workers, stimulus_id=stimulus_id
        )

    async def restart_workers(
        self,
        workers: Any = None,
        timeout: float = 30,
        wait_for_workers: bool = True,
        on_error: str = "raise",
        stimulus_id: str = "restart-workers",
        client: str | None = None,
    ) -> dict[str, str]:
        """Restart workers through their nannies; those without one are removed."""
        machine = self.machine
        addresses = self.worker_addresses(workers)
        with_nanny = {a: machine.workers[a].nanny for a in addresses if machine.workers[a].nanny}
        names = {machine.workers[a].name for a in with_nanny}
        results: dict[str, str] = {}
        for address in addresses:
            if address not in with_nanny:
                await self.remove_worker(address, stimulus_id=stimulus_id, expected=True)
                results[address] = "removed"
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        old = set(addresses)

        async def kill(address: str, nanny: str) -> None:
            try:
                await asyncio.wait_for(
                    self.rpc(nanny).kill(timeout=timeout * 0.8, reason=stimulus_id), timeout
                )
                results[address] = "OK"
            except (TimeoutError, OSError) as exc:
                logger.error("The nanny %s of worker %s did not restart it: %s", nanny, address, exc)
                results[address] = "timed out"
            if address in machine.workers:
                await self.remove_worker(address, stimulus_id=stimulus_id, expected=True, close=False)

        await asyncio.gather(*(kill(address, nanny) for address, nanny in with_nanny.items() if nanny))
        failed = [address for address, result in results.items() if result == "timed out"]
        if failed and on_error == "raise":
            raise TimeoutError(
                f"{len(failed)}/{len(with_nanny)} nanny worker(s) did not shut down within {timeout}s: {failed}"
            )
        if wait_for_workers:
            while True:
                back = {
                    ws.name
                    for ws in machine.workers.values()
                    if ws.address not in old and ws.status == "running"
                }
                if names <= back:
                    break
                if loop.time() > deadline:
                    raise TimeoutError(
                        f"Waited for {len(names)} worker(s) to reconnect after restarting but, after {timeout}s, only {len(names & back)} have returned."
                    )
                await asyncio.sleep(0.05)
        return results

    async def retire_workers(
        self,
        workers: Any = None,
        *,
        names: Collection[Any] | None = None,
        close_workers: bool = False,
        remove: bool = True,
        stimulus_id: str | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Move the data of workers elsewhere, then remove them. Returns identities of those retired.

        A worker whose data has nowhere to go stays and is left out of the reply.
        """
        stimulus_id = stimulus_id or "retire-workers"
        machine = self.machine
        if names is not None:
            wanted = {str(name) for name in names}
            addresses = [ws.address for ws in machine.workers.values() if str(ws.name) in wanted]
        elif workers is not None:
            addresses = [a for a in workers if a in machine.workers]
        else:
            addresses = self.workers_to_close(**kwargs)
        retired: dict[str, Any] = {}
        leaving = [machine.workers[a] for a in addresses if a in machine.workers]
        for ws in leaving:
            self.send_worker_status(ws, Status.closing_gracefully.name, stimulus_id)
        for ws in leaving:
            identity = self.worker_identity(ws)
            if machine.workers.get(ws.address) is not ws:
                continue
            if not await self._move_away(ws, set(leaving)):
                logger.warning(
                    "Worker %s keeps unique data for which there is no place; it is not retired", ws.address
                )
                self.send_worker_status(ws, Status.running.name, stimulus_id)
                continue
            retired[ws.address] = identity
            if remove:
                await self.remove_worker(
                    ws.address, stimulus_id=stimulus_id, expected=True, close=close_workers
                )
            elif close_workers:
                self.close_worker(ws.address)
        return retired

    async def _move_away(self, ws: WorkerState, leaving: set[WorkerState]) -> bool:
        """Copy what only this worker has; whether nothing is left that would be lost."""
        for _ in range(3):
            unique = [ts for ts in ws.has_what if len(ts.who_has) == 1 and not ts.actor]
            if not unique:
                return True
            recipients = sorted((w for w in self.machine.running if w not in leaving), key=lambda w: w.nbytes)
            if not recipients:
                return False
            shares = [unique[i :: len(recipients)] for i in range(len(recipients))]
            await asyncio.gather(
                *(self.copy_to(to, share) for to, share in zip(recipients, shares, strict=True) if share),
                return_exceptions=True,
            )
        return not any(len(ts.who_has) == 1 and not ts.actor for ts in ws.has_what)

    def send_worker_status(self, ws: WorkerState, status: str, stimulus_id: str) -> None:
        """Give a worker a status, here and there."""
        raise NotImplementedError

    def worker_identity(self, ws: WorkerState) -> dict[str, Any]:
        """What clients see of a worker."""
        raise NotImplementedError

    def close_worker(self, worker: str) -> None:
        """Tell a worker to stop."""
        raise NotImplementedError

    def workers_to_close(
        self,
        memory_ratio: float | None = None,
        n: int | None = None,
        key: Any = None,
        minimum: int | None = None,
        target: int | None = None,
        attribute: str = "address",
    ) -> list[Any]:
        """Workers that can go: `n` of them, or all but `target`; those with least to do and least data first.

        `key`: a function of `WorkerState`, or its pickle; workers for which it gives the same go together, or stay.
        """
        workers = list(self.machine.workers.values())
        if n is None:
            n = (
                max(len(workers) - target, 0)
                if target is not None
                else sum(not ws.processing for ws in workers)
            )
        if minimum is not None:
            n = min(n, max(len(workers) - minimum, 0))
        if isinstance(key, (bytes, bytearray, memoryview)):
            key = pickle.loads(key)
        groups: dict[Any, list[WorkerState]] = {}
        for ws in workers:
            groups.setdefault(ws.address if key is None else key(ws), []).append(ws)
        chosen: list[WorkerState] = []
        for group in sorted(
            groups.values(),
            key=lambda group: (sum(len(ws.processing) for ws in group), sum(ws.nbytes for ws in group)),
        ):
            if len(chosen) + len(group) <= n:
                chosen.extend(group)
        return [getattr(ws, attribute) for ws in chosen]

    def adaptive_target(self, target_duration: Any = None) -> int:
        """How many workers the present tasks could use, if they are to be done in `target_duration`; never more than there are tasks for."""
        if target_duration is None:
            target_duration = dask.config.get("distributed.adaptive.target-duration")
        return wanted_workers(self.machine, parse_timedelta(target_duration, "s"))

    # --- plugins -------------------------------------------------------------------------------------------

    async def add_plugin(self, plugin: Any, *, idempotent: bool = False, name: str | None = None) -> None:
        """Add a scheduler plugin that exists already, for example from a preload."""
        name = name or getattr(plugin, "name", None) or f"{type(plugin).__name__}-{id(plugin)}"
        if name in self.plugins:
            if idempotent or getattr(plugin, "idempotent", False):
                return
            logger.debug("Scheduler plugin %s is replaced", name)
        self.plugins[name] = plugin
        self.observe_plugins()

    def observe_plugins(self) -> None:
        """Let the machine call plugins that want transitions."""
        raise NotImplementedError

    async def remove_plugin(self, name: str) -> None:
        """Remove a scheduler plugin. ValueError if there is none of that name."""
        if name not in self.plugins:
            raise ValueError(f"Could not find plugin {name!r} among the current scheduler plugins")
        plugin = self.plugins.pop(name)
        self.observe_plugins()
        await maybe_await(plugin.close())

    async def register_scheduler_plugin(
        self, plugin: Any, name: str | None = None, idempotent: bool | None = None
    ) -> None:
        if isinstance(plugin, bytes):
            plugin = pickle.loads(plugin)
        name = name or getattr(plugin, "name", None) or type(plugin).__name__
        if name in self.plugins and (
            idempotent or (idempotent is None and getattr(plugin, "idempotent", False))
        ):
            return
        if hasattr(plugin, "start"):
            await maybe_await(plugin.start(self))
        await self.add_plugin(plugin, name=name)

    async def unregister_scheduler_plugin(self, name: str) -> None:
        await self.remove_plugin(name)

    async def register_worker_plugin(
        self, comm: Any = None, plugin: Any = None, name: str | None = None, idempotent: bool | None = None
    ) -> dict[str, Any]:
        """Give a plugin to all workers, present and future."""
        name = name or "worker-plugin"
        if name in self.worker_plugins and idempotent:
            return {}
        self.worker_plugins[name] = plugin
        return await self.broadcast(msg={"op": "plugin-add", "plugin": plugin, "name": name})

    async def unregister_worker_plugin(self, name: str) -> dict[str, Any]:
        if name not in self.worker_plugins:
            raise ValueError(f"The worker plugin {name!r} does not exist")
        del self.worker_plugins[name]
        return await self.broadcast(msg={"op": "plugin-remove", "name": name})

    async def register_nanny_plugin(
        self, comm: Any = None, plugin: Any = None, name: str | None = None, idempotent: bool | None = None
    ) -> dict[str, Any]:
        name = name or "nanny-plugin"
        if name in self.nanny_plugins and idempotent:
            return {}
        self.nanny_plugins[name] = plugin
        with_nanny = [ws.address for ws in self.machine.workers.values() if ws.nanny]
        return await self.broadcast(
            msg={"op": "plugin_add", "plugin": plugin, "name": name}, workers=with_nanny, nanny=True
        )

    async def unregister_nanny_plugin(self, name: str) -> dict[str, Any]:
        if name not in self.nanny_plugins:
            raise ValueError(f"The nanny plugin {name!r} does not exist")
        del self.nanny_plugins[name]
        with_nanny = [ws.address for ws in self.machine.workers.values() if ws.nanny]
        return await self.broadcast(msg={"op": "plugin_remove", "name": name}, workers=with_nanny, nanny=True)

    async def upload_file(self, filename: str, data: bytes, load: bool = True) -> dict[str, Any]:
        """Store a file where modules are imported from, and import it."""
        if self._upload_directory is None:
            self._upload_directory = tempfile.TemporaryDirectory(prefix="dask-scheduler-")
        install_upload(self._upload_directory.name, filename, data, load)
        return {"status": "OK", "nbytes": len(data)}

    # --- facts ---------------------------------------------------------------------------------------------

    def versions(self, packages: Collection[str] | None = None) -> dict[str, Any]:
        return get_versions(packages)

    def get_metadata(self, keys: Collection[Any], default: Any = no_default) -> Any:
        """What is filed under a path of keys. KeyError names the missing one."""
        node: Any = self.task_metadata
        for key in keys:
            try:
                node = node[key]
            except (KeyError, TypeError):
                if default is no_default:
                    raise KeyError(key) from None
                return default.data if isinstance(default, Serialize) else default
        return node

    def set_metadata(self, keys: Any, value: Any = None) -> None:
        """File something under a path of keys."""
        if not isinstance(keys, (list, tuple)):
            keys = (keys,)
        node = self.task_metadata
        for key in keys[:-1]:
            if not isinstance(node.get(key), dict):
                node[key] = {}
            node = node[key]
        node[keys[-1]] = value

    def log_event(self, topic: Any, msg: Any) -> None:
        self.bus.publish(topic, msg)
        for plugin in self.plugins.values():
            if hasattr(plugin, "log_event"):
                plugin.log_event(topic, msg)

    def get_events(self, topic: str | None = None) -> Any:
        return self.bus.get(topic)

    def get_logs(self, start: float = 0, n: int | None = None, timestamps: bool = False) -> list[Any]:
        return self.log_buffer.latest(start, n, timestamps)

    async def get_worker_logs(
        self, n: int | None = None, workers: Any = None, nanny: bool = False
    ) -> dict[str, Any]:
        return await self.broadcast(msg={"op": "get_logs", "n": n}, workers=workers, nanny=nanny)

    async def get_call_stack(self, keys: Collection[Any] | None = None) -> dict[str, Any]:
        """Stacks of running tasks, by worker and key."""
        machine = self.machine
        if keys is None:
            wanted: dict[str, Any] = dict.fromkeys(
                (a for a, ws in machine.workers.items() if ws.processing), None
            )
        else:
            wanted = {}
            stack = list(keys)
            seen = set()
            while stack:
                key = stack.pop()
                ts = machine.tasks.get(key)
                if ts is None or key in seen:
                    continue
                seen.add(key)
                if ts.processing_on is not None:
                    wanted.setdefault(ts.processing_on.address, []).append(key)
                elif ts.state == "waiting":
                    stack.extend(dts.key for dts in ts.dependencies)
        replies = await asyncio.gather(*(self.rpc(a).call_stack(keys=some) for a, some in wanted.items()))
        return {a: reply for a, reply in zip(wanted, replies, strict=True) if reply}

    def get_story(self, keys_or_stimuli: Collection[Any]) -> list[Any]:
        return self.machine.story(*keys_or_stimuli)

    def set_restrictions(self, worker: dict[Any, Any]) -> None:
        restrictions = {}
        for key, workers in worker.items():
            restrictions[key] = (
                None if workers is None else {workers} if isinstance(workers, str) else set(workers)
            )
        self.deliver(ev.RestrictionsSet(restrictions))

    def set_resources(self, worker: str, resources: dict[str, float]) -> str:
        if worker not in self.machine.workers:
            raise ValueError(f"unknown worker {worker!r}")
        self.deliver(ev.WorkerResourcesSet(worker, resources, "set-resources"))
        return "OK"
