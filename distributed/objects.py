"""Replies of the scheduler as dicts that show themselves in notebooks."""

from __future__ import annotations

import html
from typing import Any

from dask.utils import format_bytes


class HasWhat(dict[str, Any]):
    """Worker address -> keys that it holds."""

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(str(worker))}</td><td>{len(keys)}</td></tr>"
            for worker, keys in sorted(self.items())
        )
        return f"<table><tr><th>Worker</th><th>Keys</th></tr>{rows}</table>"


class WhoHas(dict[Any, Any]):
    """Key -> addresses of its holders."""

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(str(key))}</td><td>{len(workers)}</td><td>{html.escape(', '.join(workers))}</td></tr>"
            for key, workers in sorted(self.items(), key=lambda item: str(item[0]))
        )
        return f"<table><tr><th>Key</th><th>Copies</th><th>Workers</th></tr>{rows}</table>"


class SchedulerInfo(dict[str, Any]):
    """The scheduler's identity with its workers."""

    def _repr_html_(self) -> str:
        workers = self.get("workers", {})
        rows = "".join(
            f"<tr><td>{html.escape(str(address))}</td><td>{html.escape(str(w.get('name')))}</td><td>{w.get('nthreads')}</td>"
            f"<td>{format_bytes(w['memory_limit']) if w.get('memory_limit') else ''}</td></tr>"
            for address, w in workers.items()
        )
        return (
            f"<h4>Scheduler {html.escape(str(self.get('address', '')))}</h4>"
            f"<table><tr><th>Worker</th><th>Name</th><th>Threads</th><th>Memory</th></tr>{rows}</table>"
        )
