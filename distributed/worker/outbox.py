"""The only place where an instruction of the worker machine becomes a message to the scheduler.

With a scheduler of ours finished tasks travel as rows, and types by number; with a released one in the documented single messages.
"""

from __future__ import annotations

from collections.abc import Callable

from distributed.batched import Stream
from distributed.metrics import time
from distributed.worker_state_machine import instructions as ins
from distributed.worker_state_machine.events import Executed


class Outbox:
    """Sends to the scheduler.

    Parameters
    ----------
    batches
        Whether the scheduler understands ``task-batches/1``.
    clock_shift
        Gives what has to be added to times of this machine, seconds.
    """

    def __init__(self, stream: Stream, batches: bool, clock_shift: Callable[[], float]) -> None:
        self.stream = stream
        self.batches = batches
        self._clock_shift = clock_shift
        self._type_numbers: dict[tuple[str, bytes | None], int] = {}

    def send(self, item: ins.Instruction, stimulus_id: str) -> None:
        """Queue the message for one instruction."""
        kind = type(item)
        if kind is ins.SendTaskFinished:
            self._task_finished(item.result, stimulus_id)  # type: ignore[union-attr,arg-type]
        elif isinstance(item, ins.SendReleased):
            if not (item.freed and self.batches):
                self.stream.send({"op": "release-worker-data", "key": item.key, "stimulus_id": stimulus_id})
        elif isinstance(item, ins.SendAddKeys):
            self.stream.send({"op": "add-keys", "keys": list(item.keys), "stimulus_id": stimulus_id})
        elif isinstance(item, ins.SendTaskErred):
            failure = item.result
            shift = self._clock_shift()
            self.stream.send(
                {
                    "op": "task-erred",
                    "status": "error",
                    "key": failure.key,
                    "run_id": failure.run_id,
                    "exception": failure.exception,
                    "traceback": failure.traceback,
                    "exception_text": failure.exception_text,
                    "traceback_text": failure.traceback_text,
                    "thread": failure.thread,
                    "startstops": [
                        {"action": "compute", "start": failure.start + shift, "stop": failure.stop + shift}
                    ],
                    "stimulus_id": stimulus_id,
                }
            )
        elif isinstance(item, ins.SendLongRunning):
            self.stream.send(
                {
                    "op": "long-running",
                    "key": item.key,
                    "run_id": item.run_id,
                    "compute_duration": item.compute_duration,
                    "stimulus_id": stimulus_id,
                }
            )
        elif isinstance(item, ins.SendReschedule):
            self.stream.send({"op": "reschedule", "key": item.key, "stimulus_id": stimulus_id})
        elif isinstance(item, ins.SendRefreshRequest):
            self.stream.send(
                {"op": "request-refresh-who-has", "keys": list(item.keys), "stimulus_id": stimulus_id}
            )
        elif isinstance(item, ins.SendStealResponse):
            self.stream.send(
                {"op": "steal-response", "key": item.key, "state": item.state, "stimulus_id": stimulus_id}
            )
        else:
            raise AssertionError(f"no message is defined for the instruction {kind.__name__}")

    def _task_finished(self, result: Executed, stimulus_id: str) -> None:
        key, run_id, nbytes, typename, type_pickle, thread, start, stop, startstops, metadata, inline = result
        shift = self._clock_shift()
        start += shift
        stop += shift
        if self.batches:
            extra = None
            if startstops or metadata:
                extra = {"startstops": startstops, "metadata": metadata}
            facts = (typename, type_pickle)
            number = self._type_numbers.get(facts)
            new = number is None
            if number is None:
                number = self._type_numbers[facts] = len(self._type_numbers)
            row = (key, run_id, nbytes, number, thread, start, stop, extra, inline)
            buffer = self.stream.buffer
            if buffer and buffer[-1]["op"] == "tasks-finished":
                buffer[-1]["rows"].append(row)
                if new:
                    buffer[-1]["types"].append((number, typename, type_pickle))
            else:
                types = [(number, typename, type_pickle)] if new else []
                self.stream.send(
                    {
                        "op": "tasks-finished",
                        "types": types,
                        "rows": [row],
                        "stimulus_id": f"task-finished-{time()}",
                    }
                )
            return
        self.stream.send(
            {
                "op": "task-finished",
                "status": "OK",
                "key": key,
                "run_id": run_id,
                "nbytes": nbytes,
                "type": type_pickle,
                "typename": typename,
                "metadata": metadata or {},
                "thread": thread,
                "startstops": [{"action": "compute", "start": start, "stop": stop}, *(startstops or ())],
                "stimulus_id": f"task-finished-{time()}",
            }
        )
