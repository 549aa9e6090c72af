"""The worker's process: how it is started, what it runs, how its end is noticed.

Parent and child hold the ends of a pipe: the child reports through it, and ends by itself when the parent's end closes, so it never outlives its nanny.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

import dask.config

from distributed.config import get_loop_factory, initialize_logging
from distributed.core import Status
from distributed.utils import set_quietness
from distributed.worker import Worker

logger = logging.getLogger("distributed.nanny")

#: how long a worker may take to stop in order before it is killed, seconds
TERMINATE_TIMEOUT_S = 5.0


class WorkerProcess:
    """One run of a worker in a child process."""

    def __init__(
        self,
        worker_class: type[Worker],
        worker_args: tuple[Any, ...],
        worker_kwargs: dict[str, Any],
        env: Mapping[str, str],
        pre_spawn_env: Mapping[str, str],
        config: dict[str, Any],
        on_exit: Callable[[WorkerProcess, int | None], None],
    ) -> None:
        self.status = Status.init
        self.worker_address: str | None = None
        self._on_exit = on_exit
        self._pre_spawn_env = dict(pre_spawn_env)
        context = multiprocessing.get_context(dask.config.get("distributed.worker.multiprocessing-method"))
        self._pipe, child_pipe = context.Pipe(duplex=True)
        self._child_pipe = child_pipe
        # the child inherits our end too where processes are forked: it closes it first
        self.process: Any = context.Process(
            target=_run_worker,
            name="Dask Worker process (from Nanny)",
            args=(worker_class, worker_args, worker_kwargs, dict(env), config, child_pipe),
            daemon=bool(dask.config.get("distributed.worker.daemon")),
        )
        self.exited: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()

    async def start(self) -> str:
        """Start the process; the worker's address when it runs.

        Raises
        ------
        Exception
            What the worker raised when it started.
        RuntimeError
            The process ended instead.
        """
        self.status = Status.starting
        await self._loop.run_in_executor(None, self._start_process)
        self._child_pipe.close()
        threading.Thread(target=self._join, name="Dask-Nanny-Watch", daemon=True).start()
        try:
            message = await self._loop.run_in_executor(None, self._receive)
        except EOFError:
            self.status = Status.failed
            code = await asyncio.wait_for(asyncio.shield(self.exited), TERMINATE_TIMEOUT_S)
            raise RuntimeError(
                f"the worker's process ended while it started, with exit code {code}"
            ) from None
        if "exception" in message:
            self.status = Status.failed
            raise message["exception"]
        self.worker_address = message["address"]
        self.status = Status.running
        return str(self.worker_address)

    def _start_process(self) -> None:
        saved = {name: os.environ.get(name) for name in self._pre_spawn_env}
        # read when the interpreter or a library is loaded: it must be there before
        with _spawn_lock:
            os.environ.update(self._pre_spawn_env)
            try:
                self.process.start()
            finally:
                for name, value in saved.items():
                    if value is None:
                        os.environ.pop(name, None)
                    else:
                        os.environ[name] = value

    def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = self._pipe.recv()
        return message

    def _join(self) -> None:
        self.process.join()
        code = self.process.exitcode
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is interested any more
            self._loop.call_soon_threadsafe(self._exited, code)

    def _exited(self, code: int | None) -> None:
        self.status = Status.stopped if self.status != Status.failed else Status.failed
        with contextlib.suppress(OSError):
            self._pipe.close()
        if not self.exited.done():
            self.exited.set_result(code)
        self._on_exit(self, code)

    @property
    def pid(self) -> int | None:
        """Process id, once started."""
        return None if self.process is None else self.process.pid

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self.status in (Status.starting, Status.running, Status.stopping) and self.process.is_alive()

    def kill(self) -> None:
        """End the process at once, if there is one."""
        if not self.exited.done() and self.process.pid is not None:
            self.process.kill()

    async def stop(self, timeout: float = TERMINATE_TIMEOUT_S, reason: str = "nanny-kill") -> None:
        """Ask the worker to stop; kill the process if it does not in time."""
        if self.exited.done() or self.process.pid is None:
            return
        self.status = Status.stopping
        with contextlib.suppress(OSError, ValueError):  # it went first
            self._pipe.send({"op": "stop", "timeout": timeout, "reason": reason})
        try:
            await asyncio.wait_for(asyncio.shield(self.exited), timeout)
        except TimeoutError:
            logger.warning("Worker process %s still alive after %s seconds, killing", self.pid, timeout)
            self.process.kill()
            await self.exited


_spawn_lock = threading.Lock()


def _run_worker(
    worker_class: type[Worker],
    worker_args: tuple[Any, ...],
    worker_kwargs: dict[str, Any],
    env: dict[str, str],
    config: dict[str, Any],
    pipe: Any,
) -> None:
    """In the child: run one worker until it ends or the parent does."""
    os.environ.update(env)
    dask.config.refresh()
    dask.config.set(config)
    initialize_logging(dask.config.config)
    if worker_kwargs.get("silence_logs"):
        set_quietness(worker_kwargs["silence_logs"])
    # Ctrl-C goes to the whole group: the nanny decides what becomes of us
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        worker: Worker | None = None
        stop: asyncio.Future[Any] = loop.create_future()

        def set_stop(message: dict[str, Any]) -> None:
            if not stop.done():
                stop.set_result(message)

        def watch_parent() -> None:
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                message = {"timeout": 1.0, "reason": "nanny-died"}
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(set_stop, message)

        threading.Thread(target=watch_parent, name="Dask-Parent-Watch", daemon=True).start()
        try:
            worker = worker_class(*worker_args, **worker_kwargs)
            await worker
        except Exception as exc:  # whatever a worker class does when it starts
            pipe.send({"exception": _picklable(exc)})
            return
        pipe.send({"address": worker.address})
        finished: asyncio.Future[Any] = asyncio.ensure_future(worker.finished())
        await asyncio.wait([finished, stop], return_when=asyncio.FIRST_COMPLETED)
        if not finished.done():
            message = stop.result()
            await worker.close(
                nanny=False, reason=message.get("reason", "nanny-stop"), timeout=message.get("timeout")
            )

    with asyncio.Runner(loop_factory=get_loop_factory()) as runner:
        runner.run(main())
    # threads of tasks that still run must not keep the process alive
    logging.shutdown()
    os._exit(0)


def _picklable(exc: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(exc))
    except Exception:  # any exception class may refuse
        return RuntimeError(repr(exc))
    return exc
