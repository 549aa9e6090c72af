"""The client against a scheduler and workers in one event loop."""

from __future__ import annotations

import asyncio
import operator
import pickle
import threading
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import dask
import numpy as np
import pytest

from distributed import (
    Client,
    Future,
    Reschedule,
    as_completed,
    fire_and_forget,
    get_client,
    get_worker,
    rejoin,
    secede,
    wait,
    worker_client,
)
from distributed.client import FutureCancelledError
from distributed.exceptions import WorkerStartTimeoutError
from distributed.utils_test import async_poll_for, asyncinc, dec, gen_cluster, inc, slowinc, throws


@gen_cluster(client=True)
async def test_submit(c: Client, s: Any, a: Any, b: Any) -> None:
    x = c.submit(inc, 10)
    assert not x.done()
    assert isinstance(x, Future) and x.client is c
    assert await x == 11
    assert x.done() and x.status == "finished" and x.type is int
    y = c.submit(operator.add, x, x)
    assert await y == 22
    z = c.submit(sum, [x, y, 1])
    assert await z == 34
    w = c.submit(dict, a=[x], b={"k": (y, 2)})
    assert await w == {"a": [11], "b": {"k": (22, 2)}}


@gen_cluster(client=True)
async def test_pure_calls_share_a_key(c: Client, s: Any, a: Any, b: Any) -> None:
    x, y = c.submit(inc, 1), c.submit(inc, 1)
    assert x.key == y.key
    assert c.submit(inc, 1.0).key != x.key and c.submit(inc, True).key != x.key
    assert c.map(inc, [1])[0].key == x.key
    assert c.submit(inc, 1, pure=False).key != x.key
    assert await c.submit(inc, 1, key="mine") == 2
    assert c.submit(inc, np.arange(3)).key == c.submit(inc, np.arange(3)).key


@gen_cluster(client=True)
async def test_map(c: Client, s: Any, a: Any, b: Any) -> None:
    futures = c.map(inc, range(20))
    assert await c.gather(futures) == list(range(1, 21))
    assert await c.gather(c.map(operator.add, [1, 2, 3], [10, 20, 30, 40])) == [11, 22, 33]
    assert await c.gather(c.map(operator.add, futures[:3], [1, 1, 1])) == [2, 3, 4]
    assert await c.gather(c.map(inc, range(17), batch_size=5, pure=False)) == list(range(1, 18))
    named = c.map(inc, [1, 2], key=["one", ("two", 2)])
    assert [f.key for f in named] == ["one", ("two", 2)]
    assert await c.gather(named) == [2, 3]
    big = np.ones(100_000)
    assert await c.gather(c.map(lambda i, array: i + array.sum(), range(3), array=big)) == [
        100_000,
        100_001,
        100_002,
    ]
    assert c.map(inc, []) == []


@gen_cluster(client=True)
async def test_wrong_arguments(c: Client, s: Any, a: Any, b: Any) -> None:
    with pytest.raises(TypeError, match="callable"):
        c.submit(1, 2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="callable"):
        c.map(1, [2])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Iterators"):
        c.map(inc, iter([1]))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        c.submit(inc, 1, key=b"bytes")
    with pytest.raises(ValueError, match="keys for"):
        c.map(inc, [1, 2], key=["x"])
    with pytest.raises(ValueError, match="allow_other_workers"):
        c.submit(inc, 1, allow_other_workers=True)
    with pytest.raises(ValueError, match="errors"):
        c.gather([], errors="maybe")
    with pytest.raises(TypeError, match="Could not serialize"):
        c.submit(inc, threading.Lock())
    with pytest.raises(TypeError, match="Could not serialize"):
        lock = threading.Lock()
        c.submit(lambda: lock)
    with pytest.raises(TypeError, match="numeric"):
        await wait([c.submit(inc, 1)], "x", c.submit(inc, 2))  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="return_when"):
        await wait([c.submit(inc, 1)], return_when="SOME")
    # and the cluster goes on
    assert await c.submit(inc, 1) == 2


