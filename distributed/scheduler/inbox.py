"""The only place where a message of a stream becomes an event of the machine. Required fields are checked by name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any

from distributed.core import Server
from distributed.graph import RowBuilder, chunks, materialize
from distributed.protocol import Serialized, deserialize, merge_and_deserialize, pickle, to_serialize
from distributed.scheduler.expressions import expression_executor
from distributed.scheduler_state_machine import SchedulerMachine
from distributed.scheduler_state_machine import events as ev
from distributed.utils import parse_timedelta

logger = logging.getLogger("distributed.scheduler")

Key = Any

#: rows per event of an expanded expression
ROWS_PER_EVENT = 5_000


class Inbox(Server):
    """Stream handlers of a scheduler. `deliver` gives an event to the machine and sends what follows."""

    machine: SchedulerMachine
    deliver: Callable[[ev.Event], None]

    def client_stream_handlers(self) -> dict[str, Callable[..., Any]]:
        """op -> handler of messages from clients."""
        return {
            "graph-table": self.on_graph_table,
            "functions": self.on_functions,
            "forget-functions": self.on_forget_functions,
            "update-graph": self.on_update_graph,
            "client-desires-keys": self.on_client_desires_keys,
            "client-releases-keys": self.on_client_releases_keys,
            "report-key": self.on_report_key,
            "heartbeat-client": self.on_heartbeat_client,
            "close-client": self.on_close_client,
            "cancel-keys": self.on_cancel_keys,
            "subscribe-topic": self.on_subscribe_topic,
            "unsubscribe-topic": self.on_unsubscribe_topic,
            "update-data": self.on_update_data,
        }

    def worker_stream_handlers(self) -> dict[str, Callable[..., Any]]:
        """op -> handler of messages from workers."""
        return {
            "tasks-finished": self.on_tasks_finished,
            "task-finished": self.on_task_finished,
            "task-erred": self.on_task_erred,
            "release-worker-data": self.on_release_worker_data,
            "add-keys": self.on_add_keys,
            "worker-status-change": self.on_worker_status_change,
            "request-refresh-who-has": self.on_request_refresh_who_has,
            "reschedule": self.on_reschedule,
            "steal-response": self.on_steal_response,
            "long-running": self.on_long_running,
            "log-event": self.on_worker_log_event,
            "keep-alive": self.on_keep_alive,
        }

    # --- clients -------------------------------------------------------------------------------------------

    def on_graph_table(
        self,
        client: str,
        intake: int,
        begin: dict[str, Any] | None,
        rows: Collection[Any],
        wants: Any,
        commit: Collection[Key] | None,
    ) -> None:
        """One message of a graph in table form."""
        deliver = self.deliver
        try:
            if begin is not None and commit is not None:
                deliver(
                    ev.GraphAdded(
                        client,
                        intake,
                        begin.get("submitting_task"),
                        float(begin.get("fifo_timeout") or 0),
                        begin.get("user_priority") or 0,
                        rows,  # type: ignore[arg-type]
                        wants,
                        commit,
                        begin["stimulus_id"],
                    )
                )
                self.graph_added(client, rows)
                return
            if begin is not None:
                deliver(
                    ev.GraphStarted(
                        client,
                        intake,
                        begin.get("submitting_task"),
                        float(begin.get("fifo_timeout") or 0),
                        begin.get("user_priority") or 0,
                        begin["stimulus_id"],
                    )
                )
            if rows:
                deliver(ev.GraphRowsAdded(client, intake, rows, wants, commit is not None))  # type: ignore[arg-type]
                self.graph_added(client, rows)
            if commit is not None:
                deliver(ev.GraphCommitted(client, intake, commit))
        except (ValueError, TypeError, KeyError) as exc:
            logger.error("The graph %s of %s is malformed: %s", intake, client, exc)
            exception = to_serialize(pickle.dumps(ValueError(f"malformed graph: {exc!r}")))
            keys = (
                [row[0] for row in rows]
                if wants is True
                else [row[0] for i, row in enumerate(rows) if i in wants]
            )
            deliver(
                ev.GraphAborted(client, intake, keys, "malformed", exception, None, f"graph-aborted-{intake}")
            )

    def graph_added(self, client: str, rows: Collection[Any]) -> None:
        """For plugins; does nothing here."""

    def on_functions(self, client: str, items: Collection[Any]) -> None:
        self.deliver(ev.FunctionsDefined(client, items))  # type: ignore[arg-type]

    def on_forget_functions(self, client: str, ids: Collection[int]) -> None:
        self.deliver(ev.FunctionsForgotten(client, ids))

    async def on_update_graph(
        self,
        client: str,
        expr_ser: Any,
        keys: Collection[Key],
        span_metadata: Any = None,
        internal_priority: dict[Key, int] | None = None,
        submitting_task: Key | None = None,
        user_priority: float | dict[Key, float] = 0,
        actors: Any = None,
        fifo_timeout: Any = 0,
        code: Any = (),
        annotations: dict[str, Any] | None = None,
        stimulus_id: str | None = None,
    ) -> None:
        """A graph as a pickled expression, from a client that knows no tables. Expanded off the loop; this client's stream waits."""
        stimulus_id = stimulus_id or f"update-graph-{self.now()}"
        intake = self.new_intake_number()

        def expand() -> list[tuple[list[Any], bool]]:
            payload = expr_ser
            if isinstance(payload, Serialized):
                if "split-num-sub-frames" in payload.header:
                    expr = merge_and_deserialize(payload.header, payload.frames)
                else:
                    expr = deserialize(payload.header, payload.frames)
            else:
                expr = payload.data
            wanted = set(keys)
            merged = dict(annotations or {})
            if isinstance(user_priority, dict):
                merged.setdefault("priority", user_priority.get)
            graph = materialize(expr, keys, merged, internal_priority)
            rows = RowBuilder(None).rows(graph, actors=wanted if actors is True else (actors or ()))
            return list(chunks(rows, ROWS_PER_EVENT))

        try:
            parts = await expression_executor.run(expand)
        except (
            Exception
        ) as exc:  # user code: anything can happen while an expression is unpickled and expanded
            logger.debug("Cannot expand a graph of %s", client, exc_info=True)
            error = RuntimeError(f"Error during deserialization of the task graph: {exc!r}")
            error.__cause__ = exc
            payload = to_serialize(pickle.dumps(error))
            self.deliver(ev.GraphAborted(client, intake, keys, "error", payload, None, stimulus_id))
            return
        priority = user_priority if isinstance(user_priority, (int, float)) else 0
        self.deliver(
            ev.GraphStarted(
                client,
                intake,
                submitting_task,
                parse_timedelta(fifo_timeout, "s") or 0.0,
                priority,
                stimulus_id,
            )
        )
        seen: set[Key] = set()
        wanted = set(keys)
        for rows, last in parts:
            numbers = [i for i, row in enumerate(rows) if row[0] in wanted]
            seen.update(row[0] for row in rows)
            self.deliver(ev.GraphRowsAdded(client, intake, rows, numbers, last))
            self.graph_added(client, rows)
        self.deliver(ev.GraphCommitted(client, intake, [key for key in keys if key not in seen]))

    def now(self) -> float:
        """The scheduler's clock, seconds."""
        raise NotImplementedError

    def new_intake_number(self) -> int:
        """A number that no client uses: negative."""
        raise NotImplementedError

    def on_client_desires_keys(self, client: str, keys: Collection[Key]) -> None:
        self.deliver(ev.KeysDesired(client, keys))

    def on_client_releases_keys(
        self, client: str, keys: Collection[Key], stimulus_id: str | None = None
    ) -> None:
        self.deliver(ev.KeysReleased(client, keys, stimulus_id or "client-releases-keys"))

    def on_report_key(self, client: str, key: Key) -> None:
        self.deliver(ev.KeyReportRequested(client, key))

    def on_cancel_keys(
        self,
        client: str,
        keys: Collection[Key],
        force: bool = False,
        reason: str | None = None,
        msg: str | None = None,
    ) -> None:
        self.deliver(ev.KeysCancelled(client, keys, force, reason, msg, "cancel-keys"))

    def on_update_data(self, client: str, who_has: dict[Key, Any], nbytes: dict[Key, int]) -> None:
        self.deliver(ev.DataAdded(client, who_has, nbytes, "update-data"))

    def on_heartbeat_client(self, client: str) -> None:
        raise NotImplementedError

    def on_close_client(self, client: str) -> None:
        raise NotImplementedError

    def on_subscribe_topic(self, client: str, topic: str) -> None:
        raise NotImplementedError

    def on_unsubscribe_topic(self, client: str, topic: str) -> None:
        raise NotImplementedError

    # --- workers -------------------------------------------------------------------------------------------

    #: worker -> number of a type -> (typename, pickled type)
    result_types: dict[str, dict[int, tuple[str, bytes | None]]]

    def on_tasks_finished(
        self, worker: str, types: Collection[Any], rows: Collection[Any], stimulus_id: str
    ) -> None:
        known = self.result_types.get(worker)
        if known is None:
            return
        for number, typename, type_pickle in types:
            known[number] = (typename, type_pickle)
        make = ev.TaskFinished
        tasks = []
        for key, run_id, nbytes, number, thread, start, stop, extra, inline in rows:
            typename, type_pickle = known[number]
            startstops = metadata = None
            if extra is not None:
                startstops, metadata = extra.get("startstops"), extra.get("metadata")
            tasks.append(
                make(
                    key,
                    run_id,
                    nbytes,
                    typename,
                    type_pickle,
                    thread,
                    start,
                    stop,
                    startstops,
                    metadata,
                    inline,
                )
            )
        self.deliver(ev.TasksFinished(worker, tasks, stimulus_id))

    def on_task_finished(
        self,
        worker: str,
        key: Key,
        run_id: int,
        nbytes: int,
        typename: str,
        stimulus_id: str,
        status: str = "OK",
        type: bytes | None = None,
        metadata: dict[str, Any] | None = None,
        thread: int | None = None,
        startstops: Sequence[Any] = (),
    ) -> None:
        start = stop = 0.0
        for action in startstops:
            if action["action"] == "compute":
                start, stop = action["start"], action["stop"]
        finished = ev.TaskFinished(
            key, run_id, nbytes, typename, type, thread, start, stop, startstops, metadata
        )
        self.deliver(ev.TasksFinished(worker, (finished,), stimulus_id))

    def on_task_erred(
        self,
        worker: str,
        key: Key,
        run_id: int,
        exception: Any,
        stimulus_id: str,
        traceback: Any = None,
        exception_text: str = "",
        traceback_text: str = "",
        status: str = "error",
        thread: int | None = None,
        startstops: Collection[Any] = (),
    ) -> None:
        self.deliver(
            ev.TaskErred(
                worker, key, run_id, exception, traceback, exception_text, traceback_text, stimulus_id
            )
        )

    def on_release_worker_data(self, worker: str, key: Key, stimulus_id: str) -> None:
        self.deliver(ev.ReplicaReleased(worker, key, stimulus_id))

    def on_add_keys(self, worker: str, keys: Collection[Key], stimulus_id: str) -> None:
        self.deliver(ev.ReplicasAdded(worker, keys, stimulus_id))

    def on_worker_status_change(self, worker: str, status: str, stimulus_id: str) -> None:
        self.deliver(ev.WorkerStatusChanged(worker, status, stimulus_id))

    def on_request_refresh_who_has(self, worker: str, keys: Collection[Key], stimulus_id: str) -> None:
        self.deliver(ev.WhoHasRequested(worker, keys, stimulus_id))

    def on_reschedule(self, worker: str, key: Key, stimulus_id: str) -> None:
        self.deliver(ev.TaskRescheduled(worker, key, stimulus_id))

    def on_steal_response(self, worker: str, key: Key, state: str | None, stimulus_id: str) -> None:
        self.deliver(ev.StealAnswered(worker, key, state, stimulus_id))

    def on_long_running(
        self, worker: str, key: Key, run_id: int, compute_duration: float | None, stimulus_id: str
    ) -> None:
        self.deliver(ev.TaskLongRunning(worker, key, run_id, compute_duration, stimulus_id))

    def on_worker_log_event(self, worker: str, topic: Any, msg: Any) -> None:
        raise NotImplementedError

    def on_keep_alive(self, worker: str) -> None:
        """That something arrived is all there is to it."""
