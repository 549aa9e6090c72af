"""The only place where an instruction of the machine becomes a message.

Messages go into the peers' streams, which send one batch per loop iteration. What follows a message of the same kind to the same peer
joins it, so that a burst of tasks costs one map on the wire.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from distributed.batched import Stream
from distributed.comm import CommClosedError
from distributed.comm.handshake import TASK_BATCHES
from distributed.protocol import Pickled, Serialize, merge_and_deserialize, pickle, to_serialize
from distributed.protocol.serialize import Serialized, serialize_and_split
from distributed.protocol.specs import compose_pickled_task
from distributed.scheduler_state_machine import instructions as ins


class Peer:
    """One worker's or client's stream."""

    __slots__ = ("batches", "stream")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        assert stream.comm is not None, "peers are made for streams that run"
        #: whether it understands ``task-batches/1``
        self.batches = TASK_BATCHES in stream.comm.extensions

    def send(self, msg: dict[str, Any]) -> None:
        """Queue one message; to a peer that has gone it is lost, and its departure is an event of its own."""
        try:
            self.stream.send(msg)
        except CommClosedError:
            pass  # the reading side of this connection reports the loss


def wrap_exception(exception: Any) -> Any:
    """An exception for the wire: opaque payloads as they came, our own objects pickled."""
    if isinstance(exception, BaseException):
        return to_serialize(pickle.dumps(exception))
    return exception


def pickled_task(key: Any, spec: Any) -> Pickled:
    """The task for a worker that knows no specs, composed without unpickling anything."""
    function = None
    if type(spec) is tuple:
        entry = spec[0]
        function = entry.data
        if isinstance(function, (Serialize, Serialized)):
            function = function_bytes(function)
        spec = (entry.id, spec[1], spec[2])
    elif isinstance(spec, Serialize):
        spec = Serialized(*serialize_and_split(spec.data))
    return Pickled({"pickled-obj": compose_pickled_task(key, spec, function), "compression": []})


def function_bytes(payload: Any) -> Any:
    """The pickle inside a function that came as a payload of its own: plain bytes in one frame."""
    if isinstance(payload, Serialize):
        return payload.data
    return merge_and_deserialize(payload.header, payload.frames)


class Outbox:
    """Streams by peer, and how each instruction reads on the wire."""

    def __init__(self) -> None:
        self.workers: dict[str, Peer] = {}
        self.clients: dict[str, Peer] = {}

    def dispatch(self, instructions: Iterable[ins.Instruction], stimulus_id: str) -> None:
        """Send what the machine asks for."""
        workers, clients = self.workers, self.clients
        for item in instructions:
            kind = type(item)
            if kind is ins.ComputeTask:
                peer = workers.get(item.worker)  # type: ignore[union-attr]
                if peer is not None:
                    self._compute_task(peer, item, stimulus_id)  # type: ignore[arg-type]
            elif kind is ins.ReportInMemory:
                peer = clients.get(item.client)  # type: ignore[union-attr]
                if peer is not None:
                    self._in_memory(peer, item)  # type: ignore[arg-type]
            elif kind is ins.FreeKeys:
                peer = workers.get(item.worker)  # type: ignore[union-attr]
                if peer is not None:
                    self._free_keys(peer, item.keys, stimulus_id)  # type: ignore[union-attr]
            else:
                self._rare(item, stimulus_id)

    @staticmethod
    def _compute_task(peer: Peer, item: ins.ComputeTask, stimulus_id: str) -> None:
        _, key, run_id, priority, spec, deps, resources, actor, annotations = item
        if peer.batches:
            extra: dict[str, Any] | None = None
            if resources or actor or annotations:
                extra = {}
                if resources:
                    extra["resource_restrictions"] = resources
                if actor:
                    extra["actor"] = True
                if annotations:
                    extra["annotations"] = annotations
            if type(spec) is tuple:
                spec = (spec[0].id, spec[1], spec[2])
            row = (key, run_id, priority, spec, deps, extra)
            buffer = peer.stream.buffer
            if buffer and buffer[-1]["op"] == "compute-tasks":
                buffer[-1]["rows"].append(row)
            else:
                peer.send({"op": "compute-tasks", "rows": [row], "stimulus_id": stimulus_id})
            return
        peer.send(
            {
                "op": "compute-task",
                "key": key,
                "run_id": run_id,
                "priority": priority,
                "who_has": {dep: holders for dep, _, holders in deps or ()},
                "nbytes": {dep: nbytes for dep, nbytes, _ in deps or ()},
                "run_spec": pickled_task(key, spec),
                "resource_restrictions": resources or None,
                "actor": actor,
                "annotations": annotations or {},
                "span_id": None,
                "stimulus_id": stimulus_id,
            }
        )

    @staticmethod
    def _in_memory(peer: Peer, item: ins.ReportInMemory) -> None:
        _, key, type_pickle, inline = item
        if peer.batches:
            buffer = peer.stream.buffer
            if buffer:
                last = buffer[-1]
                if (
                    last["op"] == "keys-in-memory"
                    and last["type"] == type_pickle
                    and (last["values"] is None) == (inline is None)
                ):
                    last["keys"].append(key)
                    if inline is not None:
                        last["values"].append(inline[0])
                    return
            values = None if inline is None else [inline[0]]
            peer.send({"op": "keys-in-memory", "type": type_pickle, "keys": [key], "values": values})
            return
        msg = {"op": "key-in-memory", "key": key}
        if type_pickle:
            msg["type"] = type_pickle
        peer.send(msg)

    @staticmethod
    def _free_keys(peer: Peer, keys: tuple[Any, ...], stimulus_id: str) -> None:
        buffer = peer.stream.buffer
        if buffer and buffer[-1]["op"] == "free-keys":
            buffer[-1]["keys"].extend(keys)
        else:
            peer.send({"op": "free-keys", "keys": list(keys), "stimulus_id": stimulus_id})

    def _rare(self, item: ins.Instruction, stimulus_id: str) -> None:
        kind = type(item)
        address = getattr(item, "worker", None)
        peer = (
            self.workers.get(address)
            if address is not None
            else self.clients.get(getattr(item, "client", ""))
        )
        if peer is None:
            return
        if isinstance(item, ins.DefineFunction):
            if peer.batches:
                peer.send({"op": "functions", "items": [(item.id, item.data)]})
        elif isinstance(item, ins.ForgetFunctions):
            if peer.batches:
                peer.send({"op": "forget-functions", "ids": list(item.ids)})
        elif isinstance(item, ins.RequestSteal):
            peer.send({"op": "steal-request", "key": item.key, "stimulus_id": item.stimulus_id})
        elif isinstance(item, ins.RemoveReplicas):
            peer.send({"op": "remove-replicas", "keys": list(item.keys), "stimulus_id": stimulus_id})
        elif isinstance(item, ins.RefreshWhoHas):
            peer.send({"op": "refresh-who-has", "who_has": dict(item.who_has), "stimulus_id": stimulus_id})
        elif isinstance(item, ins.TellWorkerRemoved):
            peer.send({"op": "remove-worker", "worker": item.removed, "stimulus_id": stimulus_id})
        elif isinstance(item, ins.ReportErred):
            peer.send(
                {
                    "op": "task-erred",
                    "key": item.key,
                    "exception": wrap_exception(item.exception),
                    "traceback": item.traceback,
                }
            )
        elif isinstance(item, ins.ReportLost):
            peer.send({"op": "lost-data", "key": item.key})
        elif isinstance(item, ins.ReportRetried):
            peer.send({"op": "task-retried", "key": item.key})
        elif isinstance(item, ins.ReportCancelled):
            peer.send(
                {"op": "cancelled-keys", "keys": list(item.keys), "reason": item.reason, "msg": item.msg}
            )
        elif isinstance(item, ins.ReportRestart):
            peer.send({"op": "restart"})
        else:
            raise AssertionError(f"no message is defined for the instruction {kind.__name__}")
