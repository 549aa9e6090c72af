"""``dask worker``: run one or more workers until they are stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

import click
import dask

from distributed._version import __version__
from distributed.cli.utils import run_until_signalled, tls_options, tls_security, write_pid_file
from distributed.comm import get_address_host_port
from distributed.deploy.utils import nprocesses_nthreads
from distributed.nanny import Nanny
from distributed.preloading import validate_preload_argv
from distributed.proctitle import enable_proctitle_on_children, enable_proctitle_on_current
from distributed.settings import connect_timeout
from distributed.system import CPU_COUNT
from distributed.utils import import_term, parse_ports, parse_timedelta, read_scheduler_file
from distributed.worker import Worker
from distributed.worker_memory import parse_memory_limit

logger = logging.getLogger("distributed.dask_worker")


def parse_resources(text: str | None) -> dict[str, float]:
    """``"GPU=2 MEM=10e9"``, separated by spaces or commas, as a dict; a click error names the bad part."""
    resources: dict[str, float] = {}
    for part in (text or "").replace(",", " ").split():
        name, sep, amount = part.partition("=")
        try:
            if not sep or not name:
                raise ValueError
            resources[name] = float(amount)
        except ValueError:
            raise click.BadParameter(
                f"{part!r} is not of the form NAME=AMOUNT", param_hint="--resources"
            ) from None
    return resources


def worker_count(text: str | None, nthreads: int) -> tuple[int, int]:
    """Number of workers and threads of each, from the two options."""
    if text == "auto":
        if nthreads:
            raise click.UsageError("--nthreads cannot be given together with --nworkers=auto")
        return nprocesses_nthreads()
    try:
        count = int(text) if text is not None else 1
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither a number nor 'auto'", param_hint="--nworkers"
        ) from None
    if count < 0:
        count = CPU_COUNT + 1 + count
    if count < 1:
        raise click.BadParameter(
            f"{text} leaves no worker on a machine with {CPU_COUNT} cores", param_hint="--nworkers"
        )
    return count, nthreads or max(1, CPU_COUNT // count)


def allocate_ports(
    worker_ports: str | None, nanny_ports: str | None, count: int, nanny: bool
) -> Iterator[tuple[Any, Any]]:
    """For each worker the ports that it and its nanny may use; ranges are dealt out without overlap."""
    workers = parse_ports(worker_ports)
    nannies = parse_ports(nanny_ports)
    if count == 1:
        yield worker_ports, nanny_ports
        return
    wanted = [port for port in workers if port]
    if wanted:
        if len(wanted) < count:
            raise click.UsageError(
                f"--worker-port {worker_ports} has {len(wanted)} ports, too few for {count} workers"
            )
        workers_dealt: list[Any] = _deal(wanted, count)
    else:
        workers_dealt = [None] * count
    wanted_nanny = [port for port in nannies if port and port not in wanted]
    if nanny and wanted_nanny:
        if len(wanted_nanny) < count:
            raise click.UsageError(
                f"--nanny-port {nanny_ports} leaves {len(wanted_nanny)} ports besides those of --worker-port, too few for {count} nannies"
            )
        nannies_dealt: list[Any] = _deal(wanted_nanny, count)
    else:
        nannies_dealt = [None] * count
    yield from zip(workers_dealt, nannies_dealt, strict=True)


def _deal(ports: list[int], count: int) -> list[str]:
    """Cut a list of consecutive ports into `count` ranges."""
    share, rest = divmod(len(ports), count)
    dealt, start = [], 0
    for i in range(count):
        end = start + share + (i < rest)
        part = ports[start:end]
        dealt.append(f"{part[0]}:{part[-1]}" if len(part) > 1 else str(part[0]))
        start = end
    return dealt


@click.command(name="worker", context_settings={"ignore_unknown_options": True})
@click.argument("scheduler", type=str, required=False)
@tls_options
@click.option(
    "--worker-port",
    default=None,
    help="Port to serve computations on, or a range first:last  [default: random]",
)
@click.option(
    "--nanny-port", default=None, help="Port to serve the nanny on, or a range first:last  [default: random]"
)
@click.option(
    "--dashboard-address",
    type=str,
    default=":0",
    show_default=True,
    help="Accepted; there is no HTTP server in this release",
)
@click.option(
    "--dashboard/--no-dashboard",
    "dashboard",
    default=True,
    help="Accepted; there is no HTTP server in this release",
)
@click.option(
    "--listen-address", type=str, default=None, help="The address to bind to, for example tcp://0.0.0.0:9000"
)
@click.option(
    "--contact-address",
    type=str,
    default=None,
    help="The address by which others reach the worker, for example tcp://127.0.0.1:9000",
)
@click.option(
    "--host", type=str, default=None, help="Serving host; by default the one that reaches the scheduler"
)
@click.option("--interface", type=str, default=None, help="Network interface, for example eth0 or ib0")
@click.option("--protocol", type=str, default=None, help="Protocol, for example tcp")
@click.option("--nthreads", type=int, default=0, help="Threads per worker  [default: cores / workers]")
@click.option(
    "--nworkers",
    type=str,
    default=None,
    help="Number of workers; negative: cores + 1 + it; 'auto' to split the machine  [default: 1]",
)
@click.option(
    "--name", type=str, default=None, help="Name of the worker; with several workers name-0, name-1, ..."
)
@click.option(
    "--memory-limit",
    default="auto",
    show_default=True,
    help="Memory per worker: bytes, size such as 5 GiB, fraction of the machine, auto, or 0 for none",
)
@click.option("--nanny/--no-nanny", default=True, help="Restart the worker when it dies  [default: nanny]")
@click.option("--pid-file", type=str, default="", help="File to write the process id to")
@click.option("--local-directory", default=None, type=str, help="Directory for the worker's files")
@click.option(
    "--resources", type=str, default=None, help="Resources for task constraints, for example 'GPU=2 MEM=10e9'"
)
@click.option(
    "--scheduler-file", type=str, default=None, help="File with the scheduler's connection information"
)
@click.option(
    "--death-timeout", type=str, default=None, help="Stop if the scheduler cannot be reached for this long"
)
@click.option("--dashboard-prefix", type=str, default=None, help="Deprecated, without effect")
@click.option("--lifetime", type=str, default=None, help="Accepted; without effect in this release")
@click.option("--lifetime-stagger", type=str, default=None, help="Accepted; without effect in this release")
@click.option(
    "--lifetime-restart/--no-lifetime-restart",
    "lifetime_restart",
    default=None,
    help="Accepted; without effect in this release",
)
@click.option(
    "--worker-class",
    type=str,
    default="dask.distributed.Worker",
    show_default=True,
    help="Class of the worker, as import string",
)
@click.option(
    "--preload",
    type=str,
    multiple=True,
    is_eager=True,
    help="Module, file, URL or text to run in the worker; may be repeated",
)
@click.argument("preload_argv", nargs=-1, type=click.UNPROCESSED, callback=validate_preload_argv)
@click.option("--preload-nanny", type=str, multiple=True, is_eager=True, help="As --preload, in the nanny")
@click.option("--scheduler-sni", type=str, default=None, help="Server name of the scheduler for TLS")
@click.version_option(__version__)
def main(
    scheduler: str | None,
    tls_ca_file: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    worker_port: str | None,
    nanny_port: str | None,
    dashboard_address: str,
    dashboard: bool,
    listen_address: str | None,
    contact_address: str | None,
    host: str | None,
    interface: str | None,
    protocol: str | None,
    nthreads: int,
    nworkers: str | None,
    name: str | None,
    memory_limit: str,
    nanny: bool,
    pid_file: str,
    local_directory: str | None,
    resources: str | None,
    scheduler_file: str | None,
    death_timeout: str | None,
    dashboard_prefix: str | None,
    lifetime: str | None,
    lifetime_stagger: str | None,
    lifetime_restart: bool | None,
    worker_class: str,
    preload: tuple[str, ...],
    preload_argv: tuple[str, ...],
    preload_nanny: tuple[str, ...],
    scheduler_sni: str | None,
) -> None:
    """Launch dask workers that connect to the scheduler at SCHEDULER."""
    count, nthreads = worker_count(nworkers, nthreads)
    if count > 1 and not nanny:
        _fail("Failed to launch worker. You cannot use the --no-nanny argument when nworkers > 1.")
    if contact_address and not listen_address:
        _fail("Failed to launch worker. Must specify --listen-address when --contact-address is given")
    if count > 1 and listen_address:
        _fail("Failed to launch worker. You cannot specify --listen-address when nworkers > 1.")
    if (worker_port or host) and listen_address:
        _fail(
            "Failed to launch worker. You cannot specify --listen-address when --worker-port or --host is given."
        )
    if listen_address:
        host_of_listen, port_of_listen = get_address_host_port(listen_address, strict=True)
        host, worker_port = host_of_listen, str(port_of_listen)
        protocol = listen_address.split("://")[0]
    if not (scheduler or scheduler_file or dask.config.get("scheduler-address", None)):
        raise ValueError("Need to provide scheduler address like\ndask worker SCHEDULER_ADDRESS:8786")
    try:
        memory = parse_memory_limit(memory_limit, nthreads)
    except ValueError as exc:
        raise click.BadParameter(str(exc), param_hint="--memory-limit") from exc
    try:
        cls = import_term(worker_class)
    except (ImportError, AttributeError) as exc:
        raise click.BadParameter(
            f"cannot import {worker_class!r}: {exc}", param_hint="--worker-class"
        ) from exc
    if not (isinstance(cls, type) and issubclass(cls, Worker)):
        raise click.BadParameter(f"{worker_class!r} is not a Worker class", param_hint="--worker-class")
    security = tls_security("worker", tls_ca_file, tls_cert, tls_key)
    if pid_file:
        write_pid_file(pid_file)
    enable_proctitle_on_current()
    enable_proctitle_on_children()

    common: dict[str, Any] = {
        "nthreads": nthreads,
        "local_directory": local_directory,
        "memory_limit": memory,
        "resources": parse_resources(resources) or None,
        "death_timeout": death_timeout,
        "preload": list(preload) or None,
        "preload_argv": list(preload_argv),
        "security": security,
        "contact_address": contact_address,
        "host": host,
        "interface": interface,
        "protocol": protocol,
        "dashboard": dashboard,
        "dashboard_address": dashboard_address,
        "lifetime": lifetime,
        "lifetime_stagger": lifetime_stagger,
        "lifetime_restart": lifetime_restart,
        "scheduler_sni": scheduler_sni,
    }
    common = {key: value for key, value in common.items() if value is not None}
    common["memory_limit"] = memory
    parsed_name: Any = name
    if name is not None and name.lstrip("-").isdigit():
        parsed_name = int(name)
    started = False

    async def start() -> list[Any]:
        nonlocal started
        address = scheduler
        if address is None and scheduler_file:
            # the scheduler may be about to write it
            patience = parse_timedelta(death_timeout, "s") if death_timeout else connect_timeout()
            address = await read_scheduler_file(scheduler_file, patience)
        servers: list[Any] = []
        for i, (port, port_of_nanny) in enumerate(allocate_ports(worker_port, nanny_port, count, nanny)):
            this_name = parsed_name if count == 1 or parsed_name is None else f"{parsed_name}-{i}"
            if nanny:
                server: Any = Nanny(
                    address,
                    worker_class=cls,
                    name=this_name,
                    port=port_of_nanny,
                    worker_port=port,
                    preload_nanny=list(preload_nanny) or None,
                    **common,
                )
            else:
                server = cls(address, name=this_name, port=port, **common)
            servers.append(server)
        try:
            await asyncio.gather(*servers)
        except BaseException:
            await asyncio.gather(*(server.close() for server in servers), return_exceptions=True)
            raise
        started = True
        return servers

    try:
        run_until_signalled(start, "Worker")
    except TimeoutError:
        if started:
            raise
        logger.info("Timed out starting worker")
        sys.exit(1)
    except OSError as exc:
        if started:
            raise
        _fail(f"Failed to launch worker: {exc}")
    finally:
        logger.info("End worker (pid %d)", os.getpid())


def _fail(text: str) -> None:
    logger.error(text)
    sys.exit(1)


if __name__ == "__main__":
    main()