@gen_cluster(client=True)
async def test_errors_keep_type_message_and_traceback(c: Client, s: Any, a: Any, b: Any) -> None:
    x = c.submit(throws, 1)
    with pytest.raises(RuntimeError, match="hello!") as info:
        await x
    assert any(entry.name == "throws" for entry in info.traceback)
    assert not any("distributed/worker/" in str(entry.path) for entry in info.traceback)
    assert x.status == "error"
    assert isinstance(await x.exception(), RuntimeError)
    assert await x.traceback() is not None
    y = c.submit(inc, x)
    with pytest.raises(RuntimeError, match="hello!"):
        await y
    assert await c.gather([x, c.submit(inc, 1)], errors="skip") == [2]
    with pytest.raises(RuntimeError, match="hello!"):
        await c.gather([c.submit(inc, 1), x])


class Unpicklable(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} {b}")

    def __reduce__(self) -> Any:
        raise TypeError("never")


def raise_unpicklable() -> None:
    raise Unpicklable(1, 2)


class CannotUnpickle:
    def __reduce__(self) -> Any:
        return (exec, ("raise ValueError('poison')",))


class CannotPickle:
    def __reduce__(self) -> Any:
        raise ValueError("not me")


@gen_cluster(client=True)
async def test_poison(c: Client, s: Any, a: Any, b: Any) -> None:
    with pytest.raises(Exception, match="1 2"):
        await c.submit(raise_unpicklable)
    # an argument that cannot be unpickled errs the task
    with pytest.raises(ValueError, match="poison"):
        await c.submit(inc, CannotUnpickle())
    # a result that cannot be pickled is an error of whoever fetches it
    x = c.submit(CannotPickle, workers=[a.address])
    await wait(x)
    with pytest.raises(TypeError, match="Could not serialize"):
        await x
    # a result that cannot be unpickled errs its dependents elsewhere, once
    y = c.submit(CannotUnpickle, workers=[a.address])
    await wait(y)
    with pytest.raises(ValueError, match="poison"):
        await c.submit(str, y, workers=[b.address])
    assert await c.submit(inc, 1) == 2


@gen_cluster(client=True)
async def test_gather_structures(c: Client, s: Any, a: Any, b: Any) -> None:
    class Pair(NamedTuple):
        x: Any
        y: Any

    f, g = c.submit(inc, 1), c.submit(inc, np.arange(3))
    result = await c.gather({"a": [f, (f, 1)], "b": {f}})
    assert result == {"a": [2, (2, 1)], "b": {2}}
    pair = await c.gather(Pair(f, g))
    assert pair.x == 2 and (pair.y == np.arange(1, 4)).all()
    assert await c.gather([]) == []
    generator = c.gather(iter([f]))
    assert await next(generator) == 2
    assert (await c.gather(g, direct=True) == np.arange(1, 4)).all()


@gen_cluster(client=True)
async def test_scatter(c: Client, s: Any, a: Any, b: Any) -> None:
    futures = await c.scatter([1, 2, 3])
    assert await c.gather(futures) == [1, 2, 3]
    d = await c.scatter({"x": 1, ("y", 2): 2})
    assert d["x"].key == "x" and await c.gather(d) == {"x": 1, ("y", 2): 2}
    x = await c.scatter(np.arange(10), broadcast=True)
    assert len(s.tasks[x.key].who_has) == 2
    assert await c.submit(np.sum, x) == 45
    one, two = await c.scatter("same"), await c.scatter("same")
    assert one.key == two.key
    assert (await c.scatter("same", hash=False)).key != one.key
    direct = await c.scatter([7, 8], direct=True)
    assert await c.gather(direct) == [7, 8]
    only = await c.scatter(5, workers=[b.address], hash=False)
    assert {ws.address for ws in s.tasks[only.key].who_has} == {b.address}
    with pytest.raises(TypeError, match="Iterators"):
        c.scatter(iter([1]))
    del futures, d, x, one, two, direct, only
    await async_poll_for(lambda: not s.tasks and not a.data and not b.data)


@gen_cluster(client=True)
async def test_release(c: Client, s: Any, a: Any, b: Any) -> None:
    x = c.submit(inc, 1)
    y = c.submit(inc, x)
    await y
    del x
    await async_poll_for(lambda: len(s.tasks) == 2 and len(a.data) + len(b.data) == 1)
    z = c.submit(dec, y)
    del y
    assert await z == 2
    del z
    await async_poll_for(lambda: not s.tasks and not a.data and not b.data and not c.futures)


