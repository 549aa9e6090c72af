"""What the worker machine asks its shell to do or to send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from distributed.worker_state_machine.events import Executed, ExecutionFailed

Key = Any


class Execute(NamedTuple):
    """Offer a task to the threads. `deps`: keys whose values it needs, all in memory here."""

    key: Key
    run_id: int
    spec: Any
    deps: Sequence[Key]
    actor: bool
    annotations: Any


class GatherData(NamedTuple):
    """Fetch values from a peer."""

    worker: str
    keys: Sequence[Key]


class DropData(NamedTuple):
    keys: Sequence[Key]


class SendTaskFinished(NamedTuple):
    result: Executed


class SendTaskErred(NamedTuple):
    result: ExecutionFailed


class SendAddKeys(NamedTuple):
    keys: Sequence[Key]


class SendReleased(NamedTuple):
    """A replica was dropped because the scheduler asked for it. `freed`: by free-keys, which our own schedulers need no answer to."""

    key: Key
    freed: bool


class SendReschedule(NamedTuple):
    key: Key


class SendLongRunning(NamedTuple):
    key: Key
    run_id: int
    compute_duration: float | None


class SendRefreshRequest(NamedTuple):
    keys: Sequence[Key]


class SendStealResponse(NamedTuple):
    key: Key
    state: str | None


Instruction = (
    Execute
    | GatherData
    | DropData
    | SendTaskFinished
    | SendTaskErred
    | SendAddKeys
    | SendReleased
    | SendReschedule
    | SendLongRunning
    | SendRefreshRequest
    | SendStealResponse
)
