"""`Cluster`: what every cluster object offers, whoever runs its processes.

It keeps a live view of the scheduler's workers (`scheduler_info`), lends clients, shows itself, and leaves starting and stopping
processes to its subclasses. It must not assume that the scheduler runs in this process.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, ClassVar

from dask.utils import format_bytes, parse_timedelta
from tornado.ioloop import IOLoop, PeriodicCallback

from distributed.client import Client
from distributed.comm import Comm, CommClosedError
from distributed.core import Status, rpc
from distributed.deploy.adaptive import Adaptive
from distributed.exceptions import WorkerStartTimeoutError
from distributed.objects import SchedulerInfo
from distributed.security import Security
from distributed.utils import Log, Logs, LoopRunner, SyncMethodMixin, format_dashboard_link
from distributed.widgets import render

logger = logging.getLogger("distributed.deploy.cluster")


class Cluster(SyncMethodMixin):
    """Superclass of cluster objects.

    A subclass sets ``scheduler_comm`` (an `rpc` to the scheduler) before it calls ``_start`` of this class, and implements `scale`.

    Parameters
    ----------
    asynchronous
        Whether methods return awaitables for use in a running event loop.
    loop
        The loop to use; by default the running one when asynchronous, else one in a thread of its own.
    quiet
        Do not write the cluster manager's log to the terminal.
    scheduler_sync_interval
        Seconds, or a duration string, between writes of the cluster's metadata to the scheduler.
    """

    _supports_scaling: ClassVar[bool] = True
    _cluster_class_name: str = ""

    def __init__(
        self,
        asynchronous: bool = False,
        loop: IOLoop | None = None,
        quiet: bool = False,
        name: str | None = None,
        scheduler_sync_interval: float | str = 1,
    ) -> None:
        self._loop_runner = LoopRunner(loop=loop, asynchronous=asynchronous)
        self.__asynchronous = asynchronous
        self.scheduler_info: SchedulerInfo = SchedulerInfo({"workers": {}})
        self.periodic_callbacks: dict[str, PeriodicCallback] = {}
        self._watch_worker_status_comm: Comm | None = None
        self._watch_worker_status_task: asyncio.Task[None] | None = None
        self._cluster_manager_logs: list[tuple[datetime.datetime, str]] = []
        self.quiet = quiet
        #: what scales this cluster with its load, if anything does
        self._adaptive: Any = None
        self._adaptive_options: dict[str, Any] = {}
        self.scheduler_comm: rpc | None = None
        self._sync_interval = parse_timedelta(scheduler_sync_interval, default="s")
        self._sync_cluster_info_task: asyncio.Task[None] | None = None
        # subclasses may have set these before calling us
        if not hasattr(self, "security"):
            self.security: Security | None = None
        if name is None:
            name = str(uuid.uuid4())[:8]
        self._cluster_info: dict[str, Any] = {
            "name": name,
            "type": f"{type(self).__module__}.{type(self).__name__}",
        }
        self.status = Status.created

    @property
    def loop(self) -> IOLoop:
        """The loop that runs this cluster's coroutines."""
        loop: IOLoop | None = self._loop_runner.loop
        if loop is None:
            self._loop_runner.start()
            loop = self._loop_runner.loop
        assert loop is not None, "a started runner has a loop"
        return loop

    @property
    def called_from_running_loop(self) -> bool:
        """Whether the caller is inside this cluster's event loop."""
        try:
            return (
                bool(IOLoop.current(instance=False) is self._loop_runner.loop)
                and self._loop_runner.loop is not None
            )
        except RuntimeError:
            return False

    @property
    def asynchronous(self) -> bool:
        """Whether methods return awaitables: made so, or called from inside the loop."""
        return self.__asynchronous or self.called_from_running_loop

    @property
    def name(self) -> str:
        """The cluster's name."""
        return str(self._cluster_info["name"])

    @name.setter
    def name(self, value: str) -> None:
        self._cluster_info["name"] = value

    # --- life ----------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        """Connect to the scheduler and follow its workers."""
        assert self.scheduler_comm is not None, "a subclass connects to its scheduler before it starts"
        comm = await self.scheduler_comm.live_comm()
        comm.name = "Cluster worker status"
        await comm.write({"op": "subscribe_worker_status"})
        self.scheduler_info = SchedulerInfo(await comm.read())
        self._watch_worker_status_comm = comm
        self._watch_worker_status_task = asyncio.ensure_future(self._watch_worker_status(comm))
        info = await self.scheduler_comm.get_metadata(keys=["cluster-manager-info"], default={})
        self._cluster_info = {**(info or {}), **self._cluster_info}
        await self.scheduler_comm.set_metadata(keys=["cluster-manager-info"], value=dict(self._cluster_info))
        self._sync_cluster_info_task = asyncio.ensure_future(self._sync_cluster_info())
        self.status = Status.running

    async def _sync_cluster_info(self) -> None:
        """Write our metadata to the scheduler whenever it has changed."""
        written = dict(self._cluster_info)
        while self.status == Status.running or self.status == Status.created:
            await asyncio.sleep(self._sync_interval)
            if self._cluster_info == written or self.scheduler_comm is None:
                continue
            written = dict(self._cluster_info)
            try:
                await self.scheduler_comm.set_metadata(keys=["cluster-manager-info"], value=written)
            except OSError:
                logger.debug("Cannot write the cluster's metadata: the scheduler is gone")
                return

    async def _watch_worker_status(self, comm: Comm) -> None:
        while True:
            try:
                msgs = await comm.read()
            except OSError:
                break
            for op, msg in msgs:
                self._update_worker_status(op, msg)
        await comm.close()

    def _update_worker_status(self, op: str, msg: Any) -> None:
        """Follow one change; subclasses extend this."""
        workers = self.scheduler_info["workers"]
        if op == "add":
            workers.update(msg["workers"])
        elif op == "remove":
            workers.pop(msg, None)
        else:
            raise ValueError(f"unknown change of worker status: {op!r} {msg!r}")
        self.scheduler_info["n_workers"] = len(workers)
        self.scheduler_info["total_threads"] = sum(w["nthreads"] for w in workers.values())
        self.scheduler_info["total_memory"] = sum(w["memory_limit"] or 0 for w in workers.values())

    async def _close(self) -> None:
        if self.status == Status.closed:
            return
        self.status = Status.closing
        if self._adaptive is not None:
            self._adaptive.stop(reason="cluster-closed")
        for callback in self.periodic_callbacks.values():
            callback.stop()
        if self._watch_worker_status_comm is not None:
            await self._watch_worker_status_comm.close()
        for task in (self._watch_worker_status_task, self._sync_cluster_info_task):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError, CommClosedError):
                    await task
        if self.scheduler_comm is not None:
            await self.scheduler_comm.close_rpc()
        self.status = Status.closed

    def close(self, timeout: float | None = None) -> Awaitable[None] | None:
        """Stop the cluster. An awaitable when asynchronous; closing twice is harmless."""
        if self.status == Status.closed:
            if self.asynchronous:

                async def nothing() -> None: ...

                return nothing()
            return None
        try:
            return self.sync(self._close, callback_timeout=timeout)  # type: ignore[no-any-return]
        except RuntimeError:
            if not self.loop.asyncio_loop.is_running():  # type: ignore[attr-defined]
                self.status = Status.closed
                return None
            raise

    def __enter__(self) -> Any:
        if self.__asynchronous:
            raise TypeError("Used 'with' with an asynchronous cluster; use 'async with' instead")
        return self.sync(self.__aenter__)

    def __exit__(self, *exc: object) -> None:
        self.close()
        self._loop_runner.stop()

    def __await__(self) -> Any:
        async def started() -> Any:
            return self

        return started().__await__()

    async def __aenter__(self) -> Any:
        await self
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._close()

    # --- use -----------------------------------------------------------------------------------------------

    @property
    def scheduler_address(self) -> str:
        """Address of the scheduler, or ``<Not Connected>``."""
        if self.scheduler_comm is None:
            return "<Not Connected>"
        return self.scheduler_comm.address

    @property
    def dashboard_link(self) -> str:
        """URL of the dashboard; empty if there is none."""
        port = (self.scheduler_info.get("services") or {}).get("dashboard")
        if not port:
            return ""
        host = self.scheduler_address.split("://")[-1].split("/")[0].rsplit(":", 1)[0]
        return format_dashboard_link(host, port)

    def get_client(self) -> Client:
        """The current client if it belongs to this cluster, else a new one."""
        try:
            current = Client.current()
            if current.cluster is self:
                return current
        except ValueError:
            pass  # no client yet: make one
        return Client(self, asynchronous=self.asynchronous)

    def scale(self, n: int) -> Any:
        """Ask for `n` workers."""
        raise NotImplementedError(f"{type(self).__name__} cannot be scaled")

    def adapt(self, Adaptive: Callable[..., Any] = Adaptive, **kwargs: Any) -> Any:
        """Scale with the load from now on; returns the `Adaptive` that does it.

        Parameters
        ----------
        kwargs
            For `Adaptive`: minimum, maximum, interval, wait_count, target_duration, ... Those of earlier calls stay in force.
        """
        if self._adaptive is not None:
            self._adaptive.stop(reason="replaced")
        self._adaptive_options.update(kwargs)
        self._adaptive = Adaptive(self, **self._adaptive_options)
        return self._adaptive

    def wait_for_workers(self, n_workers: int, timeout: float | str | None = None) -> Any:
        """Block until the scheduler has at least `n_workers` running workers.

        Raises
        ------
        WorkerStartTimeoutError
            They did not arrive in time.
        """
        if not isinstance(n_workers, int) or n_workers < 1:
            raise ValueError(f"`n_workers` must be a positive integer. Instead got {n_workers!r}.")
        return self.sync(self._wait_for_workers, n_workers, timeout)

    async def _wait_for_workers(self, n_workers: int, timeout: float | str | None = None) -> None:
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + parse_timedelta(timeout, default="s")

        def running() -> int:
            return sum(w["status"] == Status.running.name for w in self.scheduler_info["workers"].values())

        while running() < n_workers:
            if deadline is not None and loop.time() > deadline:
                raise WorkerStartTimeoutError(running(), n_workers, parse_timedelta(timeout, default="s"))
            await asyncio.sleep(0.02)
            # additions are pushed to us, changes of status are not
            if self.scheduler_comm is not None:
                identity = await self.scheduler_comm.identity()
                self.scheduler_info = SchedulerInfo(identity)

    def _log(self, log: str) -> None:
        """Note something in the cluster manager's log."""
        self._cluster_manager_logs.append((datetime.datetime.now(), log))
        if not self.quiet:
            print(log)

    async def _get_logs(self, cluster: bool = True, scheduler: bool = True, workers: Any = True) -> Logs:
        logs = Logs()
        if cluster:
            logs["Cluster"] = Log("\n".join(text for _, text in self._cluster_manager_logs))
        assert self.scheduler_comm is not None, "logs are fetched from a started cluster"
        if scheduler:
            lines = await self.scheduler_comm.get_logs()
            logs["Scheduler"] = Log("\n".join(text for _, text in lines))
        if workers:
            wanted = None if workers is True else workers
            for address, lines in (await self.scheduler_comm.worker_logs(workers=wanted)).items():
                logs[address] = Log("\n".join(text for _, text in lines))
        return logs

    def get_logs(self, cluster: bool = True, scheduler: bool = True, workers: Any = True) -> Any:
        """Logs of the cluster manager, the scheduler and the workers (True, or a list of addresses)."""
        return self.sync(self._get_logs, cluster=cluster, scheduler=scheduler, workers=workers)

    # --- views ---------------------------------------------------------------------------------------------

    @property
    def plan(self) -> set[Any]:
        """Names of the workers that there are meant to be."""
        return set(getattr(self, "worker_spec", self.observed))

    @property
    def requested(self) -> set[Any]:
        """Names of the workers that have been asked for."""
        return set(getattr(self, "workers", self.observed))

    @property
    def observed(self) -> set[Any]:
        """Names of the workers that the scheduler has."""
        return {worker["name"] for worker in self.scheduler_info["workers"].values()}

    def _scaling_status(self) -> str:
        observed, requested = len(self.observed), len(self.requested)
        return f"{observed}" if observed == requested else f"{observed} / {requested}"

    def __repr__(self) -> str:
        workers = self.scheduler_info.get("workers", {})
        text = (
            f"{self._cluster_class_name or type(self).__name__}({self.name}, {self.scheduler_address!r}, workers={len(workers)}, "
            f"threads={sum(w['nthreads'] for w in workers.values())}"
        )
        limits = [w["memory_limit"] for w in workers.values()]
        if limits and all(limits):
            text += f", memory={format_bytes(sum(limits))}"
        return text + ")"

    def _repr_html_(self, cluster_status: str | None = None) -> str:
        workers = self.scheduler_info.get("workers", {}).values()
        return render(
            "cluster.html.j2",
            type=type(self).__name__,
            name=self.name,
            workers=len(workers),
            threads=sum(w["nthreads"] for w in workers),
            memory=format_bytes(sum(w["memory_limit"] or 0 for w in workers)),
            dashboard_link=self.dashboard_link,
            cluster_status=cluster_status,
        )

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.name == other.name  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return id(self)
