"""``dask benchmark``: measure this package, alone or side by side with another one."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import click

from distributed._version import __version__
from distributed.benchmarks.compare import format_table, run_comparison, to_json
from distributed.benchmarks.sides import EXPERT_CONFIG, Side, SideError
from distributed.benchmarks.workloads import WORKLOADS, parse_workload

DEFAULT_WORKLOADS = (
    "map-10k",
    "map-gather-10k",
    "submit-5k",
    "latency-200",
    "chain-500",
    "tree-10k",
    "merge-10k",
    "numpy-20",
)


@click.command(name="benchmark")
@click.argument("workloads", nargs=-1)
@click.option(
    "--peer",
    type=click.Path(exists=True, dir_okay=False),
    default=None,
    help="Interpreter of an environment with another implementation, measured in turn with this one",
)
@click.option(
    "--peer-expert/--no-peer-expert",
    default=False,
    help="Measure the peer also at the settings an expert would choose for tiny tasks",
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Counted runs of each workload on each side",
)
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True, help="Worker processes")
@click.option("--nthreads", type=click.IntRange(1), default=1, show_default=True, help="Threads per worker")
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False),
    default=None,
    help="Write all figures to this file",
)
@click.version_option(__version__)
def main(
    workloads: tuple[str, ...],
    peer: str | None,
    peer_expert: bool,
    rounds: int,
    workers: int,
    nthreads: int,
    json_file: str | None,
) -> None:
    """Run WORKLOADS (default: all of the overhead group) and print a table.

    A workload may carry a size: map-10k, tree-1000. Scheduler, workers and client have processes of their own; CPU is process time.
    """
    chosen = workloads or DEFAULT_WORKLOADS
    for workload in chosen:
        try:
            parse_workload(workload)
        except ValueError as exc:
            raise click.BadParameter(str(exc), param_hint="WORKLOADS") from exc
    sides = [Side("ours", n_workers=workers, nthreads=nthreads)]
    if peer:
        sides.append(Side("peer", python=peer, n_workers=workers, nthreads=nthreads))
        if peer_expert:
            sides.append(
                Side("peer-expert", python=peer, config=EXPERT_CONFIG, n_workers=workers, nthreads=nthreads)
            )
    elif peer_expert:
        raise click.UsageError("--peer-expert needs --peer")
    try:
        with ExitStack() as stack:
            for side in sides:
                stack.enter_context(side)
            results = run_comparison(sides, chosen, rounds, progress=lambda text: click.echo(text, err=True))
    except SideError as exc:
        raise click.ClickException(str(exc)) from exc
    click.echo(", ".join(f"{side.name}: distributed {side.version}" for side in sides))
    click.echo(format_table(sides, results))
    if json_file:
        Path(json_file).write_text(json.dumps(to_json(sides, results), indent=1))


__all__ = ["DEFAULT_WORKLOADS", "WORKLOADS", "main"]

if __name__ == "__main__":
    main()
