"""Errors that the scheduler itself gives to tasks. They travel pickled to clients, under their public path."""

from __future__ import annotations

from typing import Any


class KilledWorker(Exception):
    """The workers that ran this task died, more often than is allowed.

    Attributes
    ----------
    task
        Its key.
    last_worker
        Address of the worker that died last (an object with ``address`` when it comes from a released scheduler).
    allowed_failures
        How many deaths were allowed.
    """

    def __init__(self, task: Any, last_worker: Any, allowed_failures: int) -> None:
        super().__init__(task, last_worker, allowed_failures)
        self.task = task
        self.last_worker = last_worker
        self.allowed_failures = allowed_failures

    def __str__(self) -> str:
        worker = getattr(self.last_worker, "address", self.last_worker)
        return (
            f"Attempted to run task {self.task!r} on {self.allowed_failures + 1} different workers, but all those workers died "
            f"while running it. The last worker that attempted to run the task was {worker}. Inspecting worker logs is often a good next step to "
            "diagnose what went wrong."
        )


class NoValidWorkerError(Exception):
    """There are workers, but none satisfied the restrictions of this task for the configured time."""

    def __init__(
        self,
        task: Any,
        host_restrictions: Any,
        worker_restrictions: Any,
        resource_restrictions: Any,
        timeout: float,
    ) -> None:
        super().__init__(task, host_restrictions, worker_restrictions, resource_restrictions, timeout)
        self.task = task
        self.host_restrictions = host_restrictions
        self.worker_restrictions = worker_restrictions
        self.resource_restrictions = resource_restrictions
        self.timeout = timeout

    def __str__(self) -> str:
        return (
            f"Attempted to run task {self.task!r} but timed out after {self.timeout:.2f} seconds waiting for a valid worker matching all "
            f"restrictions.\n\nRestrictions:\nhost_restrictions={self.host_restrictions!r}\nworker_restrictions={self.worker_restrictions!r}\n"
            f"resource_restrictions={self.resource_restrictions!r}\n"
        )


class NoWorkerError(Exception):
    """There was no worker at all for the configured time."""

    def __init__(self, task: Any, timeout: float) -> None:
        super().__init__(task, timeout)
        self.task = task
        self.timeout = timeout

    def __str__(self) -> str:
        return f"Attempted to run task {self.task!r} but timed out after {self.timeout:.2f} seconds waiting for workers to connect."


for _cls in (KilledWorker, NoValidWorkerError, NoWorkerError):
    _cls.__module__ = "distributed.scheduler"
del _cls
