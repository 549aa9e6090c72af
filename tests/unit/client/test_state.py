"""States of futures, keys and errors: what needs no cluster."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest

from distributed.client import FutureCancelledError, FuturesCancelledError, get_client
from distributed.client.future import Future, FutureState
from distributed.client.keys import call_token
from distributed.client.sending import check_workers, resolve_annotations
from distributed.worker import get_client as workers_get_client


def test_waiters_are_called_once() -> None:
    state = FutureState()
    calls: list[str] = []
    state.wait(lambda: calls.append("a"))
    state.finish(pickle.dumps(int))
    state.finish(None)
    assert calls == ["a"] and state.done and state.type is int


def test_waiters_can_give_up() -> None:
    state = FutureState()
    calls: list[str] = []

    def waiter() -> None:
        calls.append("never")

    state.wait(waiter)
    state.stop_waiting(waiter)
    state.stop_waiting(waiter)
    assert not state.waiters
    state.cancel("enough")
    assert calls == []


def test_threads_that_wait_leave_nothing_behind() -> None:
    state = FutureState()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            state.wait_in_thread(0.001)
    assert not state.waiters
    thread = threading.Thread(target=state.wait_in_thread, args=(10,))
    thread.start()
    state.cancel()
    thread.join(10)
    assert not thread.is_alive()


def test_lost_is_not_done_and_retry_is_pending() -> None:
    state = FutureState()
    state.inline = (1,)
    state.finish(None)
    state.lose()
    assert not state.done
    state.retry()
    assert state.status == "pending" and state.inline is None


class FakeClient:
    """Counts references."""

    asynchronous = False
    status = "running"

    def __init__(self) -> None:
        self.held: list[Any] = []
        self.let_go: list[Any] = []

    def _hold(self, key: Any, state: FutureState | None) -> FutureState:
        self.held.append(key)
        return state or FutureState()

    def _let_go(self, key: Any, state: FutureState) -> None:
        self.let_go.append((key, state))


def test_a_future_gives_its_reference_back_once() -> None:
    client = FakeClient()
    state = FutureState()
    future = Future("x", client, state)
    future.release()
    future.release()
    del future
    assert client.held == ["x"] and client.let_go == [("x", state)]
    other = Future("y", client, state)
    del other
    assert client.let_go[1:] == [("y", state)]


def test_futures_are_themselves() -> None:
    client = FakeClient()
    a, b = Future("x", client), Future("x", client)
    assert a == a and a != b and len({a, b}) == 2
    a.anything = 5  # downstream libraries do that
    assert a.__dask_tokenize__() == a.__dask_tokenize__() != b.__dask_tokenize__()
    assert pickle.loads(pickle.dumps(a)).key == "x"


def test_a_future_without_a_client_says_so() -> None:
    future: Future = pickle.loads(pickle.dumps(Future("x", FakeClient())))
    assert future.status is None and "x" in repr(future)
    with pytest.raises(RuntimeError, match="not bound to a client"):
        future.result()


def test_html_is_escaped() -> None:
    html = Future("<script>", FakeClient())._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html


def test_results_of_closed_clients() -> None:
    client = FakeClient()
    client.status = "closed"
    state = FutureState()
    state.cancel("client-closed")
    with pytest.raises(FutureCancelledError, match="client-closed"):
        Future("x", client, state).result()
    gone = FutureState()
    gone.finish(None)
    with pytest.raises(Exception, match="cannot be fetched any more"):
        Future("x", client, gone).result()


def test_errors_pickle() -> None:
    error = FutureCancelledError("x", "why", "more")
    again = pickle.loads(pickle.dumps(error))
    assert (again.key, again.reason, again.msg) == ("x", "why", "more")
    assert "why" in str(again) and "more" in str(again)
    assert FutureCancelledError("x").reason == "unknown"
    assert "2 Future(s)" in str(FuturesCancelledError([error, error]))


def test_integers_of_any_length_have_keys() -> None:
    big = 10**5000
    values = [(big,), (big + 1,), (-big,), ((big, "1"),), (True, big), (1, big)]
    tokens = [call_token("t", args, {}) for args in values]
    assert len(set(tokens)) == len(values)
    assert tokens == [call_token("t", args, {}) for args in values]


def test_annotations_per_key() -> None:
    fixed = {"priority": 1}
    assert resolve_annotations(fixed, "x") is fixed
    assert resolve_annotations({"priority": len, "retries": 2}, "four") == {"priority": 4, "retries": 2}


def test_workers_argument() -> None:
    assert check_workers("a", False) == ["a"]
    assert check_workers(("a", 1), True) == ["a", 1]
    assert check_workers(None, None) is None
    with pytest.raises(ValueError, match="allow_other_workers"):
        check_workers(None, True)
    with pytest.raises(TypeError, match="allow_other_workers"):
        check_workers("a", "yes")


def test_get_client_is_found_in_both_places() -> None:
    assert get_client is workers_get_client
