"""``dask spec``: run any server from a JSON or YAML description."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click
import yaml

from distributed._version import __version__
from distributed.cli.utils import run_until_signalled
from distributed.deploy.spec import run_spec


@click.command(name="spec", context_settings={"ignore_unknown_options": True})
@click.argument("args", nargs=-1)
@click.option(
    "--spec",
    type=str,
    default="",
    help='JSON text such as {"cls": "dask.distributed.Worker", "opts": {"nthreads": 2}}',
)
@click.option("--spec-file", type=click.Path(exists=True), default=None, help="YAML file of the same content")
@click.version_option(__version__)
def main(args: tuple[str, ...], spec: str, spec_file: str | None) -> None:
    """Launch dask servers from a specification.

    ARGS are passed to each class, usually the scheduler's address.
    """
    if bool(spec) == bool(spec_file):
        print("Must specify exactly one of --spec and --spec-file")
        sys.exit(1)
    if spec_file:
        with open(spec_file) as f:
            content: Any = yaml.safe_load(f)
    else:
        try:
            content = json.loads(spec)
        except json.JSONDecodeError as exc:
            raise click.BadParameter(f"not valid JSON: {exc}", param_hint="--spec") from exc
    if not isinstance(content, dict):
        raise click.BadParameter(
            f"expected a mapping with 'cls' and 'opts', got {content!r}", param_hint="--spec"
        )
    if "cls" in content:
        content = {content.get("opts", {}).get("name", "server"): content}

    async def start() -> list[Any]:
        servers = await run_spec(content, *args)
        return list(servers.values())

    try:
        run_until_signalled(start, f"Servers of pid {os.getpid()}")
    except TimeoutError:
        click.echo("Timed out starting servers", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
