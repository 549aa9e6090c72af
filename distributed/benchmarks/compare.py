"""Alternating measurements of several sides, and their report.

Sides take turns (A B A B ...) within one run, and a ratio is taken pair by pair, because the speed of a shared machine drifts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from distributed.benchmarks.sides import Measurement, Side
from distributed.benchmarks.workloads import parse_workload

ROLES = ("scheduler", "workers", "client")


def run_comparison(
    sides: Sequence[Side], workloads: Sequence[str], rounds: int, progress: Callable[[str], None]
) -> dict[str, dict[str, list[Measurement]]]:
    """Measure each workload `rounds` times on each side, in turn, after one uncounted run; ``live`` once, without one: give it a run of its own.

    Returns workload -> side name -> measurements, in order.
    """
    results: dict[str, dict[str, list[Measurement]]] = {}
    for workload in workloads:
        results[workload] = {side.name: [] for side in sides}
        # memory that is used again is not gained: only the first run of a process tells what live tasks cost
        first, last = (1, 1) if parse_workload(workload)[0] == "live" else (0, rounds)
        for i in range(first, last + 1):
            for side in sides:
                progress(f"{workload}: {'warm-up' if i == 0 else f'round {i} of {last}'}, {side.name}")
                measurement = side.measure(workload)
                if i:
                    results[workload][side.name].append(measurement)
    return results


def summarise(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """Medians of one side's measurements."""
    first = measurements[0]
    summary: dict[str, Any] = {
        "tasks": first.tasks,
        "tasks_per_s": statistics.median(m.rate for m in measurements),
        "wall_s": statistics.median(m.wall_s for m in measurements),
        "build_s": statistics.median(m.build_s for m in measurements),
        "cpu_us_per_task": {role: statistics.median(m.cpu_us[role] for m in measurements) for role in ROLES},
    }
    for key in first.extra:
        summary[key] = statistics.median(m.extra[key] for m in measurements)
    if "live" in first.extra:
        summary["rss_bytes_per_task"] = {
            role: statistics.median(m.rss_gain[role] / m.tasks for m in measurements) for role in ROLES
        }
    return summary


def ratios(
    ours: Sequence[Measurement], theirs: Sequence[Measurement]
) -> dict[str, tuple[float, float, float]]:
    """Median, minimum and maximum over the pairs: how many times faster, and how much less CPU, the first side is."""

    def spread(values: list[float]) -> tuple[float, float, float]:
        return statistics.median(values), min(values), max(values)

    pairs = list(zip(ours, theirs, strict=True))
    table = {"speed": spread([a.rate / b.rate for a, b in pairs])}
    for role in ROLES:
        # process times have a resolution of 10 ms; a figure of 0 would make the ratio meaningless
        table[f"{role} cpu"] = spread([b.cpu_us[role] / max(a.cpu_us[role], 1e4 / a.tasks) for a, b in pairs])
    if "p50_ms" in ours[0].extra:
        table["p50"] = spread([b.extra["p50_ms"] / a.extra["p50_ms"] for a, b in pairs])
    if "live" in ours[0].extra:
        table["scheduler rss"] = spread(
            [b.rss_gain["scheduler"] / max(a.rss_gain["scheduler"], 1) for a, b in pairs]
        )
    return table


def to_json(sides: Sequence[Side], results: dict[str, dict[str, list[Measurement]]]) -> dict[str, Any]:
    """Everything, for machines."""
    base = sides[0].name
    return {
        "sides": {side.name: {"version": side.version, "config": side.config} for side in sides},
        "workloads": {
            workload: {
                "summary": {name: summarise(measurements) for name, measurements in by_side.items()},
                "ratios": {
                    name: ratios(by_side[base], measurements)
                    for name, measurements in by_side.items()
                    if name != base
                },
            }
            for workload, by_side in results.items()
        },
    }


def format_table(sides: Sequence[Side], results: dict[str, dict[str, list[Measurement]]]) -> str:
    """Everything, for people: a Markdown table."""
    lines = [
        "| workload | side | tasks/s | scheduler us/task | workers us/task | client us/task | further |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    base = sides[0].name
    for workload, by_side in results.items():
        for name, measurements in by_side.items():
            s = summarise(measurements)
            cpu = s["cpu_us_per_task"]
            further = []
            if "p50_ms" in s:
                further.append(f"p50 {s['p50_ms']:.2f} ms, p99 {s['p99_ms']:.2f} ms")
            if "rss_bytes_per_task" in s:
                further.append(
                    "RSS/task " + ", ".join(f"{role} {s['rss_bytes_per_task'][role]:.0f} B" for role in ROLES)
                )
            if name != base:
                r = ratios(by_side[base], measurements)
                text = ", ".join(
                    f"{key} {median:.1f}x ({low:.1f}-{high:.1f})" for key, (median, low, high) in r.items()
                )
                further.append(f"**{base} is better by:** {text}")
            lines.append(
                f"| {workload} | {name} | {s['tasks_per_s']:,.0f} | {cpu['scheduler']:.1f} | {cpu['workers']:.1f} | {cpu['client']:.1f} | {'; '.join(further)} |"
            )
    return "\n".join(lines)
