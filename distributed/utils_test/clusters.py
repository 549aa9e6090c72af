"""Clusters for tests: in this event loop (`gen_cluster`), or of processes (`cluster`)."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import inspect
import multiprocessing
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.config

from distributed.client import Client
from distributed.core import rpc
from distributed.nanny import Nanny
from distributed.scheduler import Scheduler
from distributed.utils_test.leaks import clean
from distributed.worker import Worker

#: dask's configuration as it was when the tests started
original_config: dict[str, Any] = copy.deepcopy(dask.config.config)

TEST_CONFIG = {
    "distributed.scheduler.validate": True,
    "distributed.worker.validate": True,
    "distributed.admin.low-level-log-length": 10_000,
    "distributed.comm.timeouts.connect": "5s",
}


def reset_config() -> None:
    """Put the configuration back."""
    dask.config.config.clear()
    dask.config.config.update(copy.deepcopy(original_config))


@contextlib.contextmanager
def config_for_cluster_tests(**extra: Any) -> Iterator[None]:
    """Inside, state is validated and logs are long."""
    reset_config()
    with dask.config.set({**TEST_CONFIG, **extra}):
        yield


def gen_test(
    timeout: float = 30, config: dict[str, Any] | None = None, clean_kwargs: dict[str, bool] | None = None
) -> Callable[[Any], Any]:
    """Decorator: run a coroutine function as a test, within `timeout` seconds, with leak checks."""

    def decorate(func: Any) -> Any:
        @functools.wraps(func)
        def test(*args: Any, **kwargs: Any) -> Any:
            async def main() -> Any:
                return await asyncio.wait_for(func(*args, **kwargs), timeout)

            with clean(**(clean_kwargs or {})), config_for_cluster_tests(**(config or {})):
                return asyncio.run(main())

        return test

    return decorate


async def start_cluster(
    nthreads: Any,
    scheduler_addr: str,
    worker_class: Any,
    scheduler_kwargs: dict[str, Any],
    worker_kwargs: dict[str, Any],
) -> tuple[Scheduler, list[Any]]:
    """A scheduler and workers in this loop."""
    scheduler = await Scheduler(host=scheduler_addr, port=0, dashboard=False, **scheduler_kwargs)
    workers = []
    for i, entry in enumerate(nthreads):
        address, threads, *rest = entry
        kwargs = {**worker_kwargs, **(rest[0] if rest else {})}
        host = address.split("://")[-1].split(":")[0]
        workers.append(worker_class(scheduler.address, nthreads=threads, name=i, host=host, **kwargs))
    await asyncio.gather(*workers)
    while len([w for w in scheduler.workers.values() if w.status == "running"]) < len(workers):
        await asyncio.sleep(0.01)
    return scheduler, workers


async def end_cluster(scheduler: Scheduler, workers: list[Any]) -> None:
    """Close them."""
    await asyncio.gather(*(w.close() for w in workers))
    await scheduler.close()


def gen_cluster(
    nthreads: Any = None,
    scheduler: str = "127.0.0.1",
    timeout: float = 30,
    security: Any = None,
    Worker: Any = Worker,
    client: bool = False,
    scheduler_kwargs: dict[str, Any] | None = None,
    worker_kwargs: dict[str, Any] | None = None,
    client_kwargs: dict[str, Any] | None = None,
    active_rpc_timeout: float = 1,
    config: dict[str, Any] | None = None,
    clean_kwargs: dict[str, bool] | None = None,
    allow_unclosed: bool = True,
) -> Callable[[Any], Any]:
    """Decorator: an async test gets ``(c,) s, a, b, ...``: a client if asked for, a scheduler and workers, all in its loop.

    `nthreads`: (host, threads) of each worker; default two workers with 1 and 2 threads.
    """
    shape = nthreads if nthreads is not None else [("127.0.0.1", 1), ("127.0.0.1", 2)]

    def decorate(func: Any) -> Any:
        if not inspect.iscoroutinefunction(func):
            raise TypeError("gen_cluster works for coroutine functions only")

        @functools.wraps(func)
        def test(*outer_args: Any, **kwargs: Any) -> Any:
            async def main() -> Any:
                s, workers = await start_cluster(
                    shape, scheduler, Worker, dict(scheduler_kwargs or {}), dict(worker_kwargs or {})
                )
                args: list[Any] = [s, *workers]
                c = None
                if client:
                    c = await Client(s.address, asynchronous=True, **(client_kwargs or {}))
                    args.insert(0, c)
                try:
                    return await asyncio.wait_for(func(*args, *outer_args, **kwargs), timeout)
                finally:
                    if c is not None:
                        await c._close()
                    await end_cluster(s, workers)

            with clean(**(clean_kwargs or {})), config_for_cluster_tests(**(config or {})):
                return asyncio.run(main())

        # pytest must not take the cluster's arguments for fixtures
        parameters = list(inspect.signature(func).parameters.values())
        count = 1 + len(shape) + bool(client)
        test.__signature__ = inspect.Signature(parameters[count:])  # type: ignore[attr-defined]
        return test

    return decorate


# --- clusters of processes -----------------------------------------------------------------------------------


def _serve(
    kind: str, pipe: Any, config: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    dask.config.set(config)
    cls = {"scheduler": Scheduler, "worker": Worker, "nanny": Nanny}[kind]

    async def main() -> None:
        try:
            server = await cls(*args, **kwargs)
        except Exception as exc:  # reported to the test
            pipe.send(repr(exc))
            return
        pipe.send({"address": server.address})
        await server.finished()

    asyncio.run(main())


def _start_process(kind: str, config: dict[str, Any], *args: Any, **kwargs: Any) -> tuple[Any, str]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_serve, args=(kind, theirs, config, args, kwargs), name=f"Dask cluster test: {kind}"
    )
    process.start()
    theirs.close()
    try:
        message = ours.recv()
    except EOFError:
        raise RuntimeError(f"the {kind} process ended while it started") from None
    finally:
        ours.close()
    if isinstance(message, str):
        process.join()
        raise RuntimeError(f"the {kind} did not start: {message}")
    return process, message["address"]


@contextlib.contextmanager
def cluster(
    nworkers: int = 2,
    nanny: bool = False,
    worker_kwargs: dict[str, Any] | None = None,
    active_rpc_timeout: float = 10,
    scheduler_kwargs: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """A scheduler and workers in processes of their own: ``({"address": ...}, [{"address": ..., "proc": ...}, ...])``."""
    settings = {**TEST_CONFIG, **(config or {})}
    processes: list[Any] = []
    with tempfile.TemporaryDirectory() as directory:
        try:
            process, address = _start_process(
                "scheduler", settings, host="127.0.0.1", port=0, **(scheduler_kwargs or {})
            )
            processes.append(process)
            workers = []
            for i in range(nworkers):
                process, worker_address = _start_process(
                    "nanny" if nanny else "worker",
                    settings,
                    address,
                    host="127.0.0.1",
                    name=i,
                    local_directory=directory,
                    **{"nthreads": 1, **(worker_kwargs or {})},
                )
                processes.append(process)
                workers.append({"address": worker_address, "proc": weakref.ref(process), "pid": process.pid})
            yield {"address": address}, workers
        finally:
            if processes:
                _terminate_scheduler(address)
            for process in processes:
                process.join(10)
                if process.is_alive():
                    process.terminate()
                    process.join(5)
                if process.is_alive():
                    process.kill()
                    process.join()


def _terminate_scheduler(address: str) -> None:
    async def terminate() -> None:
        async with rpc(address, timeout=2) as scheduler:
            await scheduler.terminate()

    with contextlib.suppress(OSError):
        asyncio.run(terminate())


@contextlib.contextmanager
def popen(
    args: list[str],
    capture_output: bool = False,
    terminate_timeout: float = 10,
    kill_timeout: float = 5,
    **kwargs: Any,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of this environment; end it when the body is done."""
    directory = Path(sys.executable).parent
    command = directory / args[0]
    if command.exists():
        args = [str(command), *args[1:]]
    if capture_output:
        kwargs.update(stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with subprocess.Popen(args, **kwargs) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.communicate(timeout=terminate_timeout)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.communicate(timeout=kill_timeout)
