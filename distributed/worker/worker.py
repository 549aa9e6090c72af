"""`Worker`: the shell around the worker machine. Registers, executes, fetches and serves data; decides nothing about tasks.

A burst of results, or of messages, is fed to the machine as a whole; then its instructions are carried out: offers to threads, transfers
as background tasks, messages into the stream, values dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import sys
import tempfile
import threading
import uuid
import weakref
from collections.abc import Collection, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import dask.config
import psutil
from dask.context import thread_state
from dask.utils import parse_bytes, parse_timedelta
from tornado.ioloop import IOLoop

from distributed.batched import Stream, begin_batch, end_batch
from distributed.comm import (
    Comm,
    CommClosedError,
    address_from_user_args,
    connect,
    normalize_address,
    unparse_host_port,
)
from distributed.comm.handshake import TASK_BATCHES
from distributed.comm.offload import get_offload_executor
from distributed.context import current_key, current_worker
from distributed.core import Status
from distributed.exceptions import Reschedule
from distributed.metrics import monotonic, time
from distributed.preloading import process_preloads
from distributed.requests import LogBuffer
from distributed.security import Security
from distributed.spill import SpillBuffer
from distributed.system import CPU_COUNT
from distributed.utils import parse_ports
from distributed.versions import get_versions
from distributed.worker.execution import FunctionTable, failed, prepare, run_elsewhere, succeeded
from distributed.worker.memory import MemoryManager
from distributed.worker.outbox import Outbox
from distributed.worker.requests import RequestHandlers
from distributed.worker.threads import Offer, TaskThreads
from distributed.worker_memory import MemorySettings, parse_memory_limit
from distributed.worker_state_machine import WorkerMachine, WorkerSettings
from distributed.worker_state_machine import events as ev
from distributed.worker_state_machine import instructions as ins

logger = logging.getLogger("distributed.worker")

Key = Any

#: first heartbeat interval, seconds; the scheduler's answers say the later ones
FIRST_HEARTBEAT_S = 1.0
#: with nothing else to say, the stream is used this often, seconds, so that middleboxes keep it open
KEEP_ALIVE_S = 60.0


class CoroutineCall(NamedTuple):
    """A thread has found that a task is a coroutine function: it belongs on the loop."""

    key: Key
    run_id: int
    call: Any


def worker_settings(validate: bool | None, memory_limit: int | None) -> WorkerSettings:
    """Settings of the machine from the current configuration."""
    get = dask.config.get
    return WorkerSettings(
        connections_outgoing=int(get("distributed.worker.connections.outgoing")),
        gather_bytes_max=int(parse_bytes(get("distributed.worker.transfer.message-bytes-limit"))),
        inflight_bytes_max=0.1 * memory_limit if memory_limit else float("inf"),
        story_length=int(get("distributed.admin.low-level-log-length")),
        validate=bool(get("distributed.worker.validate") if validate is None else validate),
    )


class Worker(RequestHandlers):
    """Runs tasks, keeps their results and serves them to peers.

    ``await Worker(scheduler_address, ...)`` starts it.

    Parameters
    ----------
    nthreads
        Tasks that run at once; default: the cores of the machine.
    memory_limit
        See `parse_memory_limit`. Near it results go to disk, then no further task starts (configuration ``distributed.worker.memory``).
    executor
        An ``Executor``, or a dict of them, for tasks with the annotation ``executor`` (name ``"default"``: for all tasks).
    resources
        Amounts of abstract resources that tasks may ask for.
    data
        A mutable mapping for the results, or a callable that makes one; results are not spilled then.
    death_timeout
        Give up if the scheduler cannot be reached for this long.
    lifetime, lifetime_stagger, lifetime_restart, profile_cycle_interval, low_level_profiler, dashboard, dashboard_address, services
        Accepted, without effect in this release.
    """

    _instances: ClassVar[weakref.WeakSet[Worker]] = weakref.WeakSet()

    def __init__(
        self,
        scheduler_ip: str | None = None,
        scheduler_port: int | None = None,
        *,
        scheduler_file: str | None = None,
        nthreads: int | None = None,
        loop: IOLoop | None = None,
        local_directory: str | None = None,
        services: Any = None,
        name: Any = None,
        executor: Executor | dict[str, Executor] | None = None,
        resources: Mapping[str, float] | None = None,
        silence_logs: int | str | None = None,
        death_timeout: Any = None,
        preload: Any = None,
        preload_argv: Any = None,
        security: Security | dict[str, Any] | None = None,
        contact_address: str | None = None,
        heartbeat_interval: Any = "1s",
        extensions: Any = None,
        metrics: Mapping[str, Any] = {},
        startup_information: Mapping[str, Any] = {},
        interface: str | None = None,
        host: str | None = None,
        port: Any = None,
        protocol: str | None = None,
        dashboard_address: str | None = None,
        dashboard: bool = False,
        http_prefix: str = "/",
        nanny: str | None = None,
        plugins: Collection[Any] = (),
        low_level_profiler: bool | None = None,
        validate: bool | None = None,
        profile_cycle_interval: Any = None,
        lifetime: Any = None,
        lifetime_stagger: Any = None,
        lifetime_restart: bool | None = None,
        transition_counter_max: Any = False,
        memory_limit: Any = "auto",
        data: Any = None,
        scheduler_sni: str | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.pop("blocked_handlers", None)
        if kwargs:
            raise TypeError(f"Worker got unexpected keyword arguments {sorted(kwargs)}")
        if isinstance(security, dict):
            security = Security(**security)
        self.security = security or Security()
        if scheduler_file:
            scheduler_addr = self._address_from_file(scheduler_file)
        elif scheduler_ip is None and dask.config.get("scheduler-address", None):
            scheduler_addr = dask.config.get("scheduler-address")
        elif scheduler_ip is None:
            raise ValueError(
                "Worker needs the scheduler's address: pass it, or scheduler_file=, or set scheduler-address"
            )
        elif scheduler_port is None:
            scheduler_addr = scheduler_ip
        else:
            scheduler_addr = unparse_host_port(scheduler_ip, scheduler_port)
        self.scheduler_address = normalize_address(scheduler_addr)
        self.nthreads = nthreads or CPU_COUNT
        if self.nthreads < 1:
            raise ValueError(f"nthreads must be at least 1, got {nthreads}")
        self.name = name
        self.nanny = nanny
        self.memory_limit = parse_memory_limit(memory_limit, self.nthreads)
        self.resources = dict(
            resources if resources is not None else dask.config.get("distributed.worker.resources")
        )
        self.death_timeout = parse_timedelta(death_timeout, "s") if death_timeout else None
        self.contact_address = contact_address
        self.heartbeat_interval = parse_timedelta(heartbeat_interval, "ms")
        self.user_metrics = dict(metrics)
        self.startup_information = dict(startup_information)
        self.machine = WorkerMachine(
            worker_settings(validate, self.memory_limit),
            nthreads=self.nthreads,
            resources=self.resources,
            seed=uuid.uuid4().int & 0xFFFF_FFFF,
        )
        #: key -> value
        self.data: Any = data() if callable(data) else {} if data is None else data
        #: the same, if results may go to disk
        self._spill: SpillBuffer | None = None
        self._may_spill = data is None
        self._process = psutil.Process()
        self.memory_manager = MemoryManager(
            MemorySettings.from_config(),
            self.memory_limit,
            measure=lambda: int(self._process.memory_info().rss),
            pause=self._pause_for_memory,
            resume=self._resume_from_memory,
        )
        self.functions = FunctionTable()
        self.threads: TaskThreads | None = None
        self.stream = Stream()
        self._outbox: Outbox | None = None
        self.executors: dict[str, Executor] = {}
        if isinstance(executor, Executor):
            self.executors["default"] = executor
        elif executor is not None:
            self.executors.update(executor)
        self.plugins: dict[str, Any] = {}
        self._initial_plugins = list(plugins)
        self.extensions: dict[str, Any] = {}
        self.services: dict[str, int] = {}
        self.bandwidth = float(parse_bytes(100_000_000))
        #: seconds to add to our clock to get the scheduler's
        self.scheduler_delay = 0.0
        self.log_events: dict[str, Any] = {}
        self._client: Any = None
        self._client_lock = threading.Lock()
        self._deadline: asyncio.TimerHandle | None = None
        self._async_tasks: dict[Key, asyncio.Task[None]] = {}
        self._local_directory_arg = local_directory
        self.local_directory = ""
        self._owns_directory = False
        self._start_args = (host, port, interface, protocol)
        preload = preload if preload is not None else dask.config.get("distributed.worker.preload")
        self.preloads = process_preloads(
            self,
            preload,
            preload_argv if preload_argv is not None else dask.config.get("distributed.worker.preload-argv"),
        )
        super().__init__(
            blocked_handlers=None,
            connection_args=self.security.get_connection_args("worker"),
            timeout=self.death_timeout,
            loop=loop,
        )
        self.handlers.update(self.request_handlers())
        self.stream_handlers.update(self.scheduler_stream_handlers())
        Worker._instances.add(self)

    @staticmethod
    def _address_from_file(path: str) -> str:
        try:
            return str(json.loads(Path(path).read_text())["address"])
        except (OSError, json.JSONDecodeError, KeyError) as exc:
            raise ValueError(f"cannot read the scheduler's address from {path!r}: {exc}") from exc

    # --- views ---------------------------------------------------------------------------------------------

    @property
    def state(self) -> WorkerMachine:
        """The machine: ``tasks``, ``nthreads``, ``ready``, ``executing``, ``available_resources``, ..."""
        return self.machine

    @property
    def worker_address(self) -> str:
        """Same as `address`."""
        return self.address

    @property
    def scheduler(self) -> Any:
        """Remote calls to the scheduler."""
        return self.rpc(self.scheduler_address)

    def identity(self) -> dict[str, Any]:
        return {
            "type": type(self).__name__,
            "id": self.id,
            "scheduler": self.scheduler_address,
            "nthreads": self.nthreads,
            "memory_limit": self.memory_limit,
        }

    # --- the machine ---------------------------------------------------------------------------------------

    def deliver(self, event: ev.Event) -> None:  # type: ignore[override]
        """Give one event to the machine and do what follows."""
        self.machine.feed(event, now=monotonic())
        self._carry_out()

    def deliver_all(self, events: Collection[ev.Event]) -> None:  # type: ignore[override]
        """The same for a burst."""
        now = monotonic()
        feed = self.machine.feed
        for event in events:
            feed(event, now=now)
        self._carry_out()

    def _carry_out(self) -> None:
        machine = self.machine
        out = machine.settle()
        outbox = self._outbox
        for item in out:
            kind = type(item)
            if kind is ins.Execute:
                self._execute(item)  # type: ignore[arg-type]
            elif kind is ins.DropData:
                self._drop_values(item.keys)  # type: ignore[union-attr]
            elif kind is ins.GatherData:
                self.run_in_background(self._gather(item), name=f"gather from {item.worker}")  # type: ignore[union-attr,arg-type]
            elif outbox is not None and not self.stream.closed():
                outbox.send(item, machine.stimulus_id)
        if machine.missing or machine.busy_until:
            self._set_deadline()

    def _set_deadline(self) -> None:
        if self._deadline is not None:
            return
        due = self.machine.next_deadline()
        if due is not None:
            self._deadline = asyncio.get_running_loop().call_later(
                max(due - monotonic(), 0), self._on_deadline
            )

    def _on_deadline(self) -> None:
        self._deadline = None
        if self.status not in (Status.closing, Status.closed):
            self.deliver(ev.DeadlineReached(f"deadline-{time()}"))

    # --- executing -----------------------------------------------------------------------------------------

    def _execute(self, item: ins.Execute) -> None:
        deps = item.deps
        if not deps:
            self._start(item, None)
        elif self._spill is None:
            data = self.data
            self._start(item, {dep: data[dep] for dep in deps})
        elif (values := self._spill.get_now(deps)) is not None:
            self._start(item, values)
        else:
            self.run_in_background(self._restore_and_start(item), name=f"restore inputs of {item.key}")

    async def _restore_and_start(self, item: ins.Execute) -> None:
        """Some inputs are on disk."""
        assert self._spill is not None, "inputs are on disk where there is one"
        try:
            values = await self._spill.get_many(item.deps or ())
        except Exception as exc:  # the file cannot be read, or the value not be unpickled
            self._fail_later(item.key, item.run_id, exc)
            return
        missing = [dep for dep in item.deps or () if dep not in values]
        if missing:
            # freed meanwhile, as the task will have been
            self._fail_later(
                item.key, item.run_id, KeyError(f"inputs were freed while they were read: {missing}")
            )
        elif self.status not in (Status.closing, Status.closed):
            self._start(item, values)

    def _start(self, item: ins.Execute, values: dict[Key, Any] | None) -> None:
        """Give a task to who runs it."""
        key, run_id, spec, _, actor, annotations = item
        executor = annotations.get("executor", "default") if annotations else "default"
        if actor:
            self._fail_later(key, run_id, NotImplementedError("actors are not available in this release"))
        elif executor == "default" and "default" not in self.executors:
            assert self.threads is not None, "threads are made before tasks arrive"
            self.threads.offer(key, run_id, spec, values)
        elif executor in ("offload", "actor") and executor not in self.executors:
            self._execute_in(get_offload_executor(), key, run_id, spec, values)
        elif executor in self.executors:
            self._execute_in(self.executors[executor], key, run_id, spec, values)
        else:
            self._fail_later(
                key,
                run_id,
                ValueError(
                    f"Invalid executor {executor!r}; expected one of: {sorted({'default', 'offload', *self.executors})}"
                ),
            )

    def _fail_later(self, key: Key, run_id: int, exc: Exception) -> None:
        """Report an error in an iteration of its own: the machine is in the middle of something."""
        now = time()
        assert self.threads is not None, "threads are made before tasks arrive"
        self.threads.post(key, failed(key, run_id, exc, now, now))

    def _execute_in(self, executor: Executor, key: Key, run_id: int, spec: Any, values: Any) -> None:
        """Run a task on another executor, possibly in another process."""
        if isinstance(executor, ThreadPoolExecutor):
            future = executor.submit(self._run_offer, Offer(key, run_id, spec, values, -1))
            future.add_done_callback(lambda f: self._post_result(key, run_id, f, 0.0))
            return
        start = time()
        try:
            function = self.functions.pickle_of(spec[0]) if type(spec) is tuple else None
            future = executor.submit(run_elsewhere, function, spec, values or {})
        except Exception as exc:  # a broken pool, or what cannot be pickled
            self._fail_later(key, run_id, exc)
            return
        future.add_done_callback(lambda f: self._post_result(key, run_id, f, start))

    def _post_result(self, key: Key, run_id: int, future: Any, start: float) -> None:
        assert self.threads is not None, "threads are made before tasks arrive"
        exc = future.exception()
        now = time()
        if exc is not None:
            self.threads.post(key, failed(key, run_id, exc, start or now, now))
            return
        value = future.result()
        if start:
            value = (succeeded(key, run_id, value, start, now), value)
        self.threads.post(key, value)

    def _start_thread(self) -> None:
        current_worker.set(self)

    def _run_offer(self, offer: Offer) -> Any:
        """In a thread: run a task. Returns (report, value), or the report of a failure."""
        key, run_id = offer.key, offer.run_id
        start = time()
        thread_state.key = key
        thread_state.start_time = start
        thread_state.execution_state = self
        try:
            call = prepare(offer.spec, offer.values, self.functions)
            if call.is_coroutine:
                return CoroutineCall(key, run_id, call)
            start = time()
            value = call()
            stop = time()
            return (succeeded(key, run_id, value, start, stop), value)
        except Reschedule:
            return ev.ExecutionRescheduled(key, run_id)
        except (SystemExit, KeyboardInterrupt) as exc:
            logger.error("Task %r asked the worker to end: %r", key, exc)
            self.loop.add_callback(partial(self._exit_after, exc))
            return failed(key, run_id, exc, start, time())
        except BaseException as exc:  # user code
            return failed(key, run_id, exc, start, time())
        finally:
            del thread_state.key, thread_state.start_time, thread_state.execution_state

    async def _exit_after(self, exc: BaseException) -> None:
        await self.close(reason=f"task-raised-{type(exc).__name__}")
        if self.nanny:
            os._exit(1)

    def _finish_tasks(self, results: list[Any]) -> None:
        """On the loop: results of a burst, from threads and coroutines."""
        events: list[ev.Event] = []
        data, spill = self.data, self._spill
        for result in results:
            if type(result) is tuple:
                report, value = result
                if spill is None:
                    data[report.key] = value
                else:
                    spill.store(report.key, value, report.nbytes)
                events.append(report)
            elif type(result) is CoroutineCall:
                self._async_tasks[result.key] = asyncio.ensure_future(self._run_coroutine(result))
            else:
                if type(result) is ev.ExecutionFailed:
                    logger.debug("Task %r failed: %s", result.key, result.exception_text)
                events.append(result)
        self.machine.stimulus_id = "task-finished"
        if events and self.status not in (Status.closed,):
            mine = begin_batch()
            try:
                self.deliver_all(events)
            finally:
                if mine:
                    end_batch()

    async def _run_coroutine(self, item: CoroutineCall) -> None:
        """On the loop: a task that is a coroutine function."""
        key, run_id = item.key, item.run_id
        current_worker.set(self)
        current_key.set(key)
        start = time()
        result: Any
        try:
            value = await item.call()
            result = (succeeded(key, run_id, value, start, time()), value)
        except Reschedule:
            result = ev.ExecutionRescheduled(key, run_id)
        except asyncio.CancelledError as exc:
            if self.status in (Status.closing, Status.closed):
                raise
            result = failed(key, run_id, exc, start, time())
        except Exception as exc:  # user code
            result = failed(key, run_id, exc, start, time())
        finally:
            self._async_tasks.pop(key, None)
        self._finish_tasks([result])

    async def _gather(self, item: ins.GatherData) -> None:
        event = await self.fetch(item.worker, item.keys)
        if self.status not in (Status.closing, Status.closed):
            self.deliver(event)

    # --- life ----------------------------------------------------------------------------------------------

    async def start_unsafe(self) -> Any:
        await super().start_unsafe()
        self.log_buffer = LogBuffer(dask.config.get("distributed.admin.log-length") or 10_000)
        logger.addHandler(self.log_buffer)
        self._make_directory()
        if self._may_spill and self.memory_manager.spills:
            self.data = self._spill = self.memory_manager.make_data(self.local_directory)
        self.threads = TaskThreads(
            self.nthreads,
            self._run_offer,
            self._finish_tasks,
            self._start_thread,
            name="Dask-Default-Threads",
        )
        host, port, interface, protocol = self._start_args
        for candidate in self._candidate_ports(port):
            address = address_from_user_args(
                host=host,
                port=candidate,
                interface=interface,
                protocol=protocol or self.scheduler_address.split("://")[0],
                peer=None if host or interface else self.scheduler_address,
                security=self.security,
            )
            try:
                await self.listen(address, **self.security.get_listen_args("worker"))
                break
            except OSError as exc:
                if not isinstance(port, str) or ":" not in port:
                    raise
                error = exc
        else:
            raise ValueError(f"Could not start Worker on host {host!r} with port {port!r}: {error}")
        if self.contact_address:
            self._address = normalize_address(self.contact_address)
        if self.name is None:
            self.name = self.address
        self.machine.address = self.address
        for preload in self.preloads:
            await preload.start()
        for plugin in self._initial_plugins:
            await self.plugin_add(plugin=plugin)
        await self._register()
        self.start_periodic_callbacks()
        return self

    @staticmethod
    def _candidate_ports(port: Any) -> list[Any]:
        if isinstance(port, str):
            return list(parse_ports(port))
        return [port]

    def _make_directory(self) -> None:
        base = (
            self._local_directory_arg or dask.config.get("temporary-directory", None) or tempfile.gettempdir()
        )
        root = os.path.join(base, "dask-scratch-space")
        os.makedirs(root, exist_ok=True)
        self.local_directory = tempfile.mkdtemp(prefix="worker-", dir=root)
        self._owns_directory = True
        # uploaded modules are imported from here
        if self.local_directory not in sys.path:
            sys.path.insert(0, self.local_directory)

    async def _register(self) -> None:
        comm = await connect(
            self.scheduler_address,
            self.timeout,
            deserialize=False,
            **self.connection_args,
        )
        comm.name = "Worker->Scheduler"
        # what the scheduler relays may fail to unpickle: that must fail one task, not this stream
        comm.pickled = "opaque"
        start = time()
        await comm.write(
            {
                "op": "register-worker",
                "reply": False,
                "address": self.address,
                "status": Status.init.name,
                "nthreads": self.nthreads,
                "name": self.name,
                "now": start,
                "resources": self.resources,
                "memory_limit": self.memory_limit,
                "local_directory": self.local_directory,
                "services": self.services,
                "nanny": self.nanny,
                "pid": os.getpid(),
                "versions": get_versions(),
                "metrics": self.get_metrics(),
                "extra": self.startup(),
                "stimulus_id": f"worker-connect-{start}",
                "server_id": self.id,
            }
        )
        try:
            response = await comm.read()
        except CommClosedError as exc:
            raise CommClosedError(
                f"the scheduler {self.scheduler_address} closed the connection during registration: {exc}"
            ) from exc
        if response["status"] != "OK":
            await comm.close()
            raise ValueError(f"Unexpected response from register: {response.get('message', response)}")
        if response.get("warning"):
            logger.warning(response["warning"])
        self.scheduler_delay = response["time"] - (start + time()) / 2
        self._outbox = Outbox(self.stream, TASK_BATCHES in comm.extensions, lambda: self.scheduler_delay)
        self.stream.start(comm)
        # before there can be work, here or at peers that send to this worker
        for name, plugin in (response.get("worker-plugins") or {}).items():
            await self.plugin_add(plugin=plugin, name=name)
        self.status = Status.running
        self.machine.running = True
        self.stream.send(
            {"op": "worker-status-change", "status": "running", "stimulus_id": f"worker-startup-{time()}"}
        )
        logger.info("Worker at %s registered to %s", self.address, self.scheduler_address)
        self.run_in_background(self._follow_scheduler(comm), name="scheduler stream")
        self.run_in_background(self._heartbeats(), name="heartbeats")
        self.run_in_background(self._keep_alive(), name="keep-alive")
        self.run_in_background(self.memory_manager.run(), name="memory monitor")

    def startup(self) -> dict[str, Any]:
        """User-defined facts for the worker's identity."""
        facts = {}
        for name, function in self.startup_information.items():
            facts[name] = function(self)
        return facts

    async def _follow_scheduler(self, comm: Comm) -> None:
        try:
            await self.handle_stream(comm)
        except Exception:
            # the scheduler speaks of something that we do not know: going on would be guessing
            logger.exception("Cannot follow the scheduler's stream; the worker closes")
            asyncio.ensure_future(self.close(reason="worker-stream-error", nanny=False))
            return
        if self.status in (Status.running, Status.paused):
            logger.info(
                "Connection to scheduler broken. Closing without reporting. Status: %s", self.status.name
            )
            asyncio.ensure_future(self.close(reason="worker-connection-broken"))

    async def _keep_alive(self) -> None:
        while not self.stream.closed():
            await asyncio.sleep(KEEP_ALIVE_S)
            if not self.stream.closed():
                self.stream.send({"op": "keep-alive"})

    async def _heartbeats(self) -> None:
        interval = FIRST_HEARTBEAT_S
        while True:
            await asyncio.sleep(interval)
            start = time()
            try:
                reply = await self.scheduler.heartbeat_worker(
                    address=self.address,
                    now=start,
                    metrics=self.get_metrics(),
                    executing=self.executing_times(),
                    extensions={name: extension.heartbeat() for name, extension in self.extensions.items()},
                )
            except OSError:
                # the stream tells whether the scheduler is gone
                logger.debug("Heartbeat to the scheduler failed", exc_info=True)
                continue
            if reply["status"] == "missing":
                if self.status in (Status.running, Status.paused):
                    logger.error("Scheduler was unaware of this worker; shutting down.")
                    asyncio.ensure_future(self.close(reason="worker-heartbeat-missing"))
                return
            self.scheduler_delay = reply["time"] - (start + time()) / 2
            interval = reply["heartbeat-interval"]

    def on_worker_status_change(self, status: str, stimulus_id: str) -> None:
        if self.status in (Status.running, Status.paused, Status.closing_gracefully):
            self._change_status(Status[status], stimulus_id)
        else:
            self._tell_status(stimulus_id)

    def _change_status(self, status: Status, stimulus_id: str) -> None:
        """Take up or leave off starting tasks, and tell the scheduler."""
        self.status = status
        self.deliver(ev.Resumed(stimulus_id) if status == Status.running else ev.Paused(stimulus_id))
        self._tell_status(stimulus_id)

    def _tell_status(self, stimulus_id: str) -> None:
        self.stream.send(
            {"op": "worker-status-change", "status": self.status.name, "stimulus_id": stimulus_id}
        )

    def _pause_for_memory(self) -> None:
        if self.status == Status.running and not self.stream.closed():
            self._change_status(Status.paused, f"worker-memory-pause-{time()}")

    def _resume_from_memory(self) -> None:
        if self.status == Status.paused and not self.stream.closed():
            self._change_status(Status.running, f"worker-memory-resume-{time()}")

    def on_close(
        self, reason: str = "", timeout: float | None = None, executor_wait: bool = True, nanny: bool = True
    ) -> None:
        asyncio.ensure_future(
            self.close(reason=reason or "scheduler-close", executor_wait=executor_wait, nanny=nanny)
        )

    async def close_gracefully(self, restart: bool = False, reason: str = "worker-close-gracefully") -> None:
        """Have the scheduler move our data away, then close."""
        if self.status in (Status.closing, Status.closing_gracefully, Status.closed):
            return
        try:
            await self.scheduler.retire_workers(
                workers=[self.address], close_workers=False, remove=True, stimulus_id=f"{reason}-{time()}"
            )
        except OSError:
            logger.debug("The scheduler is gone: there is nobody to move data for")
        await self.close(nanny=not restart, reason=reason)

    async def close(
        self,
        timeout: float | None = None,
        executor_wait: bool = True,
        nanny: bool = True,
        reason: str = "worker-close",
    ) -> str | None:
        """Stop. Closing twice waits for the first.

        Parameters
        ----------
        nanny
            Tell the nanny not to start another worker.
        executor_wait
            Wait for tasks that run, at most `timeout` seconds.
        """
        if self.status in (Status.closing, Status.closed):
            await self.finished()
            return None
        if self.status == Status.init:
            await self._release_resources()
            await super().close(reason=reason)
            return "OK"
        logger.info("Stopping worker at %s. Reason: %s", self.address_safe, reason)
        self.status = Status.closing
        if nanny and self.nanny:
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(self.rpc(self.nanny).close_gracefully(reason=reason), 5)
        for preload in self.preloads:
            await preload.teardown()
        for name in list(self.plugins):
            await self.plugin_remove(name)
        for task in list(self._async_tasks.values()):
            task.cancel()
        if self._deadline is not None:
            self._deadline.cancel()
        if self._client is not None:
            client, self._client = self._client, None
            await client._close()
        if not self.stream.closed() and self.stream.comm is not None:
            self.stream.send(
                {"op": "worker-status-change", "status": "closing", "stimulus_id": f"worker-close-{time()}"}
            )
            self.stream.send({"op": "close-stream"})
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.stream.close(), 5)
        await self._release_resources()
        await super().close(timeout=timeout, reason=reason)
        return "OK"

    async def _release_resources(self) -> None:
        if self.log_buffer is not None:
            logger.removeHandler(self.log_buffer)
        if self._peer_pool is not None:
            await self._peer_pool.close()
        if self.threads is not None:
            self.threads.close()
        for executor in self.executors.values():
            executor.shutdown(wait=False)
        if self._spill is not None:
            self._spill.close()
        if self._owns_directory:
            with contextlib.suppress(ValueError):
                sys.path.remove(self.local_directory)
            shutil.rmtree(self.local_directory, ignore_errors=True)

    # --- for tasks and plugins -----------------------------------------------------------------------------

    def log_event(self, topic: Any, msg: Any) -> None:
        """Publish an event; from any thread."""
        message = {"op": "log-event", "topic": topic, "msg": msg}
        if threading.get_ident() == getattr(self.loop, "_thread_identity", None) or self._on_loop():
            self.stream.send(message)
        else:
            self.loop.add_callback(self.stream.send, message)

    def _on_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self.loop.asyncio_loop  # type: ignore[attr-defined]
        except RuntimeError:
            return False

    def get_current_task(self) -> Key:
        """Key of the task that the caller runs. ValueError outside tasks."""
        key = getattr(thread_state, "key", None)
        if key is None:
            key = current_key.get()
        if key is None:
            raise ValueError("not inside a task")
        return key

    def seceded(self, key: Key, duration: float) -> None:
        """On the loop: a task has left its slot."""
        self.deliver(ev.Seceded(key, duration))

    def get_metrics(self) -> dict[str, Any]:
        """What a heartbeat reports."""
        machine = self.machine
        spilled = 0 if self._spill is None else self._spill.spilled_memory
        out: dict[str, Any] = {
            "task_counts": self.task_counts(),
            "bandwidth": {"total": self.bandwidth, "workers": {}, "types": {}},
            "digests_total_since_heartbeat": {},
            "managed_bytes": machine.nbytes - spilled,
            "spilled_bytes": {
                "memory": spilled,
                "disk": 0 if self._spill is None else self._spill.spilled_disk,
            },
            "transfer": {
                "incoming_bytes": machine.inflight_bytes,
                "incoming_count": len(machine.in_flight_workers),
                "incoming_count_total": self.incoming_count,
                "outgoing_bytes": 0,
                "outgoing_count": self.outgoing_now,
                "outgoing_count_total": self.outgoing_count,
            },
            "event_loop_interval": 0.02,
            "cpu": self._process.cpu_percent(),
            "memory": self._process.memory_info().rss,
            "time": time(),
        }
        for name, metric in self.user_metrics.items():
            try:
                out[name] = metric(self)
            except Exception:  # user code
                logger.debug("The metric %r failed", name, exc_info=True)
        return out

    def task_counts(self) -> dict[str, int]:
        """Tasks per state, the common states only."""
        machine = self.machine
        on_disk = 0 if self._spill is None else len(self._spill.on_disk())
        return {
            "executing": len(machine.executing),
            "long-running": len(machine.long_running),
            "missing": len(machine.missing),
            "memory": len(self.data) - on_disk,
            **({"disk": on_disk} if on_disk else {}),
        }

    def executing_times(self) -> dict[Key, float]:
        """Running tasks and how long they have been running, seconds."""
        if self.threads is None:
            return {}
        now = time()
        return {key: now - start for key, (_, start) in list(self.threads.active.items())}
