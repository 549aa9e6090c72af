"""Requests to the scheduler that are little more than remote calls."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import warnings
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import msgpack
from dask.typing import no_default

from distributed.client.data import DataMethods
from distributed.client.waiting import futures_of
from distributed.core import Status, clean_exception
from distributed.exceptions import WorkerStartTimeoutError
from distributed.objects import HasWhat, SchedulerInfo, WhoHas
from distributed.plugins import NannyPlugin, SchedulerPlugin, SchedulerUploadFile, UploadFile, WorkerPlugin
from distributed.protocol import pickle
from distributed.settings import connect_timeout
from distributed.utils import parse_timedelta
from distributed.versions import VersionMismatchWarning, error_message, get_versions

Key = Any

_PLUGIN_OPS = (
    (SchedulerPlugin, "register_scheduler_plugin"),
    (WorkerPlugin, "register_worker_plugin"),
    (NannyPlugin, "register_nanny_plugin"),
)


class RequestMethods(DataMethods):
    """Administrative methods."""

    #: file with the scheduler's address: where it was read, or was written to
    scheduler_file: str | None = None

    # --- running functions ---------------------------------------------------------------------------------

    def run_on_scheduler(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a function in the scheduler's process; it gets the `Scheduler` if it takes ``dask_scheduler``. For debugging."""
        return self.sync(self._run_on_scheduler, function, *args, **kwargs)

    async def _run_on_scheduler(self, function: Any, *args: Any, wait: bool = True, **kwargs: Any) -> Any:
        response = await self.scheduler.run_function(
            function=pickle.dumps(function), args=pickle.dumps(args), kwargs=pickle.dumps(kwargs), wait=wait
        )
        return _result_of(response)

    def run(
        self,
        function: Any,
        *args: Any,
        workers: Any = None,
        wait: bool = True,
        nanny: bool = False,
        on_error: str = "raise",
        asynchronous: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run a function on all workers (or their nannies) at once, beside the tasks; results by worker address.

        The function gets the `Worker` if it takes ``dask_worker``. `on_error`: raise, return (the exception), ignore.
        """
        if not callable(function):
            raise TypeError(f"run needs a callable, got {function!r}")
        return self.sync(
            self._run,
            function,
            *args,
            workers=workers,
            wait=wait,
            nanny=nanny,
            on_error=on_error,
            asynchronous=asynchronous,
            **kwargs,
        )

    run_coroutine = run

    async def _run(
        self,
        function: Any,
        *args: Any,
        workers: Any = None,
        wait: bool = True,
        nanny: bool = False,
        on_error: str = "raise",
        **kwargs: Any,
    ) -> dict[str, Any]:
        if on_error not in ("raise", "return", "ignore"):
            raise ValueError(f"on_error must be 'raise', 'return', or 'ignore'; got {on_error!r}")
        if isinstance(workers, str):
            workers = [workers]
        responses = await self.scheduler.broadcast(
            msg={
                "op": "run",
                "function": pickle.dumps(function),
                "args": pickle.dumps(args),
                "kwargs": pickle.dumps(kwargs),
                "wait": wait,
            },
            workers=workers,
            nanny=nanny,
            on_error="return_pickle",
        )
        results = {}
        for worker, response in responses.items():
            try:
                if isinstance(response, bytes):
                    raise pickle.loads(response)
                results[worker] = _result_of(response)
            except Exception as exc:  # the function's own
                if on_error == "raise":
                    raise
                if on_error == "return":
                    results[worker] = exc
        return results

    # --- facts ---------------------------------------------------------------------------------------------

    def who_has(self, futures: Any = None, **kwargs: Any) -> Any:
        """Key -> workers that hold it."""

        async def call() -> WhoHas:
            keys = None if futures is None else [f.key for f in futures_of(futures)]
            if futures is not None:
                await self._wait_for_states([f._bound() for f in futures_of(futures)])
            return WhoHas(await self.scheduler.who_has(keys=keys))

        return self.sync(call, **kwargs)

    def has_what(self, workers: Any = None, **kwargs: Any) -> Any:
        """Worker -> keys that it holds."""

        async def call() -> HasWhat:
            return HasWhat(await self.scheduler.has_what(workers=_listed(workers)))

        return self.sync(call, **kwargs)

    def nthreads(self, workers: Any = None) -> Any:
        """Worker -> threads."""
        return self.sync(self.scheduler.ncores, workers=_listed(workers))

    ncores = nthreads

    def processing(self, workers: Any = None) -> Any:
        """Worker -> keys that were sent there."""
        return self.sync(self.scheduler.processing, workers=_listed(workers))

    def nbytes(self, keys: Any = None, summary: bool = True) -> Any:
        """Bytes per key, or per prefix."""
        return self.sync(self.scheduler.nbytes, keys=keys, summary=summary)

    def call_stack(self, futures: Any = None, keys: Any = None) -> Any:
        """Stacks of running tasks: worker -> key -> frames."""
        wanted = list(keys or ())
        if futures is not None:
            wanted += [f.key for f in futures_of(futures)]
        return self.sync(self.scheduler.call_stack, keys=wanted or None)

    def scheduler_info(self, n_workers: int = -1, **kwargs: Any) -> Any:
        """The scheduler's identity and its workers. Asynchronous clients get the copy of the last refresh."""
        if not self.asynchronous:
            self.sync(self._update_scheduler_info, n_workers=n_workers)
        return self._scheduler_identity

    async def _update_scheduler_info(self, n_workers: int = -1) -> None:
        self._scheduler_identity = SchedulerInfo(await self.scheduler.identity(n_workers=n_workers))

    def get_versions(self, check: bool = False, packages: Collection[str] | None = None) -> Any:
        """Versions of packages: ``scheduler``, ``workers``, ``client``. `check`: warn where they differ."""
        return self.sync(self._get_versions, check=check, packages=packages or [])

    async def _get_versions(self, check: bool, packages: Collection[str]) -> dict[str, Any]:
        client = get_versions(packages)
        scheduler = await self.scheduler.versions(packages=list(packages))
        workers = await self.scheduler.broadcast(
            msg={"op": "versions", "packages": list(packages)}, on_error="ignore"
        )
        if check:
            text = error_message(scheduler, workers, client)["warning"]
            if text:
                warnings.warn(VersionMismatchWarning(text), stacklevel=2)
        return {"scheduler": scheduler, "workers": workers, "client": client}

    def get_scheduler_logs(self, n: int | None = None) -> Any:
        """(level, text) of the scheduler's log, newest first."""
        return self.sync(self.scheduler.logs, n=n)

    def get_worker_logs(self, n: int | None = None, workers: Any = None, nanny: bool = False) -> Any:
        """The same by worker."""
        return self.sync(self.scheduler.worker_logs, n=n, workers=workers, nanny=nanny)

    def get_metadata(self, keys: Any, default: Any = no_default) -> Any:
        """What is filed on the scheduler under a path of keys. KeyError if there is nothing and no default."""
        path = list(keys) if isinstance(keys, (list, tuple)) else [keys]
        return self.sync(self.scheduler.get_metadata, keys=path, default=default)

    def set_metadata(self, key: Any, value: Any) -> Any:
        """File something on the scheduler under a key, or a path of keys."""
        path = list(key) if isinstance(key, (list, tuple)) else [key]
        return self.sync(self.scheduler.set_metadata, keys=path, value=value)

    def story(self, *keys_or_stimuli: Any, on_error: str = "raise") -> Any:
        """What happened to tasks, on the scheduler and all workers, in order of time."""
        keys = [getattr(item, "key", item) for item in keys_or_stimuli]

        async def call() -> list[Any]:
            found = [
                ("scheduler", *record) for record in await self.scheduler.get_story(keys_or_stimuli=keys)
            ]
            replies = await self.scheduler.broadcast(
                msg={"op": "get_story", "keys_or_stimuli": keys}, on_error=on_error
            )
            for worker, records in replies.items():
                found.extend((worker, *record) for record in records)
            return sorted(found, key=lambda record: record[-1])

        return self.sync(call)

    # --- events --------------------------------------------------------------------------------------------

    def log_event(self, topic: Any, msg: Any) -> Any:
        """Publish an event. TypeError if `msg` is not plain data: what msgpack can carry."""
        try:
            msgpack.packb(msg)
        except (TypeError, ValueError, OverflowError) as exc:
            raise TypeError(f"The message of an event must be msgpack-able, got {msg!r:.200}: {exc}") from exc
        return self.sync(self.scheduler.log_event, topic=topic, msg=msg)

    def get_events(self, topic: str | None = None) -> Any:
        """(time, message) of a topic, or of all topics."""
        return self.sync(self.scheduler.events, topic=topic)

    def subscribe_topic(self, topic: str, handler: Any) -> Any:
        """Call ``handler((time, message))`` for each event of a topic."""

        async def call() -> None:
            self._event_handlers[topic] = handler
            self._send_to_scheduler({"op": "subscribe-topic", "topic": topic, "client": self.id})

        return self.sync(call)

    def unsubscribe_topic(self, topic: str) -> Any:
        """Stop following a topic. ValueError if it is not followed."""

        async def call() -> None:
            if topic not in self._event_handlers:
                raise ValueError(f"No event handler known for topic {topic}.")
            del self._event_handlers[topic]
            self._send_to_scheduler({"op": "unsubscribe-topic", "topic": topic, "client": self.id})

        return self.sync(call)

    # --- workers -------------------------------------------------------------------------------------------

    def wait_for_workers(self, n_workers: int, timeout: Any = None) -> Any:
        """Block until there are that many running workers. WorkerStartTimeoutError if they do not come in time."""
        if not isinstance(n_workers, int) or isinstance(n_workers, bool) or n_workers < 1:
            raise ValueError(f"`n_workers` must be a positive integer. Instead got {n_workers!r}.")
        return self.sync(self._wait_for_workers, n_workers, timeout)

    async def _wait_for_workers(self, n_workers: int, timeout: Any) -> None:
        loop = asyncio.get_running_loop()
        seconds = parse_timedelta(timeout, "s")
        deadline = None if seconds is None else loop.time() + seconds
        while True:
            info = await self.scheduler.identity()
            running = sum(w["status"] == Status.running.name for w in info["workers"].values())
            if running >= n_workers:
                self._scheduler_identity = SchedulerInfo(info)
                return
            if deadline is not None and loop.time() > deadline:
                assert seconds is not None, "there is a deadline"
                raise WorkerStartTimeoutError(running, n_workers, seconds)
            await asyncio.sleep(0.05)

    def restart(self, timeout: Any = no_default, wait_for_workers: bool = True) -> Any:
        """Forget all tasks and restart all workers. Workers without nanny are removed."""
        return self.sync(self._restart, self._restart_timeout(timeout), wait_for_workers)

    @staticmethod
    def _restart_timeout(timeout: Any) -> float:
        return 4 * connect_timeout() if timeout is no_default else float(parse_timedelta(timeout, "s"))

    async def _restart(self, timeout: float, wait_for_workers: bool) -> Any:
        await self.scheduler.restart(
            timeout=timeout, wait_for_workers=wait_for_workers, stimulus_id="client-restart", client=self.id
        )
        return self

    def restart_workers(self, workers: Any, timeout: Any = no_default, raise_for_error: bool = True) -> Any:
        """Restart some workers, by name or address; each needs a nanny (ValueError)."""

        async def call() -> dict[Any, Any]:
            info = await self.scheduler.identity()
            by_name = {str(w["name"]): a for a, w in info["workers"].items()}
            addresses = {worker: by_name.get(str(worker), worker) for worker in workers}
            for worker, address in addresses.items():
                if address not in info["workers"]:
                    raise ValueError(f"unknown worker {worker!r}")
                if not info["workers"][address]["nanny"]:
                    raise ValueError(
                        f"Restarting workers requires a nanny to be used. Worker {worker!r} has none."
                    )
            results = await self.scheduler.restart_workers(
                workers=list(addresses.values()),
                timeout=self._restart_timeout(timeout),
                on_error="raise" if raise_for_error else "return",
                stimulus_id="client-restart-workers",
                client=self.id,
            )
            return {worker: results[address] for worker, address in addresses.items()}

        return self.sync(call)

    def retire_workers(self, workers: Any = None, close_workers: bool = True, **kwargs: Any) -> Any:
        """Move data off workers and stop them."""
        return self.sync(
            self.scheduler.retire_workers, workers=_listed(workers), close_workers=close_workers, **kwargs
        )

    def replicate(
        self,
        futures: Any,
        n: int | None = None,
        workers: Any = None,
        branching_factor: int = 2,
        **kwargs: Any,
    ) -> Any:
        """Have `n` copies of results (default: one on each worker)."""

        async def call() -> None:
            found = futures_of(futures, client=self)
            await self._wait_for_states([f._bound() for f in found])
            reply = await self.scheduler.replicate(
                keys=list({f.key for f in found}),
                n=n,
                workers=_listed(workers),
                branching_factor=branching_factor,
            )
            if reply is not None:
                raise KeyError(f"not replicated: {reply['keys']}")

        return self.sync(call, **kwargs)

    # --- plugins and files ---------------------------------------------------------------------------------

    def register_plugin(self, plugin: Any, name: str | None = None, idempotent: bool | None = None) -> Any:
        """Register a scheduler, worker or nanny plugin."""
        if isinstance(plugin, type):
            raise TypeError("register_plugin expects an instance of a plugin, not a class")
        op = next((op for base, op in _PLUGIN_OPS if isinstance(plugin, base)), None)
        if op is None:
            raise TypeError(
                f"register_plugin expects a SchedulerPlugin, WorkerPlugin or NannyPlugin; got {type(plugin)}"
            )
        name = name or getattr(plugin, "name", None) or f"{type(plugin).__name__}-{id(plugin)}"
        if idempotent is None:
            idempotent = bool(getattr(plugin, "idempotent", False))

        return self.sync(
            self._request_on_all, op, plugin=pickle.dumps(plugin), name=name, idempotent=idempotent
        )

    async def _request_on_all(self, op: str, **fields: Any) -> Any:
        """A request that the scheduler answers with a reply for each server; raises the first error in them."""
        reply = await getattr(self.scheduler, op)(**fields)
        for response in (reply or {}).values() if isinstance(reply, dict) else ():
            if isinstance(response, dict):
                _raise_error(response)
        return reply

    def register_worker_plugin(self, plugin: Any, name: str | None = None, nanny: Any = None) -> Any:
        """Former name of `register_plugin` for workers."""
        return self.register_plugin(plugin, name=name)

    def register_scheduler_plugin(
        self, plugin: Any, name: str | None = None, idempotent: bool | None = None
    ) -> Any:
        """Former name of `register_plugin` for the scheduler."""
        return self.register_plugin(plugin, name=name, idempotent=idempotent)

    def register_worker_callbacks(self, setup: Callable[..., Any] | None = None) -> Any:
        """Run a function on all workers, present and future; it gets the `Worker` if it takes ``dask_worker``."""
        return self.register_plugin(_worker_setup(setup))

    def unregister_worker_plugin(self, name: str, nanny: bool = False) -> Any:
        """Remove a worker (or nanny) plugin everywhere."""
        op = "unregister_nanny_plugin" if nanny else "unregister_worker_plugin"
        return self.sync(self._request_on_all, op, name=name)

    def unregister_scheduler_plugin(self, name: str) -> Any:
        """Remove a scheduler plugin."""
        return self.sync(self.scheduler.unregister_scheduler_plugin, name=name)

    def upload_file(self, filename: str, load: bool = True) -> Any:
        """Send a .py, .egg or .zip file to the scheduler and all workers, present and future, where it can be imported."""
        name = f"{filename}-{os.path.getmtime(filename)}"

        async def call() -> Any:
            for plugin, op in (
                (SchedulerUploadFile(filename, load), "register_scheduler_plugin"),
                (UploadFile(filename, load), "register_worker_plugin"),
            ):
                reply = await self._request_on_all(
                    op, plugin=pickle.dumps(plugin), name=name, idempotent=False
                )
            return reply

        return self.sync(call)

    def write_scheduler_file(self, scheduler_file: str) -> None:
        """Write connection information for others. ValueError if that was done already."""
        if self.scheduler_file:
            raise ValueError("Scheduler file already set")
        self.scheduler_file = scheduler_file
        info = self.sync(self.scheduler.identity)
        if isinstance(info, Awaitable):
            raise RuntimeError("write_scheduler_file is not available on asynchronous clients")
        with open(scheduler_file, "w") as f:
            json.dump(info, f, indent=2, default=str)


def _worker_setup(setup: Callable[..., Any] | None) -> WorkerPlugin:
    """A plugin that calls a function. Its class is local so that it travels by value: no peer needs to have it."""
    takes_worker = setup is not None and "dask_worker" in inspect.signature(setup).parameters

    class WorkerSetup(WorkerPlugin):
        def setup(self, worker: Any) -> Any:
            if setup is None:
                return None
            return setup(dask_worker=worker) if takes_worker else setup()

    return WorkerSetup()


def _listed(workers: Any) -> Any:
    if workers is None:
        return None
    if isinstance(workers, (str, int)):
        return [workers]
    return list(workers)


def _result_of(response: Any) -> Any:
    """The result in a reply, or the error that it carries, raised."""
    _raise_error(response)
    return response["result"]


def _raise_error(response: dict[str, Any]) -> None:
    """Raise the error that a reply carries, if it does."""
    if response.get("status") == "error":
        _, exc, tb = clean_exception(**response)
        raise exc.with_traceback(tb)