@gen_cluster(client=True)
async def test_cancel(c: Client, s: Any, a: Any, b: Any) -> None:
    x = c.submit(slowinc, 1, delay=0.2)
    y = c.submit(inc, x)
    await c.cancel(x, reason="enough", msg="really")
    assert x.cancelled()
    with pytest.raises(FutureCancelledError, match="enough"):
        await x
    with pytest.raises(FutureCancelledError):
        await y
    await async_poll_for(lambda: not s.tasks)
    assert await c.submit(slowinc, 1, delay=0.2) == 2


@gen_cluster(client=True)
async def test_retry(c: Client, s: Any, a: Any, b: Any) -> None:
    flag = asyncio.Event()

    def fails_at_first() -> int:
        if not get_worker().flag.is_set():
            raise ValueError("not yet")
        return 5

    a.flag = b.flag = flag
    x = c.submit(fails_at_first)
    y = c.submit(inc, x)
    with pytest.raises(ValueError, match="not yet"):
        await y
    flag.set()
    await c.retry(y)
    assert await y == 6
    counter = []

    def fails_twice() -> int:
        get_worker().counter.append(1)
        if len(get_worker().counter) < 3:
            raise ValueError("again")
        return 7

    a.counter = b.counter = counter
    assert await c.submit(fails_twice, retries=2) == 7


@gen_cluster(client=True)
async def test_restrictions_priorities_resources(c: Client, s: Any, a: Any, b: Any) -> None:
    x = c.submit(inc, 1, workers=a.address)
    y = c.submit(inc, 2, workers=[1])
    await wait([x, y])
    assert list((await c.who_has(x)).values()) == [(a.address,)]
    assert list((await c.who_has(y)).values()) == [(b.address,)]
    with dask.annotate(workers=[b.address], priority=3):
        z = c.submit(inc, 3)
    await z
    assert s.tasks[z.key].priority[0] == -3
    assert {ws.address for ws in s.tasks[z.key].who_has} == {b.address}
    waiting = c.submit(inc, 4, resources={"GPU": 1})
    await async_poll_for(lambda: s.tasks.get(waiting.key) and s.tasks[waiting.key].state == "no-worker")
    await c.scheduler.set_resources(worker=a.address, resources={"GPU": 2})
    a.machine.total_resources["GPU"] = a.machine.available_resources["GPU"] = 2
    assert await waiting == 5


@gen_cluster(client=True)
async def test_wait_and_as_completed(c: Client, s: Any, a: Any, b: Any) -> None:
    futures = c.map(slowinc, range(5), delay=0.01)
    done, not_done = await wait(futures)
    assert len(done) == 5 and not not_done
    slow = c.submit(slowinc, 100, delay=0.5)
    done, not_done = await wait([slow, futures[0]], return_when="FIRST_COMPLETED")
    assert futures[0] in done and slow in not_done
    with pytest.raises(asyncio.TimeoutError):
        await wait(slow, timeout=0.01)
    ac = as_completed(futures)
    assert {f async for f in ac} == set(futures)
    results = [r async for _, r in as_completed(futures, with_results=True)]
    assert sorted(results) == [1, 2, 3, 4, 5]
    bad = c.submit(throws, 1)
    pairs = [r async for _, r in as_completed([bad], with_results=True, raise_errors=False)]
    assert pairs[0][0] is RuntimeError
    with pytest.raises(RuntimeError):
        [r async for r in as_completed([bad], with_results=True)]
    with pytest.raises(TypeError):
        as_completed([1])
    with pytest.raises(asyncio.TimeoutError):
        async for _ in as_completed([c.submit(slowinc, 5, delay=0.5)], timeout=0.05):
            raise AssertionError("too early")


@gen_cluster(client=True)
async def test_fire_and_forget(c: Client, s: Any, a: Any, b: Any) -> None:
    done = []

    def note(x: int) -> None:
        get_worker().done.append(x)

    a.done = b.done = done
    fire_and_forget(c.submit(note, 5))
    await async_poll_for(lambda: done == [5] and not s.tasks)


