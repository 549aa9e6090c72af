"""What the command lines share: signals, pid files, parsing, the run loop."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import click
from tornado.ioloop import IOLoop

from distributed._signals import wait_for_signals
from distributed.config import get_loop_factory
from distributed.security import Security

logger = logging.getLogger("distributed.cli")

#: how long a process may take to stop after a signal, seconds; then it is ended
CLOSE_TIMEOUT_S = 20.0


def write_pid_file(path: str) -> None:
    """Write this process's pid; the file is removed at exit."""
    Path(path).write_text(str(os.getpid()))

    def remove() -> None:
        Path(path).unlink(missing_ok=True)

    atexit.register(remove)


def comma_list(value: str | None) -> Any:
    """None, one text, or the list that a comma-separated text stands for."""
    if value is None or value == "":
        return None
    parts = [part.strip() for part in value.split(",")]
    return parts[0] if len(parts) == 1 else parts


def parse_ports_option(value: str | None, option: str) -> Any:
    """None, a port, or a list of ports; a click error names the option."""
    parts = comma_list(value)
    if parts is None:
        return None
    try:
        if isinstance(parts, str):
            return int(parts)
        return [int(part) for part in parts]
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is not a port number, nor a comma-separated list of them", param_hint=option
        ) from None


PEM = click.Path(exists=True, resolve_path=True)


def tls_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The ``--tls-*`` options that scheduler and worker have alike."""
    later = "; the tls transport comes in a later release"
    for name, what in (
        ("--tls-key", "Private key"),
        ("--tls-cert", "Certificate"),
        ("--tls-ca-file", "CA certificates"),
    ):
        command = click.option(name, type=PEM, default=None, help=f"{what} for TLS (in PEM format){later}")(
            command
        )
    return command


def tls_security(role: str, ca_file: str | None, cert: str | None, key: str | None) -> Security:
    """The security settings that the ``--tls-*`` options of a role mean."""
    given = {"tls_ca_file": ca_file, f"tls_{role}_cert": cert, f"tls_{role}_key": key}
    fields: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return Security(**fields)


def run_until_signalled(start: Callable[[], Awaitable[list[Any]]], describe: str) -> None:
    """Run servers until they finish or the process gets SIGINT or SIGTERM; then close them.

    `start` creates and starts the servers inside the loop and returns them.
    """

    async def main() -> None:
        servers = await start()

        async def all_finished() -> None:
            await asyncio.gather(*(server.finished() for server in servers))

        finished = asyncio.create_task(all_finished())
        signalled = asyncio.create_task(wait_for_signals([signal.SIGINT, signal.SIGTERM]))
        await asyncio.wait([finished, signalled], return_when=asyncio.FIRST_COMPLETED)
        if signalled.done():
            signum = signalled.result()
            logger.info("%s received signal %s and stops", describe, signal.Signals(signum).name)
            closing = [asyncio.ensure_future(server.close(reason=f"signal-{signum}")) for server in servers]
            _, unfinished = await asyncio.wait(closing, timeout=CLOSE_TIMEOUT_S)
            if unfinished:
                logger.error("%s did not stop within %s s", describe, CLOSE_TIMEOUT_S)
        else:
            signalled.cancel()
        await asyncio.wait_for(finished, CLOSE_TIMEOUT_S)

    with asyncio.Runner(loop_factory=get_loop_factory()) as runner:
        runner.run(main())


def install_signal_handlers(
    loop: IOLoop | None = None, cleanup: Callable[[int], Awaitable[None]] | None = None
) -> None:
    """Stop an IOLoop on SIGINT and SIGTERM, after `cleanup(signum)`. For deployment packages; our own commands do not need it."""
    loop = loop or IOLoop.current()
    old: dict[int, Any] = {}

    def handle(signum: int, frame: Any) -> None:
        async def stop() -> None:
            try:
                if cleanup is not None:
                    await cleanup(signum)
            finally:
                loop.stop()

        loop.add_callback_from_signal(stop)
        # a second signal of the same kind gets the previous behaviour
        signal.signal(signum, old[signum])

    for signum in (signal.SIGINT, signal.SIGTERM):
        old[signum] = signal.signal(signum, handle)
