"""The worker's passive state: tasks that run here or whose data is needed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Key = Any

NONE: frozenset[Any] = frozenset()


class TaskState:
    """A task on this worker: one to run, or data that one needs."""

    __slots__ = (
        "_hash",
        "actor",
        "annotations",
        "coming_from",
        "dependencies",
        "dependents",
        "failure",
        "key",
        "nbytes",
        "next",
        "previous",
        "priority",
        "resources",
        "result",
        "run_id",
        "run_spec",
        "state",
        "waiting_for",
        "who_has",
    )

    def __init__(self, key: Key) -> None:
        self.key = key
        self._hash = hash(key)
        self.state = "released"
        #: what goes on while the state is cancelled or resumed: executing, long-running or flight
        self.previous: str | None = None
        #: what is wanted when that ends, in the state resumed: fetch or waiting
        self.next: str | None = None
        self.run_id = -1
        self.run_spec: Any = None
        self.priority: tuple[float, ...] = ()
        self.dependencies: frozenset[TaskState] | set[TaskState] = NONE
        self.dependents: frozenset[TaskState] | set[TaskState] = NONE
        #: dependencies that are not in memory here
        self.waiting_for: frozenset[TaskState] | set[TaskState] = NONE
        self.who_has: frozenset[str] | set[str] = NONE
        self.coming_from: str | None = None
        self.resources: Mapping[str, float] | None = None
        self.annotations: Mapping[str, Any] | None = None
        self.actor = False
        self.nbytes = 0
        #: the `Executed` or `ExecutionFailed` of the last execution here
        self.result: Any = None
        self.failure: Any = None

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        extra = (
            f"({self.previous}->{self.next})"
            if self.state == "resumed"
            else f"({self.previous})"
            if self.state == "cancelled"
            else ""
        )
        return f"<TaskState {self.key!r} {self.state}{extra}>"

    def get_nbytes(self) -> int:
        """Bytes, at least 1 KiB where unknown."""
        return self.nbytes if self.nbytes > 0 else 1024
