"""`Nanny`: a server that runs a worker in a child process, starts it again when it dies, and stops with it when it is to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
import weakref
from collections.abc import Mapping
from typing import Any, ClassVar

import dask.config
from dask.utils import parse_timedelta
from tornado.ioloop import IOLoop

from distributed.comm import Comm, CommClosedError, address_from_user_args, connect, normalize_address
from distributed.core import Server, Status, error_message
from distributed.nanny.memory import NannyMemoryManager
from distributed.nanny.process import TERMINATE_TIMEOUT_S, WorkerProcess
from distributed.plugins import PluginHolder
from distributed.preloading import process_preloads
from distributed.requests import LogBuffer, run_user_function
from distributed.security import Security
from distributed.system import CPU_COUNT
from distributed.utils import import_term, parse_ports
from distributed.worker import Worker
from distributed.worker_memory import MemorySettings, parse_memory_limit

logger = logging.getLogger("distributed.nanny")

#: pause before a worker that dies at once is started again, seconds; doubles up to the maximum
RESTART_PAUSE_S = 0.1
RESTART_PAUSE_MAX_S = 10.0
#: a worker that lived for this long has started well, seconds
STEADY_S = 10.0


class Nanny(PluginHolder, Server):
    """Keeps a worker alive.

    Parameters
    ----------
    scheduler_ip, scheduler_port, scheduler_file
        Where the scheduler is.
    worker_port, nthreads, resources, memory_limit, worker_kwargs, ...
        For the worker.
    env
        Environment of the worker, on top of ``distributed.nanny.environ``.
    config
        dask configuration of the worker, on top of this process's.
    """

    plugin_kind = "nanny"
    _instances: ClassVar[weakref.WeakSet[Nanny]] = weakref.WeakSet()

    def __init__(
        self,
        scheduler_ip: str | None = None,
        scheduler_port: int | None = None,
        scheduler_file: str | None = None,
        worker_port: Any = 0,
        nthreads: int | None = None,
        loop: IOLoop | None = None,
        local_directory: str | None = None,
        services: Any = None,
        name: Any = None,
        memory_limit: Any = "auto",
        reconnect: bool = True,
        validate: bool = False,
        quiet: bool = False,
        resources: Mapping[str, float] | None = None,
        silence_logs: int | str | None = None,
        death_timeout: Any = None,
        preload: Any = None,
        preload_argv: Any = None,
        preload_nanny: Any = None,
        preload_nanny_argv: Any = None,
        security: Security | dict[str, Any] | None = None,
        contact_address: str | None = None,
        listen_address: str | None = None,
        worker_class: Any = None,
        env: Mapping[str, Any] | None = None,
        interface: str | None = None,
        host: str | None = None,
        port: Any = None,
        protocol: str | None = None,
        config: dict[str, Any] | None = None,
        **worker_kwargs: Any,
    ) -> None:
        if isinstance(security, dict):
            security = Security(**security)
        self.security = security or Security()
        self.nthreads = nthreads or CPU_COUNT
        self.name = name
        self.memory_limit = parse_memory_limit(memory_limit, self.nthreads)
        self.death_timeout = parse_timedelta(death_timeout, "s") if death_timeout else None
        self.worker_class: type[Worker] = (
            import_term(worker_class) if isinstance(worker_class, str) else worker_class or Worker
        )
        if scheduler_file:
            address = Worker._address_from_file(scheduler_file)
        elif scheduler_ip is None:
            address = dask.config.get("scheduler-address", None)
            if address is None:
                raise ValueError(
                    "Nanny needs the scheduler's address: pass it, or scheduler_file=, or set scheduler-address"
                )
        else:
            address = scheduler_ip if scheduler_port is None else f"{scheduler_ip}:{scheduler_port}"
        self.scheduler_addr = normalize_address(address)
        self._start_args = (host, port, interface, protocol)
        self.env = {
            **{key: str(value) for key, value in dask.config.get("distributed.nanny.environ").items()},
            **{key: str(value) for key, value in (env or {}).items()},
        }
        self.pre_spawn_env = {
            key: str(value)
            for key, value in dask.config.get("distributed.nanny.pre-spawn-environ").items()
            if value is not None
        }
        self.config = {**dask.config.config, **(config or {})}
        self.worker_kwargs = {
            "nthreads": self.nthreads,
            "name": name,
            "local_directory": local_directory,
            "resources": resources,
            "memory_limit": self.memory_limit if self.memory_limit is not None else 0,
            "silence_logs": silence_logs,
            "death_timeout": death_timeout,
            "preload": preload,
            "preload_argv": preload_argv,
            "security": self.security,
            "contact_address": contact_address,
            "host": host,
            "interface": interface,
            "protocol": protocol,
            "port": worker_port,
            "validate": validate or None,
            **worker_kwargs,
        }
        self.process: WorkerProcess | None = None
        self.memory_manager = NannyMemoryManager(
            MemorySettings.from_config(), self.memory_limit, lambda: self.pid, self._on_memory_exceeded
        )
        self.plugins: dict[str, Any] = {}
        self.auto_restart = True
        self._restart_pause = RESTART_PAUSE_S
        self._started_at = 0.0
        self._instantiate_lock = asyncio.Lock()
        self.log_buffer = LogBuffer(dask.config.get("distributed.admin.log-length") or 10_000)
        self.preloads = process_preloads(
            self,
            preload_nanny if preload_nanny is not None else dask.config.get("distributed.nanny.preload"),
            preload_nanny_argv
            if preload_nanny_argv is not None
            else dask.config.get("distributed.nanny.preload-argv"),
        )
        super().__init__(
            connection_args=self.security.get_connection_args("worker"),
            timeout=self.death_timeout,
            loop=loop,
        )
        self.handlers.update(
            {
                "instantiate": self.instantiate,
                "kill": self.kill,
                "restart": self.restart,
                "get_logs": self.get_logs,
                "terminate": self.terminate,
                "close_gracefully": self.close_gracefully,
                "run": self.run,
                "plugin_add": self.plugin_add,
                "plugin_remove": self.plugin_remove,
            }
        )
        Nanny._instances.add(self)

    @property
    def scheduler(self) -> Any:
        """Remote calls to the scheduler."""
        return self.rpc(self.scheduler_addr)

    @property
    def worker_address(self) -> str | None:
        """Address of the worker; None while there is none."""
        return None if self.process is None else self.process.worker_address

    @property
    def pid(self) -> int | None:
        """Process id of the worker."""
        return None if self.process is None else self.process.pid

    # --- life ----------------------------------------------------------------------------------------------

    async def start_unsafe(self) -> Any:
        await super().start_unsafe()
        logger.addHandler(self.log_buffer)
        host, port, interface, protocol = self._start_args
        candidates = list(parse_ports(port)) if isinstance(port, str) else [port]
        for i, candidate in enumerate(candidates):
            address = address_from_user_args(
                host=host,
                port=candidate,
                interface=interface,
                protocol=protocol or self.scheduler_addr.split("://")[0],
                peer=None if host or interface else self.scheduler_addr,
                security=self.security,
            )
            try:
                await self.listen(address, **self.security.get_listen_args("worker"))
                break
            except OSError:
                if i == len(candidates) - 1:
                    raise
        for preload in self.preloads:
            await preload.start()
        comm = await self._register()
        try:
            await self.instantiate()
        except BaseException:
            await self._report_start(comm, "error")
            raise
        await self._report_start(comm, "ok")
        if self.worker_address is None:
            raise RuntimeError("the worker did not start")
        self.run_in_background(self.memory_manager.run(), name="memory monitor")
        return self

    async def _register(self) -> Comm:
        """Tell the scheduler of us and set up the plugins that it has for nannies."""
        comm = await connect(self.scheduler_addr, self.timeout, **self.connection_args)
        comm.name = "Nanny->Scheduler (registration)"
        await comm.write({"op": "register_nanny", "address": self.address})
        reply = await comm.read()
        for name, plugin in (reply.get("nanny-plugins") or {}).items():
            await self.plugin_add(plugin=plugin, name=name)
        return comm

    @staticmethod
    async def _report_start(comm: Comm, status: str) -> None:
        with contextlib.suppress(CommClosedError):
            await comm.write({"status": status})
        await comm.close()

    async def instantiate(self) -> Status:
        """Start a worker."""
        async with self._instantiate_lock:
            if self.process is not None and self.process.is_alive():
                return self.process.status
            kwargs = {**self.worker_kwargs, "nanny": self.address}
            self.process = process = WorkerProcess(
                self.worker_class,
                (self.scheduler_addr,),
                {key: value for key, value in kwargs.items() if value is not None},
                self.env,
                self.pre_spawn_env,
                self.config,
                self._on_worker_exit,
            )
            self._started_at = asyncio.get_running_loop().time()
            try:
                await process.start()
            except BaseException:
                await process.stop(timeout=1, reason="nanny-instantiate-failed")
                raise
            logger.info("Nanny %r started a worker at %s", self.address, process.worker_address)
            return process.status

    def _on_memory_exceeded(self, memory: int) -> None:
        """The worker takes too much: end it at once. Whoever looks for the reason finds it among the events of its address."""
        process = self.process
        if process is None:
            return
        process.kill()
        self.run_in_background(
            self._report_event(
                process.worker_address,
                {
                    "action": "worker-memory-exceeded",
                    "memory": memory,
                    "memory_limit": self.memory_limit,
                    "pid": process.pid,
                },
            ),
            name="report memory",
        )

    async def _report_event(self, topic: str | None, msg: dict[str, Any]) -> None:
        if topic is not None:
            with contextlib.suppress(OSError):  # the scheduler has gone: nobody is left to read it
                await self.scheduler.log_event(topic=topic, msg=msg)

    def _on_worker_exit(self, process: WorkerProcess, code: int | None) -> None:
        """The worker's process has ended."""
        if process is not self.process or self.status in (Status.closing, Status.closed, Status.failed):
            return
        if self.status not in (Status.running, Status.closing_gracefully):
            # it is starting: whoever starts it sees the failure
            return
        if self.status == Status.closing_gracefully or not self.auto_restart:
            asyncio.ensure_future(self.close(reason="nanny-worker-gone"))
            return
        self.run_in_background(self._restart_after_death(process, code), name="restart worker")

    async def _restart_after_death(self, process: WorkerProcess, code: int | None) -> None:
        logger.warning("Worker process %s died with exit code %s; restarting", process.pid, code)
        if process.worker_address:
            with contextlib.suppress(OSError):
                await self.scheduler.unregister(
                    address=process.worker_address, stimulus_id=f"nanny-worker-died-{uuid.uuid4().hex[:8]}"
                )
        loop = asyncio.get_running_loop()
        while self.status == Status.running:
            if loop.time() - self._started_at > STEADY_S:
                self._restart_pause = RESTART_PAUSE_S
            else:
                await asyncio.sleep(self._restart_pause)
                self._restart_pause = min(2 * self._restart_pause, RESTART_PAUSE_MAX_S)
            try:
                await self.instantiate()
                return
            except Exception:
                logger.exception("Failed to restart the worker")

    async def kill(self, timeout: float = TERMINATE_TIMEOUT_S, reason: str = "nanny-kill") -> None:
        """Stop the worker; it is started again unless the nanny is closing."""
        process = self.process
        if process is None:
            return
        await process.stop(timeout=max(0, timeout * 0.8), reason=reason)

    async def restart(self, timeout: float = 30, reason: str = "nanny-restart") -> Any:
        """Stop the worker and start another: ``"OK"``, ``"timed out"`` or an error message."""

        async def again() -> None:
            await self.kill(reason=reason)
            await self.instantiate()

        try:
            await asyncio.wait_for(again(), timeout)
        except TimeoutError:
            logger.error("Restart timed out after %ss; returning before finished", timeout)
            return "timed out"
        except Exception as exc:  # whatever the worker does when it starts
            return error_message(exc)
        return "OK"

    def close_gracefully(self, reason: str = "nanny-close-gracefully") -> None:
        """The worker is about to end and is not to be started again; close with it."""
        self.status = Status.closing_gracefully

    async def terminate(self, timeout: float = 5, reason: str = "nanny-terminate") -> str:
        """Stop; answers first."""
        asyncio.ensure_future(self.close(timeout=timeout, reason=reason))
        return "OK"

    async def close(self, timeout: float | None = 5, *, reason: str = "nanny-close") -> str | None:
        """Stop the worker and this nanny. Closing twice waits for the first."""
        if self.status in (Status.closing, Status.closed):
            await self.finished()
            return "OK"
        logger.info("Closing Nanny at %r. Reason: %s", self.address_safe, reason)
        self.status = Status.closing
        for preload in self.preloads:
            await preload.teardown()
        for name in list(self.plugins):
            await self.plugin_remove(name)
        if self.process is not None:
            await self.process.stop(
                timeout=timeout if timeout is not None else TERMINATE_TIMEOUT_S, reason=reason
            )
        self.process = None
        await super().close(reason=reason)
        logger.removeHandler(self.log_buffer)
        return "OK"

    # --- requests ------------------------------------------------------------------------------------------

    def get_logs(self, start: float = 0, n: int | None = None, timestamps: bool = False) -> list[Any]:
        return self.log_buffer.latest(start, n, timestamps)

    async def run(self, function: bytes, args: Any = (), kwargs: Any = None, wait: bool = True) -> Any:
        """Run a function in this process."""
        return await run_user_function(self, "dask_worker", function, args, kwargs, wait)

    async def _plugin_is_set_up(self, name: str, plugin: Any) -> None:
        if getattr(plugin, "restart", False) and self.status == Status.running:
            await self.restart(reason=f"nanny-plugin-{name}-restart")
