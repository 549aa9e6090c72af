"""``dask scheduler``: run a scheduler until it is stopped."""

from __future__ import annotations

import gc
import logging
import os
import sys
import warnings
from typing import Any

import click

from distributed._version import __version__
from distributed.cli.utils import (
    comma_list,
    parse_ports_option,
    run_until_signalled,
    tls_options,
    tls_security,
    write_pid_file,
)
from distributed.preloading import validate_preload_argv
from distributed.proctitle import enable_proctitle_on_children, enable_proctitle_on_current
from distributed.scheduler import Scheduler

logger = logging.getLogger("distributed.dask_scheduler")


def raise_open_file_limit() -> None:
    """Let the process open as many files as it is allowed to: each worker and client needs some."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else max(soft, 65536)
    if soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError) as exc:
            logger.debug("Cannot raise the limit of open files from %d to %d: %s", soft, wanted, exc)


@click.command(name="scheduler", context_settings={"ignore_unknown_options": True})
@click.option("--host", type=str, default="", help="URI, IP or hostname of this server")
@click.option(
    "--port", type=str, default=None, help="Serving port, or a comma-separated list of them  [default: 8786]"
)
@click.option(
    "--interface", type=str, default=None, help="Preferred network interface, for example eth0 or ib0"
)
@click.option(
    "--protocol", type=str, default=None, help="Protocol, for example tcp; a comma-separated list for several"
)
@tls_options
@click.option(
    "--dashboard-address",
    type=str,
    default=":8787",
    show_default=True,
    help="Accepted; there is no HTTP server in this release",
)
@click.option(
    "--dashboard/--no-dashboard",
    "dashboard",
    default=True,
    help="Accepted; there is no HTTP server in this release",
)
@click.option("--jupyter/--no-jupyter", default=False, help="Not available in this release")
@click.option("--show/--no-show", default=False, help="Deprecated, without effect")
@click.option(
    "--dashboard-prefix", type=str, default="", help="Accepted; there is no HTTP server in this release"
)
@click.option("--use-xheaders", type=bool, default=False, help="Deprecated, without effect")
@click.option("--pid-file", type=str, default="", help="File to write the process id to")
@click.option(
    "--scheduler-file",
    type=str,
    default="",
    help="File to write connection information to; share it with workers and clients",
)
@click.option(
    "--preload",
    type=str,
    multiple=True,
    is_eager=True,
    help="Module, file, URL or text to run in the process; may be repeated",
)
@click.argument("preload_argv", nargs=-1, type=click.UNPROCESSED, callback=validate_preload_argv)
@click.option(
    "--idle-timeout", type=str, default=None, help="Stop after this long without work, for example '1 hour'"
)
@click.version_option(__version__)
def main(
    host: str,
    port: str | None,
    interface: str | None,
    protocol: str | None,
    tls_ca_file: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    dashboard_address: str,
    dashboard: bool,
    jupyter: bool,
    show: bool,
    dashboard_prefix: str,
    use_xheaders: bool,
    pid_file: str,
    scheduler_file: str,
    preload: tuple[str, ...],
    preload_argv: tuple[str, ...],
    idle_timeout: str | None,
) -> None:
    """Launch a dask scheduler."""
    if jupyter:
        raise click.UsageError("--jupyter is not available in this release")
    if show or use_xheaders:
        warnings.warn("--show and --use-xheaders are deprecated and have no effect", stacklevel=2)
    ports = parse_ports_option(port, "--port")
    if ports is None and (not host or not host.rpartition(":")[2].isdigit()):
        ports = 8786
    protocols = comma_list(protocol)
    if isinstance(ports, list) != isinstance(protocols, list) and isinstance(ports, list):
        raise ValueError(
            f"--port lists {len(ports)} ports; --protocol must list as many protocols, got {protocol!r}"
        )
    if isinstance(ports, list) and len(ports) != len(protocols):
        raise ValueError(
            f"--port lists {len(ports)} ports and --protocol {len(protocols)} protocols; they must be as many"
        )
    security = tls_security("scheduler", tls_ca_file, tls_cert, tls_key)
    if not host and (tls_ca_file or tls_cert or tls_key):
        host = "tls://"
    if pid_file:
        write_pid_file(pid_file)
    raise_open_file_limit()
    enable_proctitle_on_current()
    enable_proctitle_on_children()
    # Many long-lived objects and few cycles: collections are rarely worth their pauses here.
    gen0, gen1, gen2 = gc.get_threshold()
    gc.set_threshold(gen0 * 3, gen1 * 3, gen2 * 3)

    scheduler: Scheduler | None = None

    async def start() -> list[Any]:
        nonlocal scheduler
        scheduler = Scheduler(
            host=comma_list(host) if "," in host else host,
            port=ports,
            interface=comma_list(interface),
            protocol=protocols,
            security=security,
            dashboard=dashboard,
            dashboard_address=dashboard_address,
            http_prefix=dashboard_prefix or "/",
            scheduler_file=scheduler_file or None,
            preload=list(preload) or None,
            preload_argv=list(preload_argv),
            idle_timeout=idle_timeout,
        )
        logger.info("-" * 47)
        await scheduler
        # what exists now stays: the collector need not look at it again
        gc.collect()
        gc.freeze()
        return [scheduler]

    try:
        run_until_signalled(start, "Scheduler")
    finally:
        if scheduler is not None:
            logger.info("Stopped scheduler at %r", scheduler.address_safe)
        logger.info("End scheduler (pid %d)", os.getpid())


if __name__ == "__main__":
    main()
