"""`Scheduler`: the shell around the scheduler machine. All I/O of the role, none of its decisions.

Messages become events in `inbox`, instructions become messages in `outbox`; here live registration, heartbeats, the life cycle and
the views of the machine's state that plugins and `run_on_scheduler` use. No comm of this process may ever size or offload a payload: both places
where connections are born, the listeners and the rpc pool, have ``allow_offload=False``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import sys
import time as time_module
import uuid
import weakref
from collections import deque
from pathlib import Path
from typing import Any, ClassVar

import dask.config
from dask.utils import parse_timedelta
from tornado.ioloop import IOLoop, PeriodicCallback

from distributed import versions as version_module
from distributed.batched import Stream
from distributed.comm import (
    Comm,
    CommClosedError,
    addresses_from_user_args,
    get_address_host,
    normalize_address,
    resolve_address,
)
from distributed.core import Status
from distributed.metrics import time
from distributed.plugins import watches_transitions
from distributed.preloading import process_preloads
from distributed.requests import LogBuffer
from distributed.scheduler.admin import AdminHandlers
from distributed.scheduler.events import EventBus
from distributed.scheduler.outbox import Outbox, Peer
from distributed.scheduler.settings import scheduler_settings
from distributed.scheduler_state_machine import SchedulerMachine, WorkerState
from distributed.scheduler_state_machine import events as ev
from distributed.security import Security
from distributed.utils import import_term
from distributed.versions import get_versions

logger = logging.getLogger("distributed.scheduler")

#: where schedulers listen unless they are told otherwise
DEFAULT_PORT = 8786
#: parts of higher layers that every scheduler has: name -> what is called with the scheduler
EXTENSIONS = {"shuffle": "distributed.shuffle._scheduler_plugin.ShuffleSchedulerPlugin"}
#: file descriptors assumed where the limit cannot be read
DEFAULT_FD_LIMIT = 1024


def heartbeat_interval(n: int) -> float:
    """Seconds between heartbeats of `n` peers: about as many heartbeats per second, however many they are."""
    if n <= 10:
        return 0.5
    if n < 50:
        return 1.0
    if n < 200:
        return 2.0
    return n / 200 + 1


def connection_limit() -> int:
    """Half of the open files that this process may have."""
    try:
        import resource
    except ImportError:  # not on Windows
        return DEFAULT_FD_LIMIT // 2
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(64, min(soft, 2**20) // 2)


#: pause before idle workers take over tasks of others, seconds: at the end of a burst, most of them get tasks anyway
BALANCE_DELAY_S = 0.02
#: the same per worker: to look at all of them takes time
BALANCE_DELAY_PER_WORKER_S = 2e-4


class Scheduler(AdminHandlers):
    """Coordinates tasks between clients and workers.

    ``await Scheduler(...)`` starts it. Runs on the event loop that starts it.

    Parameters
    ----------
    host, port, interface, protocol
        Where to listen; lists of equal length for several addresses. Port 0: any.
    allowed_failures
        Deaths of workers that a task survives; default ``distributed.scheduler.allowed-failures``.
    scheduler_file
        JSON with the connection information is written there.
    worker_ttl
        A worker that has been silent for this long is removed.
    idle_timeout
        Stop after this long without work.
    validate
        Check all invariants of the state after each event. Slow.
    """

    default_port = DEFAULT_PORT
    _instances: ClassVar[weakref.WeakSet[Scheduler]] = weakref.WeakSet()

    def __init__(
        self,
        loop: IOLoop | None = None,
        services: Any = None,
        service_kwargs: Any = None,
        allowed_failures: int | None = None,
        extensions: Any = None,
        validate: bool | None = None,
        scheduler_file: str | os.PathLike[str] | None = None,
        security: Security | dict[str, Any] | None = None,
        worker_ttl: Any = None,
        idle_timeout: Any = None,
        interface: Any = None,
        host: Any = None,
        port: Any = 0,
        protocol: Any = None,
        dashboard_address: str | None = None,
        dashboard: bool | None = None,
        http_prefix: str = "/",
        preload: Any = None,
        preload_argv: Any = (),
        plugins: Any = (),
        contact_address: str | None = None,
        transition_counter_max: Any = False,
        jupyter: bool = False,
        blocked_handlers: Any = None,
        connection_limit: int | None = None,
        **kwargs: Any,
    ) -> None:
        if kwargs:
            raise TypeError(f"Scheduler got unexpected keyword arguments {sorted(kwargs)}")
        if jupyter:
            raise NotImplementedError("jupyter=True is not available in this release")
        if isinstance(security, dict):
            security = Security(**security)
        self.security = security or Security()
        settings = scheduler_settings(allowed_failures, validate)
        self.machine = SchedulerMachine(settings, seed=uuid.uuid4().int & 0xFFFF_FFFF)
        self.outbox = Outbox()
        self.bus = EventBus(self.outbox)
        self.allowed_failures = settings.allowed_failures
        self.validate = settings.validate
        self.bandwidth = settings.bandwidth
        self.result_types = {}
        #: worker address -> stream, client id -> stream
        self.stream_comms: dict[str, Stream] = {}
        self.client_comms: dict[str, Stream] = {}
        self.plugins = {}
        self._initial_plugins = list(plugins)
        self.worker_plugins = {}
        self.nanny_plugins = {}
        self.task_metadata = {}
        self.extensions: dict[str, Any] = {}
        self._own_observers: list[Any] = []
        self.services: dict[str, Any] = {}
        self.scheduler_file = None if scheduler_file is None else str(scheduler_file)
        ttl = worker_ttl if worker_ttl is not None else dask.config.get("distributed.scheduler.worker-ttl")
        self.worker_ttl = parse_timedelta(ttl, "s") if ttl else None
        idle = (
            idle_timeout
            if idle_timeout is not None
            else dask.config.get("distributed.scheduler.idle-timeout")
        )
        self.idle_timeout = parse_timedelta(idle, "s") if idle else None
        self.idle_since: float | None = None
        self.contact_address = contact_address or dask.config.get("distributed.scheduler.contact-address")
        self._start_address = addresses_from_user_args(
            host=host, port=port, interface=interface, protocol=protocol, security=self.security
        )
        self.log_buffer = LogBuffer(dask.config.get("distributed.admin.log-length") or 10_000)
        self.preloads = process_preloads(
            self,
            preload if preload is not None else dask.config.get("distributed.scheduler.preload"),
            preload_argv or dask.config.get("distributed.scheduler.preload-argv"),
        )
        self._status_watchers: dict[Comm, asyncio.Queue[tuple[str, Any]]] = {}
        self._intake_numbers = itertools.count(-1, -1)
        self._deadline: asyncio.TimerHandle | None = None
        self._balance: asyncio.TimerHandle | None = None
        limit = connection_limit if connection_limit is not None else globals()["connection_limit"]()
        super().__init__(
            blocked_handlers=blocked_handlers,
            connection_limit=limit,
            deserialize=False,
            connection_args=self.security.get_connection_args("scheduler"),
            loop=loop,
            allow_offload=False,
        )
        self.handlers.update(
            {
                "register-client": self.register_client,
                "register-worker": self.register_worker,
                "register_nanny": self.register_nanny,
                "unregister": self.unregister,
                "heartbeat_worker": self.heartbeat_worker,
                "terminate": self.terminate,
                "subscribe_worker_status": self.subscribe_worker_status,
                "check_idle": self.check_idle,
                **self.data_handlers(),
                **self.admin_handlers(),
            }
        )
        self.stream_handlers.update({**self.worker_stream_handlers(), **self.client_stream_handlers()})
        for name, path in EXTENSIONS.items():
            self.extensions[name] = import_term(path)(self)
        # the two roles have one op in common, which means something else for each
        self._client_handlers = {**self.stream_handlers, **self.client_stream_handlers()}
        self._worker_handlers = {**self.stream_handlers, **self.worker_stream_handlers()}
        self.periodic_callbacks["worker-ttl"] = PeriodicCallback(
            self._check_worker_ttl, 1000 * max((self.worker_ttl or 60) / 4, 0.25)
        )
        if self.idle_timeout:
            self.periodic_callbacks["idle-timeout"] = PeriodicCallback(
                self._check_idle_timeout, 1000 * min(self.idle_timeout / 4, 0.25)
            )
        Scheduler._instances.add(self)

    # --- views of the state --------------------------------------------------------------------------------

    @property
    def tasks(self) -> dict[Any, Any]:
        """Key -> `TaskState`."""
        return self.machine.tasks

    @property
    def workers(self) -> dict[str, WorkerState]:
        """Address -> `WorkerState`."""
        return self.machine.workers

    @property
    def clients(self) -> dict[str, Any]:
        """Id -> `ClientState`."""
        return self.machine.clients

    @property
    def task_groups(self) -> dict[str, Any]:
        """Name -> `TaskGroup`."""
        return self.machine.task_groups

    @property
    def task_prefixes(self) -> dict[str, Any]:
        """Name -> `TaskPrefix`."""
        return self.machine.task_prefixes

    @property
    def aliases(self) -> dict[Any, str]:
        """Worker name -> address."""
        return self.machine.aliases

    @property
    def running(self) -> set[WorkerState]:
        """Workers that may be given work."""
        return self.machine.running

    @property
    def idle(self) -> dict[str, WorkerState]:
        """Running workers with free threads, by address."""
        return {
            ws.address: ws
            for ws in self.machine.running
            if len(ws.processing) - len(ws.long_running) < ws.nthreads
        }

    @property
    def unrunnable(self) -> dict[Any, float]:
        """Runnable tasks that nobody may run."""
        return self.machine.unrunnable

    @property
    def queued(self) -> list[Any]:
        """Tasks held back until workers have slots."""
        return [ts for _, _, ts in self.machine.queue if ts.state == "queued"]

    @property
    def total_nthreads(self) -> int:
        """Threads of all workers."""
        return self.machine.total_nthreads

    @property
    def total_occupancy(self) -> float:
        """Seconds of work that workers have been given."""
        return sum(ws.occupancy for ws in self.machine.workers.values())

    @property
    def transition_log(self) -> deque[Any]:
        """(key, start, finish, recommendations, stimulus_id, time) of the latest transitions."""
        return self.machine.transition_log

    @property
    def transition_counter(self) -> int:
        """Transitions since the start."""
        return self.machine.transition_counter

    def story(self, *keys_or_tasks: Any) -> list[Any]:
        """Remembered transitions of tasks."""
        return self.machine.story(*keys_or_tasks)

    # --- driving the machine -------------------------------------------------------------------------------

    def now(self) -> float:
        return time()

    def new_intake_number(self) -> int:
        return next(self._intake_numbers)

    def deliver(self, event: ev.Event) -> None:  # type: ignore[override]
        """Give an event to the machine and queue what follows."""
        machine = self.machine
        out = machine.handle(event, now=time_module.time())
        if out:
            self.outbox.dispatch(out, machine.stimulus_id)
        if machine.settings.no_workers_timeout_s is not None:
            self._set_deadline()
        if machine.starving and self._balance is None:
            self._balance = asyncio.get_running_loop().call_later(
                max(BALANCE_DELAY_S, BALANCE_DELAY_PER_WORKER_S * len(machine.workers)), self._balance_now
            )

    def _balance_now(self) -> None:
        """Have tasks moved from workers that have too many to those that have none."""
        self._balance = None
        if self.status == Status.running:
            self.deliver(ev.BalanceDue("balance"))

    def _set_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        due = self.machine.next_deadline()
        if due is not None:
            delay = max(due - time(), 0)
            self._deadline = asyncio.get_running_loop().call_later(
                delay, lambda: self.deliver(ev.DeadlineReached("no-workers-timeout"))
            )

    def observe(self, function: Any, wanted: bool) -> None:
        """Have an extension's function called at transitions, or not any more."""
        if wanted:
            self._own_observers.append(self._safe_observer(function))
        else:
            self._own_observers = [f for f in self._own_observers if f.__wrapped__ != function]
        self.observe_plugins()

    def observe_plugins(self) -> None:
        observers = list(self._own_observers)
        for plugin in self.plugins.values():
            if watches_transitions(plugin):
                observers.append(self._safe_observer(plugin.transition))
        self.machine.observers[:] = observers

    @staticmethod
    def _safe_observer(function: Any) -> Any:
        def observe(*args: Any, **kwargs: Any) -> None:
            try:
                function(*args, **kwargs)
            except Exception:  # a plugin's error must not stop the scheduler
                logger.exception("A scheduler plugin failed in transition")

        observe.__wrapped__ = function  # type: ignore[attr-defined]
        return observe

    # --- life ----------------------------------------------------------------------------------------------

    async def start_unsafe(self) -> Any:
        await super().start_unsafe()
        logging.getLogger("distributed.scheduler").addHandler(self.log_buffer)
        for address in self._start_address:
            await self.listen(address, **self.security.get_listen_args("scheduler"))
            logger.info("  Scheduler at: %25s", self.listeners[-1].contact_address)
        if self.contact_address:
            self._address = normalize_address(self.contact_address)
        for preload in self.preloads:
            await preload.start()
        for plugin in self._initial_plugins:
            await self.register_scheduler_plugin(plugin)
        if self.scheduler_file:
            self._write_scheduler_file(self.scheduler_file)
        self.start_periodic_callbacks()
        return self

    def _write_scheduler_file(self, path: str) -> None:
        # readers poll the file: it must never be seen half written
        temporary = f"{path}.{os.getpid()}.tmp"
        Path(temporary).write_text(json.dumps(self.identity(), indent=2, default=str))
        os.replace(temporary, path)

        def remove() -> None:
            with contextlib.suppress(OSError):
                os.remove(path)

        self._finalize_file = weakref.finalize(self, remove)

    async def close(self, timeout: float | None = None, *, reason: str = "") -> None:
        """Tell workers and clients, then stop. Closing twice waits for the first."""
        if self.status in (Status.closing, Status.closed):
            await self.finished()
            return
        logger.info("Closing scheduler%s", f" ({reason})" if reason else "")
        was_running = self.status == Status.running
        self.status = Status.closing
        for plugin in list(self.plugins.values()):
            if hasattr(plugin, "before_close"):
                await self._plugin_call(plugin.before_close)
        for preload in self.preloads:
            await preload.teardown()
        if self._balance is not None:
            self._balance.cancel()
        if self._deadline is not None:
            self._deadline.cancel()
        if was_running:
            for peer in self.outbox.workers.values():
                peer.send({"op": "close", "reason": "scheduler-close"})
            for peer in self.outbox.clients.values():
                peer.send({"op": "close"})
            # Workers go first: they close their streams when they have stopped.
            deadline = asyncio.get_running_loop().time() + 2.0
            while self.stream_comms and asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(0.01)
        for stream in [*self.stream_comms.values(), *self.client_comms.values()]:
            await stream.close()
        for plugin in list(self.plugins.values()):
            if hasattr(plugin, "close"):
                await self._plugin_call(plugin.close)
        await super().close(timeout=timeout, reason=reason)
        if self._upload_directory is not None:
            with contextlib.suppress(ValueError):
                sys.path.remove(self._upload_directory.name)
            self._upload_directory.cleanup()
        logging.getLogger("distributed.scheduler").removeHandler(self.log_buffer)
        if self.scheduler_file:
            with contextlib.suppress(OSError):
                os.remove(self.scheduler_file)

    async def _plugin_call(self, function: Any, *args: Any, **kwargs: Any) -> None:
        try:
            result = function(*args, **kwargs)
            if asyncio.iscoroutine(result):
                await result
        except Exception:  # a plugin's error must not stop the scheduler
            logger.exception("A scheduler plugin failed in %s", getattr(function, "__name__", function))

    async def terminate(self, timeout: float | None = None, reason: str = "scheduler-terminate") -> None:
        """Stop; answers before it is done."""
        asyncio.ensure_future(self.close(reason=reason))

    def check_idle(self) -> float | None:
        """Since when there is nothing to do; None if there is."""
        busy = (
            self.machine.n_queued
            or self.machine.unrunnable
            or any(ws.processing for ws in self.machine.workers.values())
        )
        if busy or self.status != Status.running:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = time()
        return self.idle_since

    async def _check_idle_timeout(self) -> None:
        since = self.check_idle()
        if since is not None and self.idle_timeout and time() > since + self.idle_timeout:
            logger.info("Scheduler closing after being idle for %s s", self.idle_timeout)
            await self.close(reason="idle-timeout-exceeded")

    async def _check_worker_ttl(self) -> None:
        if not self.worker_ttl:
            return
        limit = max(self.worker_ttl, 10 * heartbeat_interval(len(self.machine.workers)))
        now = time()
        for ws in list(self.machine.workers.values()):
            if ws.last_seen and ws.last_seen < now - limit:
                logger.warning("Worker failed to heartbeat for %.0fs; closing it: %s", now - ws.last_seen, ws)
                if ws.nanny:
                    await self.restart_workers(
                        [ws.address], wait_for_workers=False, on_error="return", stimulus_id="worker-ttl"
                    )
                else:
                    await self.remove_worker(ws.address, stimulus_id="worker-ttl")

    # --- identity ------------------------------------------------------------------------------------------

    def identity(self, n_workers: int = -1) -> dict[str, Any]:  # type: ignore[override]
        """Who this is, with up to `n_workers` workers (-1: all)."""
        workers = list(self.machine.workers.values())
        shown = workers if n_workers == -1 else workers[:n_workers]
        return {
            "type": type(self).__name__,
            "id": str(self.id),
            "address": self.address,
            "services": dict(self.services),
            "started": self.time_started,
            "n_workers": len(workers),
            "total_threads": self.machine.total_nthreads,
            "total_memory": sum(ws.memory_limit or 0 for ws in workers),
            "workers": {ws.address: self.worker_identity(ws) for ws in shown},
        }

    def worker_identity(self, ws: WorkerState) -> dict[str, Any]:
        return {
            "type": "Worker",
            "id": ws.name,
            "host": ws.host,
            "resources": dict(ws.resources),
            "local_directory": ws.local_directory,
            "name": ws.name,
            "nthreads": ws.nthreads,
            "memory_limit": ws.memory_limit,
            "last_seen": ws.last_seen,
            "services": dict(ws.services),
            "metrics": dict(ws.metrics),
            "status": ws.status,
            "nanny": ws.nanny,
            **ws.extra,
        }

    # --- clients -------------------------------------------------------------------------------------------

    async def register_client(self, comm: Comm, *, client: str, versions: dict[str, Any], **_: Any) -> Status:
        """Serve a client's stream until it ends."""
        comm.name = f"scheduler->client {client}"
        logger.info("Receive client connection: %s", client)
        # reading must not lose to a second connection of the same client
        old = self.client_comms.get(client)
        if old is not None:
            old.abort()
        self.deliver(ev.ClientAdded(client, versions))
        for plugin in list(self.plugins.values()):
            if hasattr(plugin, "add_client"):
                await self._plugin_call(plugin.add_client, scheduler=self, client=client)
        stream = Stream()
        warning = version_module.error_message(
            get_versions(), {ws.address: ws.versions for ws in self.machine.workers.values()}, versions
        )
        try:
            # alone in its batch: clients rely on that
            await comm.write([{"op": "stream-start", **warning}])
            stream.start(comm)
            self.client_comms[client] = stream
            self.outbox.clients[client] = Peer(stream)
            await self.handle_stream(comm, extra={"client": client})
        except CommClosedError:
            logger.debug("Client %s left during registration", client)
        finally:
            if self.client_comms.get(client) is stream:
                del self.client_comms[client]
                del self.outbox.clients[client]
                self._forget_client(client)
            stream.abort()
        return Status.dont_reply

    def _forget_client(self, client: str) -> None:
        if client in self.machine.clients:
            logger.info("Remove client %s", client)
            self.bus.forget_client(client)
            self.deliver(ev.ClientRemoved(client, f"remove-client-{time()}"))
            for plugin in list(self.plugins.values()):
                if hasattr(plugin, "remove_client"):
                    plugin.remove_client(scheduler=self, client=client)

    def on_close_client(self, client: str) -> None:
        self._forget_client(client)

    def on_heartbeat_client(self, client: str) -> None:
        cs = self.machine.clients.get(client)
        peer = self.outbox.clients.get(client)
        if cs is not None and peer is not None:
            cs.last_seen = time()
            interval = 10 * heartbeat_interval(len(self.client_comms))
            peer.send({"op": "adjust-heartbeat-interval", "interval": interval})

    def on_subscribe_topic(self, client: str, topic: str) -> None:
        self.bus.subscribe(client, topic)

    def on_unsubscribe_topic(self, client: str, topic: str) -> None:
        self.bus.unsubscribe(client, topic)

    def graph_added(self, client: str, rows: Any) -> None:
        for extension in self.extensions.values():
            extension.rows_added(rows)
        if not self.plugins:
            return
        annotations: dict[str, dict[Any, Any]] = {}
        for row in rows:
            for name, value in ((row[4] or {}).get("annotations") or {}).items():
                annotations.setdefault(name, {})[row[0]] = value
        keys = [row[0] for row in rows]
        for plugin in list(self.plugins.values()):
            if hasattr(plugin, "update_graph"):
                try:
                    plugin.update_graph(
                        self,
                        client=client,
                        keys={key for key in keys if key in self.tasks and self.tasks[key].who_wants},
                        tasks=keys,
                        annotations=annotations,
                        priority={key: self.tasks[key].priority for key in keys if key in self.tasks},
                        stimulus_id=self.machine.stimulus_id,
                        dependencies={},
                    )
                except Exception:  # a plugin's error must not stop the scheduler
                    logger.exception("A scheduler plugin failed in update_graph")

    # --- workers -------------------------------------------------------------------------------------------

    async def register_worker(
        self,
        comm: Comm,
        *,
        address: str,
        status: str,
        nthreads: int,
        name: Any,
        now: float,
        resources: dict[str, float],
        memory_limit: int | None,
        local_directory: str,
        services: dict[str, Any],
        nanny: str | None,
        versions: dict[str, Any],
        metrics: dict[str, Any],
        extra: dict[str, Any],
        stimulus_id: str,
        server_id: str,
        pid: int = 0,
        resolve_address: bool = True,
        host_info: dict[str, Any] | None = None,
    ) -> Status:
        """Serve a worker's stream until it ends."""
        address = self.coerce_address(address, resolve_address)
        comm.name = f"scheduler->worker {address}"
        if name is None or name == "":
            name = address
        if address in self.machine.workers:
            raise ValueError(f"Worker already exists {address}")
        if name in self.machine.aliases:
            logger.warning("Worker tried to connect with a duplicate name: %s", name)
            await comm.write({"status": "error", "message": f"name taken, {name}", "time": time()})
            return Status.dont_reply
        logger.info("Register worker addr: %s name: %s", address, name)
        self.result_types[address] = {}
        self.deliver(
            ev.WorkerAdded(
                address,
                name,
                get_address_host(address),
                nthreads,
                memory_limit,
                resources or {},
                status,
                server_id,
                nanny,
                pid,
                local_directory,
                services or {},
                versions or {},
                extra or {},
                stimulus_id,
            )
        )
        ws = self.machine.workers[address]
        ws.last_seen = time()
        ws.metrics = metrics
        ws.time_delay = time() - now
        stream = Stream()
        self.stream_comms[address] = stream
        warning = version_module.error_message(get_versions(), {address: versions}, None)
        try:
            await comm.write(
                {
                    "status": "OK",
                    "time": time(),
                    "heartbeat-interval": heartbeat_interval(len(self.machine.workers)),
                    "worker-plugins": dict(self.worker_plugins),
                    **warning,
                }
            )
            stream.start(comm)
            self.outbox.workers[address] = Peer(stream)
            self._notify_watchers("add", {"workers": {address: self._public_identity(ws)}})
            for plugin in list(self.plugins.values()):
                if hasattr(plugin, "add_worker"):
                    await self._plugin_call(plugin.add_worker, scheduler=self, worker=address)
            await self.handle_stream(comm, extra={"worker": address})
        except CommClosedError:
            logger.debug("Worker %s left during registration", address)
        finally:
            if self.stream_comms.get(address) is stream:
                await self.remove_worker(
                    address,
                    stimulus_id=f"handle-worker-cleanup-{time()}",
                    expected=self._left_in_order(ws),
                    close=False,
                )
            stream.abort()
        return Status.dont_reply

    @staticmethod
    def _left_in_order(ws: WorkerState) -> bool:
        """Whether a worker had said that it would go."""
        return ws.status in ("closing", "closed", "closing_gracefully")

    def coerce_address(self, address: str, resolve: bool = True) -> str:
        """An address in the form that serves as identity."""
        address = normalize_address(self.machine.aliases.get(address, address))
        return resolve_address(address) if resolve else address

    async def remove_worker(
        self, address: str, *, stimulus_id: str, expected: bool = False, close: bool = True
    ) -> str:
        if address not in self.machine.workers:
            return "already-removed"
        if close:
            self.close_worker(address)
        stream = self.stream_comms.pop(address, None)
        self.outbox.workers.pop(address, None)
        self.result_types.pop(address, None)
        ws = self.machine.workers[address]
        level = logging.INFO if expected else logging.WARNING
        if self.status == Status.running:
            logger.log(level, "Remove worker addr: %s name: %s (%s)", address, ws.name, stimulus_id)
        self.rpc.remove(address)
        self.deliver(ev.WorkerRemoved(address, expected or self.status != Status.running, stimulus_id))
        for extension in self.extensions.values():
            extension.worker_lost(address, stimulus_id)
        self._notify_watchers("remove", address)
        for plugin in list(self.plugins.values()):
            if hasattr(plugin, "remove_worker"):
                await self._plugin_call(
                    plugin.remove_worker, scheduler=self, worker=address, stimulus_id=stimulus_id
                )
        if stream is not None:
            await stream.close()
        return "OK"

    async def unregister(
        self, address: str, stimulus_id: str = "unregister", expected: bool = False, close: bool = True
    ) -> str:
        """A worker is gone, or has to go."""
        return await self.remove_worker(
            self.coerce_address(address), stimulus_id=stimulus_id, expected=expected, close=close
        )

    def close_worker(self, worker: str) -> None:
        peer = self.outbox.workers.get(worker)
        if peer is not None:
            peer.send({"op": "close", "reason": "scheduler-close-worker"})

    def send_worker_status(self, ws: WorkerState, status: str, stimulus_id: str) -> None:
        self.deliver(ev.WorkerStatusChanged(ws.address, status, stimulus_id))
        peer = self.outbox.workers.get(ws.address)
        if peer is not None:
            peer.send({"op": "worker-status-change", "status": status, "stimulus_id": stimulus_id})

    def heartbeat_worker(
        self,
        address: str,
        now: float,
        metrics: dict[str, Any],
        executing: dict[Any, float] | None = None,
        extensions: dict[str, Any] | None = None,
        resolve_address: bool = True,
        resources: dict[str, float] | None = None,
        host_info: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """A worker lives, and says how it is."""
        address = self.coerce_address(address, resolve_address)
        ws = self.machine.workers.get(address)
        if ws is None:
            return {"status": "missing"}
        local = time()
        ws.last_seen = local
        ws.time_delay = local - now
        ws.metrics = metrics
        bandwidth = (metrics.get("bandwidth") or {}).get("total")
        spilled = (metrics.get("spilled_bytes") or {}).get("memory", 0)
        self.deliver(
            ev.WorkerHeartbeat(
                address, bandwidth, executing or {}, int(metrics.get("memory", 0)), int(spilled)
            )
        )
        if resources:
            self.deliver(ev.WorkerResourcesSet(address, resources, "heartbeat"))
        for name, report in (extensions or {}).items():
            if name in self.extensions:
                self.extensions[name].heartbeat(address, report)
        return {
            "status": "OK",
            "time": local,
            "heartbeat-interval": heartbeat_interval(len(self.machine.workers)),
        }

    async def register_nanny(self, comm: Comm, address: str) -> Status:
        """Give a nanny its plugins, and wait until its worker has started."""
        comm.name = f"scheduler->nanny {address}"
        await comm.write({"status": "OK", "nanny-plugins": dict(self.nanny_plugins)})
        try:
            await comm.read()
        except CommClosedError:
            logger.debug("Nanny %s left before its worker started", address)
        return Status.dont_reply

    def on_worker_log_event(self, worker: str, topic: Any, msg: Any) -> None:
        if isinstance(msg, dict) and topic != worker:
            msg["worker"] = worker
        self.log_event(topic, msg)

    # --- followers of the workers --------------------------------------------------------------------------

    def _public_identity(self, ws: WorkerState) -> dict[str, Any]:
        identity = self.worker_identity(ws)
        del identity["metrics"], identity["last_seen"]
        return identity

    def _notify_watchers(self, op: str, msg: Any) -> None:
        for queue in self._status_watchers.values():
            queue.put_nowait((op, msg))

    async def subscribe_worker_status(self, comm: Comm) -> Status:
        """Push every arrival and departure of a worker, as long as the connection lasts."""
        identity = self.identity()
        for worker in identity["workers"].values():
            del worker["metrics"], worker["last_seen"]
        queue: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self._status_watchers[comm] = queue
        closed = asyncio.ensure_future(comm.read())
        try:
            await comm.write(identity)
            while True:
                getter = asyncio.ensure_future(queue.get())
                await asyncio.wait([getter, closed], return_when=asyncio.FIRST_COMPLETED)
                if closed.done():
                    getter.cancel()
                    break
                batch = [getter.result()]
                while not queue.empty():
                    batch.append(queue.get_nowait())
                await comm.write(batch)
        except CommClosedError:
            pass  # the follower has gone, which is how this ends
        finally:
            del self._status_watchers[comm]
            closed.cancel()
            with contextlib.suppress(asyncio.CancelledError, CommClosedError):
                await closed
            comm.abort()
        return Status.dont_reply