@gen_cluster(client=True)
async def test_async_and_rescheduled_tasks(c: Client, s: Any, a: Any, b: Any) -> None:
    assert await c.gather(c.map(asyncinc, range(10))) == list(range(1, 11))

    async def fails() -> None:
        raise KeyError("async")

    with pytest.raises(KeyError):
        await c.submit(fails)
    tries = []

    def once_again() -> int:
        get_worker().tries.append(1)
        if len(get_worker().tries) == 1:
            raise Reschedule
        return 3

    a.tries = b.tries = tries
    assert await c.submit(once_again) == 3


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_tasks_that_submit_tasks(c: Client, s: Any, a: Any) -> None:
    def nested(n: int) -> int:
        with worker_client() as inner:
            return sum(inner.gather(inner.map(inc, range(n))))

    assert await c.submit(nested, 5) == 15

    def by_hand(n: int) -> Any:
        client = get_client()
        future = client.submit(inc, n)
        secede()
        result = future.result()
        rejoin()
        return result + 1

    assert await c.submit(by_hand, 5) == 7

    def compute_inside() -> int:
        return int(dask.delayed(sum)([dask.delayed(inc)(i) for i in range(3)]).compute())

    assert await c.submit(compute_inside) == 6

    class Holder:
        def __init__(self, future: Future) -> None:
            self.future = future

    def uses_holder(holder: Any) -> int:
        secede()
        return int(holder.future.result())

    x = c.submit(inc, 1)
    assert await c.submit(uses_holder, Holder(x)) == 2
    del x


@gen_cluster(client=True)
async def test_coroutines_that_submit_tasks(c: Client, s: Any, a: Any, b: Any) -> None:
    async def asynchronous(n: int) -> int:
        client = get_client()
        return int(await client.submit(inc, n))

    assert await c.submit(asynchronous, 5) == 6


@gen_cluster(client=True)
async def test_executors(c: Client, s: Any, a: Any, b: Any) -> None:
    with dask.annotate(executor="offload"):
        x = c.submit(lambda: threading.current_thread().name)
    assert (await x).startswith("Dask-Offload")
    with dask.annotate(executor="unknown"):
        y = c.submit(inc, 7)
    with pytest.raises(ValueError, match="unknown"):
        await y
    assert (await c.submit(lambda: threading.current_thread().name)).startswith("Dask-Default-Threads")


def process_id(x: int) -> tuple[int, int]:
    import os

    return os.getpid(), x


@gen_cluster(nthreads=[], client=True, clean_kwargs={"threads": False, "processes": False})
async def test_process_pool_executor(c: Client, s: Any) -> None:
    import os

    from distributed import Worker

    with ProcessPoolExecutor(1) as pool:
        async with Worker(s.address, nthreads=1, executor={"pool": pool}):
            with dask.annotate(executor="pool"):
                pid, value = await c.submit(process_id, c.submit(inc, 1))
                assert pid != os.getpid() and value == 2
                with pytest.raises(RuntimeError, match="hello!"):
                    await c.submit(throws, 1)


@gen_cluster(client=True)
async def test_run_and_metadata(c: Client, s: Any, a: Any, b: Any) -> None:
    assert await c.run(lambda dask_worker: dask_worker.name) == {a.address: 0, b.address: 1}
    assert await c.run(inc, 1, workers=[a.address]) == {a.address: 2}
    assert await c.run(asyncinc, 1, workers=[a.address]) == {a.address: 2}
    with pytest.raises(RuntimeError, match="hello!"):
        await c.run(throws, 1)
    out = await c.run(throws, 1, on_error="return")
    assert all(isinstance(v, RuntimeError) for v in out.values())
    assert await c.run_on_scheduler(lambda dask_scheduler: dask_scheduler.id) == s.id
    with pytest.raises(ZeroDivisionError):
        await c.run_on_scheduler(lambda: 1 / 0)
    await c.set_metadata(["x", "y"], 1)
    assert await c.get_metadata(["x"]) == {"y": 1}
    assert await c.get_metadata("nothing", default=None) is None
    with pytest.raises(KeyError):
        await c.get_metadata("nothing")
    await c.log_event("topic", {"a": 1})
    events = await c.get_events("topic")
    assert events[0][1] == {"a": 1}
    seen: list[Any] = []
    await c.subscribe_topic("topic", seen.append)
    await async_poll_for(lambda: bool(s.bus._subscribers["topic"]))
    await c.log_event("topic", "hello")
    await async_poll_for(lambda: bool(seen) and seen[-1][1] == "hello")
    with pytest.raises(ValueError, match="unknown"):
        await c.unsubscribe_topic("unknown")


