"""`SpecCluster`: a cluster described by dicts, kept in step with its description.

``worker_spec`` says which workers there are meant to be; `_correct_state` starts what is missing and closes what is too many, one correction at a
time. Most third-party clusters subclass this.
"""

from __future__ import annotations

import asyncio
import atexit
import copy
import logging
import math
import weakref
from collections.abc import Collection, Mapping
from contextlib import suppress
from inspect import isawaitable
from typing import Any, ClassVar

import dask.config
from dask.utils import parse_bytes, parse_timedelta
from tornado.ioloop import IOLoop

from distributed.core import Status, rpc
from distributed.deploy.adaptive import Adaptive
from distributed.deploy.cluster import Cluster
from distributed.scheduler import Scheduler
from distributed.security import Security
from distributed.utils import import_term, silence_logging_cmgr

logger = logging.getLogger("distributed.deploy.spec")


class ProcessInterface:
    """What `SpecCluster` expects of the objects that it starts: an awaitable life cycle.

    Subclasses set ``address`` in `start`, and end with ``status`` running after it.
    """

    def __init__(self, scheduler: str | None = None, name: Any = None) -> None:
        self.address: str | None = getattr(self, "address", None)
        self.external_address: str | None = None
        self.lock = asyncio.Lock()
        self.status = Status.created
        self._event_finished = asyncio.Event()

    @property
    def status(self) -> Status:
        """Where in its life the process is; only `Status` members are accepted."""
        return self._status

    @status.setter
    def status(self, value: Status) -> None:
        if not isinstance(value, Status):
            raise TypeError(f"expected a Status, got {value!r}")
        self._status = value

    def __await__(self) -> Any:
        async def started() -> Any:
            async with self.lock:
                if self.status == Status.created:
                    await self.start()
                    status: Status = self.status
                    if status is not Status.running:
                        raise RuntimeError(
                            f"start() of {self!r} must end with status running, not {status.name}"
                        )
            return self

        return started().__await__()

    async def start(self) -> None:
        """Submit the process and wait until it runs."""
        self.status = Status.running

    async def close(self) -> None:
        """Stop the process."""
        self.status = Status.closed
        self._event_finished.set()

    async def finished(self) -> None:
        """Wait until the process has ended."""
        await self._event_finished.wait()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: status={self.status.name}>"

    async def __aenter__(self) -> Any:
        await self
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class SpecCluster(Cluster):
    """A cluster from specifications.

    Parameters
    ----------
    workers
        name -> specification: ``{"cls": class or import string, "options": {...}, "group": [suffixes]}``. The class is called as
        ``cls(scheduler_address, **options)`` with ``name`` filled in; it is awaitable and has ``close()`` and ``status``.
    scheduler
        Specification of the scheduler; default: a `Scheduler` in this process.
    worker
        Specification of further workers, for `scale`.
    silence_logs
        Logging level below which the loggers of this package are silent while the cluster lives; False leaves them alone.
    """

    _instances: ClassVar[weakref.WeakSet[SpecCluster]] = weakref.WeakSet()

    def __init__(
        self,
        workers: Mapping[Any, dict[str, Any]] | None = None,
        scheduler: dict[str, Any] | None = None,
        worker: dict[str, Any] | None = None,
        asynchronous: bool = False,
        loop: IOLoop | None = None,
        security: Security | None = None,
        silence_logs: bool | int | str = False,
        name: str | None = None,
        shutdown_on_close: bool = True,
        scheduler_sync_interval: float | str = 1,
        shutdown_scheduler: bool = True,
    ) -> None:
        if loop is None and asynchronous:
            loop = IOLoop.current()
        self._created: weakref.WeakSet[Any] = weakref.WeakSet()
        self.scheduler_spec = copy.copy(scheduler)
        self.worker_spec: dict[Any, dict[str, Any]] = {} if workers is None else dict(copy.copy(workers))
        self.new_spec = copy.copy(worker)
        self.scheduler: Any = None
        self.workers: dict[Any, Any] = {}
        self._i = 0
        self.security = security or Security()
        self._futures: set[asyncio.Task[Any]] = set()
        self.shutdown_on_close = shutdown_on_close
        self.shutdown_scheduler = shutdown_scheduler
        self._correct_state_waiting: asyncio.Task[None] | None = None
        self._name = name
        self._silencer = silence_logging_cmgr(level=silence_logs) if silence_logs else None
        if self._silencer is not None:
            self._silencer.__enter__()
        super().__init__(
            asynchronous=asynchronous,
            loop=loop,
            name=name,
            scheduler_sync_interval=scheduler_sync_interval,
        )
        self._lock = asyncio.Lock()
        self._instances.add(self)
        if not self.called_from_running_loop:
            self._loop_runner.start()
            try:
                self.sync(self._start)
                self.sync(self._correct_state)
            except Exception:
                self.sync(self._close)
                self._loop_runner.stop()
                raise

    async def _start(self) -> None:
        while self.status == Status.starting:
            await asyncio.sleep(0.01)
        if self.status == Status.running:
            return
        if self.status == Status.closed:
            raise ValueError("Cluster is closed")
        self.status = Status.starting
        try:
            if self.scheduler_spec is None:
                self.scheduler_spec = {"cls": Scheduler, "options": {"dashboard": False, "port": 0}}
            if self.scheduler is None:
                cls = self.scheduler_spec["cls"]
                if isinstance(cls, str):
                    cls = import_term(cls)
                self.scheduler = cls(**self.scheduler_spec.get("options", {}))
            self.scheduler = await self.scheduler
            assert self.security is not None, "the constructor sets it"
            self.scheduler_comm = rpc(
                getattr(self.scheduler, "external_address", None) or self.scheduler.address,
                connection_args=self.security.get_connection_args("client"),
            )
            await super()._start()
        except Exception as exc:
            self.status = Status.failed
            await self._close()
            raise RuntimeError(f"Cluster failed to start: {exc}") from exc

    # --- keeping in step -----------------------------------------------------------------------------------

    def _correct_state(self) -> asyncio.Task[None]:
        """Make the workers match `worker_spec`; corrections that are asked for meanwhile are one correction."""
        if self._correct_state_waiting is not None:
            return self._correct_state_waiting
        task = asyncio.ensure_future(self._correct_state_internal())
        self._correct_state_waiting = task
        return task

    async def _correct_state_internal(self) -> None:
        async with self._lock:
            self._correct_state_waiting = None
            to_close = set(self.workers) - set(self.worker_spec)
            if to_close:
                if self.scheduler.status == Status.running:
                    addresses = [
                        self.workers[name].worker_address
                        for name in to_close
                        if hasattr(self.workers[name], "worker_address")
                    ]
                    await self._retire([address for address in addresses if address])
                closing = [
                    self._close_worker(self.workers[name]) for name in to_close if name in self.workers
                ]
                await asyncio.gather(*closing)
                for name in to_close:
                    self.workers.pop(name, None)
            to_open = set(self.worker_spec) - set(self.workers)
            workers = []
            for name in to_open:
                spec = self.worker_spec[name]
                cls, options = spec["cls"], spec.get("options", {})
                if "name" not in options:
                    options = {**options, "name": name}
                if isinstance(cls, str):
                    cls = import_term(cls)
                address = getattr(self.scheduler, "contact_address", None) or self.scheduler.address
                worker = cls(address, **options)
                self._created.add(worker)
                worker._cluster = weakref.ref(self)
                self.workers[name] = worker
                workers.append((name, worker))
            if workers:
                # all at once: the time to start is that of one worker, not of all of them
                results = await asyncio.gather(
                    *(_started(worker) for _, worker in workers), return_exceptions=True
                )
                failures = [
                    (name, r)
                    for (name, _), r in zip(workers, results, strict=True)
                    if isinstance(r, BaseException)
                ]
                for name, _ in failures:
                    failed = self.workers.pop(name)
                    self.worker_spec.pop(name, None)
                    with suppress(OSError, RuntimeError):
                        await self._close_worker(failed)
                if failures:
                    raise failures[0][1]

    async def _retire(self, addresses: list[str]) -> None:
        if addresses and self.scheduler_comm is not None:
            await self.scheduler_comm.retire_workers(workers=addresses, remove=True, close_workers=False)

    @staticmethod
    async def _close_worker(worker: Any) -> None:
        result = worker.close()
        if isawaitable(result):
            await result

    def _update_worker_status(self, op: str, msg: Any) -> None:
        if op == "remove":
            name = self.scheduler_info["workers"].get(msg, {}).get("name")
            if name is not None:
                delay = _seconds(dask.config.get("distributed.deploy.lost-worker-timeout"))
                task = asyncio.ensure_future(self._forget_lost_worker(name, delay))
                self._futures.add(task)
                task.add_done_callback(self._futures.discard)
        super()._update_worker_status(op, msg)

    async def _forget_lost_worker(self, name: Any, delay: float) -> None:
        """Close a worker that has been gone from the scheduler for `delay` seconds."""
        await asyncio.sleep(delay)
        known = {w["name"] for w in self.scheduler_info["workers"].values()}
        if name in self.workers and name not in known and self.status == Status.running:
            worker = self.workers.pop(name)
            self.worker_spec.pop(name, None)
            await self._close_worker(worker)

    async def _close(self) -> None:
        while self.status == Status.closing:
            await asyncio.sleep(0.01)
        if self.status == Status.closed:
            return
        if self.status in (Status.running, Status.failed, Status.starting, Status.created):
            self.status = Status.closing
            for task in list(self._futures):
                task.cancel()
            if self.shutdown_on_close:
                async with self._lock:
                    workers, self.workers = self.workers, {}
                    await asyncio.gather(
                        *(self._close_worker(w) for w in workers.values()), return_exceptions=True
                    )
            if self.scheduler is not None and self.shutdown_scheduler and hasattr(self.scheduler, "close"):
                await super()._close()
                await self.scheduler.close()
            else:
                await super()._close()
        self.status = Status.closed
        if self._silencer is not None:
            self._silencer.__exit__(None, None, None)
            self._silencer = None

    def __await__(self) -> Any:
        async def started() -> Any:
            if self.status == Status.created:
                await self._start()
            await self._correct_state()
            return self

        return started().__await__()

    async def __aenter__(self) -> Any:
        try:
            await self
        except Exception:
            await self._close()
            raise
        return self

    # --- scaling -------------------------------------------------------------------------------------------

    def _new_worker_name(self, worker_number: int) -> Any:
        """Name of a further worker; subclasses may choose another form."""
        return worker_number

    def new_worker_spec(self) -> dict[Any, dict[str, Any]]:
        """Name and specification of the next worker."""
        if self.new_spec is None:
            raise ValueError("This cluster was made without a specification for further workers (worker=...)")
        name = self._new_worker_name(self._i)
        while name in self.worker_spec:
            self._i += 1
            name = self._new_worker_name(self._i)
        self._i += 1
        return {name: self.new_spec}

    def _threads_per_worker(self) -> int:
        if not self.new_spec:
            raise ValueError(
                "To scale by cores= your worker specification must include nthreads=, ncores=, threads= or cores="
            )
        options = self.new_spec.get("options", {})
        for key in ("nthreads", "ncores", "threads", "cores"):
            if options.get(key):
                return int(options[key])
        raise ValueError(
            "To scale by cores= your worker specification must include nthreads=, ncores=, threads= or cores="
        )

    def _memory_per_worker(self) -> int:
        if not self.new_spec:
            raise ValueError(
                "To scale by memory= your worker specification must include memory_limit= or memory="
            )
        options = self.new_spec.get("options", {})
        for key in ("memory_limit", "memory"):
            if options.get(key):
                return int(parse_bytes(options[key]))
        raise ValueError(
            "To scale by memory= your worker specification must include memory_limit= or memory="
        )

    def scale(self, n: int = 0, memory: Any = None, cores: int | None = None) -> Any:
        """Have `n` workers, or enough for that much memory or that many cores; the largest of them counts.

        Data is moved off the workers that are closed.
        """
        if memory is not None:
            n = max(n, math.ceil(parse_bytes(memory) / self._memory_per_worker()))
        if cores is not None:
            n = max(n, math.ceil(cores / self._threads_per_worker()))
        if len(self.worker_spec) > n:
            # those that were planned but have not arrived go first
            waiting = set(self.worker_spec) - {w["name"] for w in self.scheduler_info["workers"].values()}
            while len(self.worker_spec) > n and waiting:
                del self.worker_spec[waiting.pop()]
        while len(self.worker_spec) > n:
            self.worker_spec.popitem()
        if self.status not in (Status.closing, Status.closed):
            while len(self.worker_spec) < n:
                self.worker_spec.update(self.new_worker_spec())
        self.loop.add_callback(self._correct_state_logged)
        if self.asynchronous:

            async def nothing() -> None: ...

            return nothing()
        return None

    async def _correct_state_logged(self) -> None:
        """Correct the state where nobody waits for the outcome."""
        try:
            await self._correct_state()
        except Exception:  # a worker class of the user's may fail in any way; there is no caller to tell
            logger.exception("%r could not be brought to its specification", self)

    scale_up = scale

    async def scale_down(self, workers: Collection[Any]) -> None:
        """Close the workers of these names."""
        for name in workers:
            if name in self.worker_spec:
                del self.worker_spec[name]
        await self._correct_state()

    def adapt(
        self,
        Adaptive: Any = Adaptive,
        minimum: int = 0,
        maximum: float = math.inf,
        minimum_cores: int | None = None,
        maximum_cores: int | None = None,
        minimum_memory: Any = None,
        maximum_memory: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Scale with the load from now on, between bounds in workers, cores or memory; the narrowest count."""
        if minimum_cores is not None:
            minimum = max(minimum, math.ceil(minimum_cores / self._threads_per_worker()))
        if minimum_memory is not None:
            minimum = max(minimum, math.ceil(parse_bytes(minimum_memory) / self._memory_per_worker()))
        if maximum_cores is not None:
            maximum = min(maximum, maximum_cores // self._threads_per_worker())
        if maximum_memory is not None:
            maximum = min(maximum, parse_bytes(maximum_memory) // self._memory_per_worker())
        return super().adapt(Adaptive, minimum=minimum, maximum=maximum, **kwargs)

    @classmethod
    def from_name(cls, name: str) -> Any:
        """A cluster object for a cluster that exists; subclasses implement it."""
        raise NotImplementedError(f"{cls.__name__} cannot be found by name")


def _seconds(value: Any) -> float:
    return float(parse_timedelta(value, default="s") or 0.0)


async def _started(worker: Any) -> None:
    await worker


async def run_spec(spec: dict[Any, dict[str, Any]], *args: Any) -> dict[Any, Any]:
    """Start every object of a specification (keys ``cls`` and ``opts``)."""
    workers = init_spec(spec, *args)
    if workers:
        await asyncio.gather(*(_started(worker) for worker in workers.values()))
    return workers


def init_spec(spec: dict[Any, dict[str, Any]], *args: Any) -> dict[Any, Any]:
    """Create, without starting, every object of a specification (keys ``cls`` and ``opts``)."""
    workers = {}
    for key, entry in spec.items():
        cls = entry["cls"]
        if isinstance(cls, str):
            cls = import_term(cls)
        workers[key] = cls(*args, **entry.get("opts", {}))
    return workers


@atexit.register
def close_clusters() -> None:
    """Close what was left open when the interpreter ends."""
    for cluster in list(SpecCluster._instances):
        if getattr(cluster, "shutdown_on_close", False) and cluster.status != Status.closed:
            with suppress(asyncio.TimeoutError, RuntimeError, OSError):
                cluster.close(timeout=10)
