"""Runs of shuffles as the scheduler sees them: pure bookkeeping with plain data. Specs are bytes that nobody opens here.

A shuffle is *defined* when its barrier's row arrives. The first transfer that asks begins a *run*; run ids are global and increase. A run ends when the
barrier is no longer needed, when it fails, or when a worker that matters is lost: then the next transfer that asks begins another.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from distributed.shuffle._core import PartitionId, ShuffleId, place
from distributed.shuffle._exceptions import P2PConsistencyError, P2PIllegalStateError


class Definition(NamedTuple):
    """A shuffle: its outputs (an int means ``range(n)``), and its pickled spec."""

    id: ShuffleId
    partitions: int | Sequence[PartitionId]
    spec: bytes

    def output_partitions(self) -> Collection[PartitionId]:
        if isinstance(self.partitions, int):
            return range(self.partitions)
        # tuples have become lists where a message has carried them
        return [tuple(p) if isinstance(p, list) else p for p in self.partitions]


class Run:
    """One attempt."""

    __slots__ = ("definition", "inputs_done", "participants", "restricted", "run_id", "worker_for")

    def __init__(self, definition: Definition, run_id: int, worker_for: dict[PartitionId, str]) -> None:
        self.definition = definition
        self.run_id = run_id
        self.worker_for = worker_for
        #: who has been given the run, and who owns outputs
        self.participants = set(worker_for.values())
        #: every shard has reached its owner
        self.inputs_done = False
        #: output task -> restrictions that it had before it was sent to an owner
        self.restricted: dict[Any, Collection[str] | None] = {}

    def needs(self, worker: str) -> bool:
        """Whether the run cannot go on without a worker: senders matter until everything is sent, owners always."""
        if self.inputs_done:
            return worker in self.worker_for.values()
        return worker in self.participants


class ShuffleRuns:
    """All shuffles."""

    def __init__(self) -> None:
        self.definitions: dict[ShuffleId, Definition] = {}
        self.active: dict[ShuffleId, Run] = {}
        self._run_ids = itertools.count(1)

    def define(self, definition: Definition) -> None:
        """A barrier has arrived. One that is known keeps its definition, as tasks do."""
        self.definitions.setdefault(definition.id, definition)

    def forget(self, id: ShuffleId) -> Run | None:
        """The barrier is forgotten; returns the run that ends with it."""
        self.definitions.pop(id, None)
        return self.active.pop(id, None)

    def get(self, id: ShuffleId, worker: str) -> Run:
        """A worker takes part in the current run."""
        run = self.active.get(id)
        if run is None:
            raise P2PConsistencyError(f"shuffle {id} has no run at present; worker {worker} is late")
        run.participants.add(worker)
        return run

    def get_or_create(
        self, id: ShuffleId, worker: str, owners: Sequence[str], partners: Collection[ShuffleId] = ()
    ) -> Run:
        """A worker has a transfer to do.

        Parameters
        ----------
        owners
            Workers among which the outputs of a new run are shared out.
        partners
            Shuffles whose outputs the same tasks read: if one of them runs already, outputs are placed as there.
        """
        run = self.active.get(id)
        if run is None:
            definition = self.definitions.get(id)
            if definition is None:
                raise P2PIllegalStateError(f"shuffle {id} is unknown: its barrier task is gone")
            partitions = definition.output_partitions()
            worker_for = self._as_partners(partitions, owners, partners) or place(partitions, owners)
            run = self.active[id] = Run(definition, next(self._run_ids), worker_for)
        run.participants.add(worker)
        return run

    def _as_partners(
        self, partitions: Collection[PartitionId], owners: Sequence[str], partners: Collection[ShuffleId]
    ) -> dict[PartitionId, str] | None:
        for id in partners:
            partner = self.active.get(id)
            if partner is not None and partner.worker_for.keys() == set(partitions):
                return dict(partner.worker_for)
        return None

    def check(self, id: ShuffleId, run_id: int) -> Run:
        """The current run, if that is the one that is meant."""
        run = self.active.get(id)
        if run is None or run.run_id != run_id:
            now = "no run" if run is None else f"run {run.run_id}"
            raise P2PConsistencyError(f"shuffle {id}: run {run_id} is over; there is {now} now")
        return run

    def end(self, id: ShuffleId) -> Run | None:
        """The current run ends; the shuffle stays defined."""
        return self.active.pop(id, None)

    def worker_lost(self, worker: str) -> list[Run]:
        """Runs that end because a worker is gone, taken out of the table."""
        lost = [run for run in self.active.values() if run.needs(worker)]
        for run in lost:
            del self.active[run.definition.id]
        for run in self.active.values():
            run.participants.discard(worker)
        return lost