@gen_cluster(client=True)
async def test_facts(c: Client, s: Any, a: Any, b: Any) -> None:
    x = c.submit(inc, 1, workers=[a.address])
    await x
    assert await c.nthreads() == {a.address: 1, b.address: 2}
    assert await c.ncores([a.address]) == {a.address: 1}
    assert (await c.has_what())[a.address] == (x.key,)
    assert await c.nbytes() == {"inc": 28}
    assert await c.nbytes(summary=False) == {x.key: 28}
    assert await c.processing() == {a.address: (), b.address: ()}
    info = await c.scheduler.identity()
    assert info["n_workers"] == 2 and info["total_threads"] == 3
    versions = await c.get_versions(check=True)
    assert versions["scheduler"] == versions["client"]
    assert "tcp://127.0.0.1" in repr(c) and "Client" in c._repr_html_()
    assert "finished" in repr(x) and x.key in x._repr_html_()
    logs = await c.get_scheduler_logs()
    assert any("Register worker" in text for _, text in logs)
    story = await c.story(x.key)
    assert ("scheduler", x.key, "processing", "memory") in [record[:4] for record in story]
    await c.wait_for_workers(2)
    with pytest.raises(WorkerStartTimeoutError, match="2/3"):
        await c.wait_for_workers(3, timeout=0.1)
    with pytest.raises(ValueError):
        c.wait_for_workers(0)

    def stuck() -> None:
        get_worker().proceed.wait()

    a.proceed = b.proceed = threading.Event()
    y = c.submit(stuck)
    await async_poll_for(lambda: bool(a.threads.active or b.threads.active))
    (stacks,) = (await c.call_stack()).values()
    assert "stuck" in "".join(stacks[y.key])
    a.proceed.set()
    await y


@gen_cluster(client=True)
async def test_replicate_and_retire(c: Client, s: Any, a: Any, b: Any) -> None:
    x = c.submit(np.arange, 100, workers=[a.address])
    await wait(x)
    await c.replicate(x)
    assert len(s.tasks[x.key].who_has) == 2
    only_here = c.submit(np.ones, 100, workers=[a.address])
    await wait(only_here)
    retired = await c.retire_workers([a.address])
    assert set(retired) == {a.address}
    assert set(s.workers) == {b.address}
    assert (await only_here).sum() == 100
    await async_poll_for(lambda: a.status.name == "closed")


@gen_cluster(client=True)
async def test_futures_pickle_and_rebind(c: Client, s: Any, a: Any, b: Any) -> None:
    x = c.submit(inc, 1)
    with c.as_current():
        y = pickle.loads(pickle.dumps(x))
    assert y is not x and y.key == x.key
    del x
    assert await y == 2
    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        z = Future(y.key, other)
        assert await z == 2
        with pytest.raises(ValueError, match="another client"):
            await c.gather([z])
        del y
        await asyncio.sleep(0)
        assert await other.submit(inc, z) == 3
        del z


@gen_cluster(client=True)
async def test_callbacks(c: Client, s: Any, a: Any, b: Any) -> None:
    seen: list[Any] = []
    x = c.submit(slowinc, 1)
    x.add_done_callback(lambda f: seen.append((f.status, threading.current_thread().name)))
    await async_poll_for(lambda: bool(seen))
    assert seen[0][0] == "finished" and seen[0][1].startswith("Dask-Callback-Thread")


