"""Requests that a worker answers, and the transfers that it makes: serving and fetching data, running functions, plugins, facts."""

from __future__ import annotations

import logging
import time as time_module
from collections.abc import Collection
from typing import Any

import dask.config

from distributed.comm import Comm, get_address_host
from distributed.core import ConnectionPool, Status
from distributed.plugins import PluginHolder, install_upload, watches_transitions
from distributed.protocol import Serialized, merge_and_deserialize, to_serialize
from distributed.requests import LogBuffer, run_user_function
from distributed.sizeof import safe_sizeof
from distributed.spill import SpillBuffer
from distributed.utils_comm import gather_from_workers, get_data_from_worker
from distributed.versions import get_versions
from distributed.worker.execution import failed, frames_of_thread
from distributed.worker.inbox import Inbox
from distributed.worker_state_machine import events as ev

logger = logging.getLogger("distributed.worker")

Key = Any


class RequestHandlers(PluginHolder, Inbox):
    """Handlers of requests, and fetching from peers."""

    data: Any
    _spill: SpillBuffer | None
    plugin_kind = "worker"
    local_directory: str
    scheduler_address: str
    _peer_pool: ConnectionPool | None = None
    outgoing_now = 0
    outgoing_count = 0
    incoming_count = 0
    log_buffer: LogBuffer | None = None

    def request_handlers(self) -> dict[str, Any]:
        """op -> handler."""
        return {
            "get_data": self.get_data,
            "update_data": self.update_data,
            "gather": self.gather,
            "free_keys": self.on_free_keys,
            "run": self.run,
            "run_coroutine": self.run,
            "keys": self.keys,
            "ping": self.ping,
            "upload_file": self.upload_file,
            "call_stack": self.get_call_stack,
            "get_logs": self.get_logs,
            "versions": self.versions,
            "plugin-add": self.plugin_add,
            "plugin-remove": self.plugin_remove,
            "get_story": self.get_story,
            "terminate": self.terminate,
        }

    # --- serving data --------------------------------------------------------------------------------------

    async def get_data(
        self, comm: Comm, keys: Collection[Key], who: str | None = None, serializers: Any = None
    ) -> Status:
        """Serve values to a peer, or tell it to come back later."""
        limit = int(dask.config.get("distributed.worker.connections.incoming"))
        if self.status == Status.paused:
            limit = 1
        elif who is not None and get_address_host(who) == get_address_host(self.address):
            # what stays on this machine costs less
            limit *= 2
        if who is not None and self.outgoing_now >= limit:
            await comm.write({"status": "busy"})
            return Status.dont_reply
        self.outgoing_now += 1
        self.outgoing_count += 1
        try:
            values = await self._values(keys)
            found = {key: to_serialize(value) for key, value in values.items()}
            del values
            await comm.write({"status": "OK", "data": found}, serializers=serializers)
            # values are not kept alive while the peer unpickles them
            del found
            reply = await comm.read()
            if reply != "OK":
                raise ValueError(f"expected the acknowledgement 'OK' from {comm.peer_address}, got {reply!r}")
        finally:
            self.outgoing_now -= 1
        return Status.dont_reply

    async def _values(self, keys: Collection[Key]) -> dict[Key, Any]:
        """Those of the values that are here; from disk if need be."""
        if self._spill is not None:
            return await self._spill.get_many(keys)
        data = self.data
        return {key: data[key] for key in keys if key in data}

    def _store(self, key: Key, value: Any, nbytes: int) -> None:
        if self._spill is None:
            self.data[key] = value
        else:
            self._spill.store(key, value, nbytes)

    def _drop_values(self, keys: Collection[Key]) -> None:
        if self._spill is None:
            data = self.data
            for key in keys:
                data.pop(key, None)
        else:
            drop = self._spill.drop
            for key in keys:
                drop(key)

    def update_data(self, data: dict[Key, Any], stimulus_id: str | None = None) -> dict[str, Any]:
        """Store values that somebody sends; whoever sends them tells the scheduler."""
        nbytes = {}
        for key, value in data.items():
            nbytes[key] = safe_sizeof(value)
            self._store(key, value, nbytes[key])
        self.deliver(ev.DataStored(nbytes))
        return {"status": "OK", "nbytes": nbytes}

    async def gather(self, who_has: dict[Key, Collection[str]]) -> dict[str, Any]:
        """Fetch values from peers and store them; the caller tells the scheduler."""
        wanted = {
            key: [w for w in workers if w != self.address]
            for key, workers in who_has.items()
            if key not in self.data
        }
        gathered = await gather_from_workers(wanted, self.peer_pool, who=self.address)
        missing = list(gathered.missing)
        values = {}
        for key, payload in gathered.data.items():
            try:
                values[key] = self._decode(payload)
            except Exception:  # user code in unpickling
                logger.debug("Cannot unpickle %r", key, exc_info=True)
                missing.append(key)
        if values:
            self.update_data(values)
        return {"status": "partial-fail", "keys": missing} if missing else {"status": "OK"}

    # --- fetching data -------------------------------------------------------------------------------------

    @property
    def peer_pool(self) -> ConnectionPool:
        """Connections to peers. Values arrive serialised: one that cannot be unpickled must not lose the others."""
        if self._peer_pool is None:
            self._peer_pool = ConnectionPool(
                deserialize=False, connection_args=self.connection_args, timeout=self.timeout
            )
        return self._peer_pool

    @staticmethod
    def _decode(payload: Any) -> Any:
        if isinstance(payload, Serialized):
            return merge_and_deserialize(payload.header, payload.frames)
        return payload.data

    async def fetch(self, worker: str, keys: Collection[Key]) -> ev.GatherDone:
        """Fetch values from one peer and store them; the outcome as an event."""
        self.incoming_count += 1
        try:
            reply = await get_data_from_worker(self.peer_pool, worker, keys, who=self.address)
        except OSError as exc:
            logger.debug("Cannot fetch data from %s: %s", worker, exc)
            return ev.GatherDone(worker, keys, "failed", {}, {})
        if reply["status"] == "busy":
            return ev.GatherDone(worker, keys, "busy", {}, {})
        nbytes: dict[Key, int] = {}
        undecodable: dict[Key, ev.ExecutionFailed] = {}
        for key, payload in reply["data"].items():
            try:
                value = self._decode(payload)
            except Exception as exc:  # user code in unpickling
                now = time_module.time()
                undecodable[key] = failed(key, -1, exc, now, now)
                continue
            nbytes[key] = safe_sizeof(value)
            self._store(key, value, nbytes[key])
        return ev.GatherDone(worker, keys, "ok", nbytes, undecodable)

    # --- running functions ---------------------------------------------------------------------------------

    async def run(self, function: bytes, args: Any = (), kwargs: Any = None, wait: bool = True) -> Any:
        """Run a function here, on the event loop."""
        return await run_user_function(self, "dask_worker", function, args, kwargs, wait)

    async def upload_file(self, filename: str, data: Any, load: bool = True) -> dict[str, Any]:
        """Store a file where modules are imported from, and import it."""
        content = data.encode() if isinstance(data, str) else bytes(data)
        install_upload(self.local_directory, filename, content, load)
        return {"status": "OK", "nbytes": len(content)}

    def _plugins_changed(self) -> None:
        def observer(transition: Any) -> Any:
            def observe(*args: Any) -> None:
                try:
                    transition(*args)
                except Exception:  # a plugin's error must not stop the worker
                    logger.exception("A worker plugin failed in transition")

            return observe

        self.machine.observers[:] = [
            observer(plugin.transition) for plugin in self.plugins.values() if watches_transitions(plugin)
        ]

    # --- facts ---------------------------------------------------------------------------------------------

    def keys(self) -> list[Key]:
        return list(self.data)

    def ping(self) -> bytes:
        return b"pong"

    def versions(self, packages: Collection[str] | None = None) -> dict[str, Any]:
        return get_versions(packages)

    def get_logs(self, start: float = 0, n: int | None = None, timestamps: bool = False) -> list[Any]:
        return self.log_buffer.latest(start, n, timestamps) if self.log_buffer is not None else []

    def get_call_stack(self, keys: Collection[Key] | None = None) -> dict[Key, list[str]]:
        """Stacks of running tasks."""
        active = self.threads.active if self.threads is not None else {}
        return {
            key: frames_of_thread(ident)
            for key, (ident, _) in list(active.items())
            if keys is None or key in keys
        }

    def get_story(self, keys_or_stimuli: Collection[Any]) -> list[Any]:
        return self.machine.story(*keys_or_stimuli)

    async def terminate(
        self,
        reason: str = "worker-terminate",
        timeout: float | None = None,
        executor_wait: bool = True,
        nanny: bool = True,
    ) -> str:
        """Stop; answers first."""
        self.on_close(reason=reason, timeout=timeout, executor_wait=executor_wait, nanny=nanny)
        return "OK"
