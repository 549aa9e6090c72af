"""What the scheduler machine asks its shell to send. The shell groups them per peer, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Key = Any


class ComputeTask(NamedTuple):
    """Run a task. `deps`: (key, nbytes, holders' addresses), None without dependencies."""

    worker: str
    key: Key
    run_id: int
    priority: tuple[float, ...]
    spec: Any
    deps: Sequence[tuple[Key, int, tuple[str, ...]]] | None
    resource_restrictions: Mapping[str, float] | None
    actor: bool
    annotations: Mapping[str, Any] | None


class DefineFunction(NamedTuple):
    """Give a worker a function, before the first task that uses it."""

    worker: str
    id: int
    data: Any


class ForgetFunctions(NamedTuple):
    worker: str
    ids: tuple[int, ...]


class FreeKeys(NamedTuple):
    worker: str
    keys: tuple[Key, ...]


class RequestSteal(NamedTuple):
    """Ask a worker to give a task back that it has not started."""

    worker: str
    key: Key
    stimulus_id: str


class RemoveReplicas(NamedTuple):
    worker: str
    keys: tuple[Key, ...]


class RefreshWhoHas(NamedTuple):
    worker: str
    who_has: Mapping[Key, Sequence[str]]


class TellWorkerRemoved(NamedTuple):
    """Tell one worker that another is gone."""

    worker: str
    removed: str


class ReportInMemory(NamedTuple):
    client: str
    key: Key
    type_pickle: bytes | None
    #: the value itself in a tuple, if it came with the report of the worker
    inline: tuple[Any] | None = None


class ReportErred(NamedTuple):
    """Exception: an opaque payload, or an exception object made by the machine."""

    client: str
    key: Key
    exception: Any
    traceback: Any


class ReportLost(NamedTuple):
    client: str
    key: Key


class ReportRetried(NamedTuple):
    client: str
    key: Key


class ReportCancelled(NamedTuple):
    client: str
    keys: tuple[Key, ...]
    reason: str | None
    msg: str | None


class ReportRestart(NamedTuple):
    client: str


Instruction = (
    ComputeTask
    | DefineFunction
    | ForgetFunctions
    | FreeKeys
    | RequestSteal
    | RemoveReplicas
    | RefreshWhoHas
    | TellWorkerRemoved
    | ReportInMemory
    | ReportErred
    | ReportLost
    | ReportRetried
    | ReportCancelled
    | ReportRestart
)