@gen_cluster(client=True)
async def test_plugins_and_files(c: Client, s: Any, a: Any, b: Any, tmp_path: Any) -> None:
    from distributed import SchedulerPlugin, WorkerPlugin

    class Recorder(SchedulerPlugin):
        name = "recorder"

        def __init__(self) -> None:
            self.transitions: list[Any] = []
            self.graphs: list[Any] = []

        def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
            self.transitions.append((key, start, finish))

        def update_graph(self, scheduler: Any, *, client: str, keys: Any, **kwargs: Any) -> None:
            self.graphs.append(keys)

    recorder = Recorder()
    await s.add_plugin(recorder)
    x = c.submit(inc, 1)
    await x
    assert [t[1:] for t in recorder.transitions if t[0] == x.key] == [
        ("released", "waiting"),
        ("waiting", "queued"),
        ("queued", "processing"),
        ("processing", "memory"),
    ]
    assert recorder.graphs == [{x.key}]

    class OnWorker(WorkerPlugin):
        def setup(self, worker: Any) -> None:
            worker.plugged = True

        def teardown(self, worker: Any) -> None:
            worker.plugged = False

    await c.register_plugin(OnWorker(), name="mine")
    assert a.plugged and b.plugged
    await c.unregister_worker_plugin("mine")
    assert not a.plugged
    with pytest.raises(TypeError, match="not a class"):
        c.register_plugin(OnWorker)
    with pytest.raises(TypeError, match="register_plugin expects"):
        c.register_plugin(object())
    module = tmp_path / "uploaded_module_xyz.py"
    module.write_text("def f():\n    return 123\n")
    await c.upload_file(str(module))

    def call_uploaded() -> int:
        import uploaded_module_xyz  # type: ignore[import-not-found]

        return int(uploaded_module_xyz.f())

    assert await c.submit(call_uploaded) == 123
    bad = tmp_path / "uploaded_bad.py"
    bad.write_text("raise ValueError('in the module')")
    with pytest.raises(ImportError, match=r"uploaded_bad\.py.*in the module"):
        await c.upload_file(str(bad))


@gen_cluster(client=True)
async def test_many_clients(c: Client, s: Any, a: Any, b: Any) -> None:
    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        x, y = c.submit(slowinc, 1), other.submit(slowinc, 1)
        assert x.key == y.key
        await x.cancel()
        assert await y == 2
    await async_poll_for(lambda: not s.tasks)


@gen_cluster(client=True)
async def test_scheduler_goes_away(c: Client, s: Any, a: Any, b: Any) -> None:
    def stuck() -> None:
        get_worker().proceed.wait()

    a.proceed = b.proceed = threading.Event()
    x = c.submit(stuck)
    await async_poll_for(lambda: bool(s.tasks))
    c._timeout = 0.2
    for stream in list(s.client_comms.values()):
        stream.comm.abort()
    with pytest.raises(FutureCancelledError, match="scheduler-connection-lost"):
        await x
    a.proceed.set()
    await async_poll_for(lambda: c.status == "running")
    assert await c.submit(inc, 1) == 2


def test_unreachable_scheduler(cleanup: None) -> None:
    with pytest.raises(OSError, match=r"127\.0\.0\.1:1 after 0\.2 s"):
        Client("tcp://127.0.0.1:1", timeout=0.2)
    with pytest.raises(ValueError, match="unknown address scheme 'nonsense'"):
        Client("nonsense://127.0.0.1:1")
    with pytest.raises(TypeError, match="address"):
        Client(5)
    with pytest.raises(ValueError, match="timeout"):
        Client("tcp://127.0.0.1:1", timeout=None)
    with pytest.raises(ValueError, match="n_workers"):
        Client("tcp://127.0.0.1:1", n_workers=2)


def test_sync_client(client: Client, s: Any) -> None:
    assert client.submit(inc, 1).result() == 2
    assert client.gather(client.map(inc, range(5))) == [1, 2, 3, 4, 5]
    with pytest.raises(RuntimeError, match="hello!"):
        client.submit(throws, 1).result()
    with pytest.raises(TimeoutError):
        client.submit(slowinc, 1, delay=1).result(timeout=0.01)
    futures = client.map(slowinc, range(5), delay=0.01)
    assert sorted(r for _, r in as_completed(futures, with_results=True)) == [1, 2, 3, 4, 5]
    assert [len(batch) > 0 for batch in as_completed(client.map(inc, range(3))).batches()]
    assert wait(futures).done == set(futures)
    assert client.scheduler_info()["n_workers"] == 2
    executor_result = client.submit(lambda x: x * 2, client.scatter(21)).result()
    assert executor_result == 42
    x = client.scatter([1, 2])
    assert client.gather(x) == [1, 2]
    assert Client.current() is client
