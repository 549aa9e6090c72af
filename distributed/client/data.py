"""Results come in, and data goes out: gather, scatter, cancel, retry."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from dask.tokenize import tokenize
from dask.utils import is_namedtuple_instance

from distributed.client.base import CANCELLED_MAX, ClientBase
from distributed.client.errors import FutureCancelledError
from distributed.client.future import Future, FutureState
from distributed.client.waiting import futures_of
from distributed.core import ConnectionPool
from distributed.protocol import to_serialize
from distributed.settings import connect_timeout
from distributed.utils import parse_timedelta
from distributed.utils_comm import gather_from_workers, scatter_to_workers

Key = Any


class _Skip:
    """Stands for a result that is left out."""


_SKIP = _Skip()


class DataMethods(ClientBase):
    """Methods about data."""

    direct_to_workers: bool | None
    _direct_pool: ConnectionPool | None = None

    # --- gather --------------------------------------------------------------------------------------------

    def gather(
        self, futures: Any, errors: str = "raise", direct: Any = None, asynchronous: bool | None = None
    ) -> Any:
        """Fetch the results of futures, in the structure in which they are.

        Parameters
        ----------
        futures
            A future, or lists, tuples, sets and dicts of them; an iterator gives a generator of results.
        errors
            ``"raise"``: the first error; ``"skip"``: leave failed ones out of lists.
        direct
            Fetch from the workers themselves; an error if one cannot be reached.

        Raises
        ------
        ValueError
            A future belongs to another client.
        """
        if errors not in ("raise", "skip"):
            raise ValueError(f"errors must be 'raise' or 'skip', got {errors!r}")
        if isinstance(futures, Iterator):
            return (self.gather(f, errors=errors, direct=direct) for f in futures)
        return self.sync(self._gather, futures, errors=errors, direct=direct, asynchronous=asynchronous)

    async def _gather(self, futures: Any, errors: str = "raise", direct: Any = None) -> Any:
        found = list(dict.fromkeys(futures_of(futures)))
        for future in found:
            if future.client is not self:
                raise ValueError(
                    f"Cannot gather Futures created by another client: {future!r} belongs to {future.client!r}"
                )
        results: dict[Key, Any] = {}
        by_key = {future.key: future for future in found}
        while True:
            states = [future._bound() for future in by_key.values()]
            await self._wait_for_states(states)
            wanted = []
            for key, future in by_key.items():
                state = future._bound()
                if state.status == "finished":
                    if state.inline is not None:
                        results[key] = state.inline[0]
                    elif key not in results:
                        wanted.append(key)
                elif errors == "skip":
                    results[key] = _SKIP
                elif state.status == "error":
                    exc, tb = state.error()
                    raise exc.with_traceback(tb)
                elif state.status == "cancelled":
                    raise FutureCancelledError(key, state.reason, state.msg)
            if wanted:
                results.update(await self._fetch(wanted, direct))
            if len(results) == len(by_key):
                break
        return _fill(futures, results)

    async def _fetch(self, keys: list[Key], direct: bool | None = None) -> dict[Key, Any]:
        """Values of finished keys. Those that nobody has any more are left out; their states are pending again."""
        if direct is None:
            direct = self.direct_to_workers
        if direct:
            who_has = await self.scheduler.who_has(keys=keys)
            gathered = await gather_from_workers(who_has, self._pool_to_workers())
            if gathered.failed_workers:
                raise OSError(
                    f"cannot reach workers {sorted(gathered.failed_workers)} for a direct gather; direct=False goes through the scheduler"
                )
            data, missing = gathered.data, gathered.missing
        else:
            response = await self.scheduler.gather(keys=keys)
            if response["status"] == "OK":
                return response["data"]  # type: ignore[no-any-return]
            data, missing = {}, list(response["keys"])
        for key in missing:
            state = self.futures.get(key)
            if state is not None and state.status == "finished":
                state.status = "lost"
            self._post({"op": "report-key", "key": key})
        if not direct and missing:
            rest = [key for key in keys if key not in set(missing)]
            if rest:
                data = await self._fetch(rest, direct)
        return data

    def _pool_to_workers(self) -> ConnectionPool:
        if self._direct_pool is None:
            self._direct_pool = ConnectionPool(connection_args=self.connection_args, timeout=self._timeout)
        return self._direct_pool

    # --- scatter -------------------------------------------------------------------------------------------

    def scatter(
        self,
        data: Any,
        workers: Any = None,
        broadcast: bool | int = False,
        direct: Any = None,
        hash: bool = True,
        timeout: Any = None,
        asynchronous: bool | None = None,
    ) -> Any:
        """Put data on workers; futures in the structure of the data.

        Lists, tuples, sets, frozensets, dicts and namedtuples, of exactly these types, are taken apart; anything else is one future.

        Parameters
        ----------
        broadcast
            True: a copy on each worker; or a number of copies.
        hash
            Whether equal data gets equal keys.
        timeout
            How long to wait for a worker, seconds or duration string.

        Raises
        ------
        TypeError
            An iterator or queue.
        """
        if isinstance(data, Iterator) or type(data).__name__ == "Queue":
            raise TypeError(
                f"Dask no longer supports mapping over Iterators or Queues, got {type(data).__name__}. Consider using a normal for loop and Client.scatter"
            )
        seconds = connect_timeout() if timeout is None else parse_timedelta(timeout, "s")
        return self.sync(
            self._scatter,
            data,
            workers=workers,
            broadcast=broadcast,
            direct=direct,
            hash=hash,
            timeout=seconds,
            asynchronous=asynchronous,
        )

    async def _scatter(
        self, data: Any, workers: Any, broadcast: bool | int, direct: bool | None, hash: bool, timeout: float
    ) -> Any:
        if isinstance(workers, (str, int)):
            workers = [workers]
        if isinstance(data, range):
            data = list(data)
        single = False
        values: dict[Key, Any]
        if type(data) is dict:
            values = dict(data)
        elif type(data) in (list, tuple, set, frozenset) or is_namedtuple_instance(data):
            values = {_data_key(item, hash): item for item in data}
        else:
            single = True
            values = {_data_key(data, hash): data}
        if not values:
            return type(data)() if not single else data
        with self._lock:
            futures = {key: Future(key, self, self.futures.get(key) or FutureState()) for key in values}
        if direct is None:
            direct = self.direct_to_workers
        if direct:
            if workers is None:
                workers = list(await self.scheduler.ncores_running())
            if not workers:
                raise TimeoutError("No valid workers found")
            pool = self._pool_to_workers()
            payload = {key: to_serialize(value) for key, value in values.items()}
            who_has, nbytes = await scatter_to_workers(workers, payload, pool)
            await self.scheduler.update_data(who_has=who_has, nbytes=nbytes, client=self.id)
            if broadcast:
                await self.scheduler.replicate(
                    keys=list(values), workers=list(workers), n=None if broadcast is True else int(broadcast)
                )
        else:
            await self.scheduler.scatter(
                data={key: to_serialize(value) for key, value in values.items()},
                workers=None if workers is None else list(workers),
                client=self.id,
                broadcast=broadcast,
                timeout=timeout,
            )
        for key, value in values.items():
            state = self.futures.get(key)
            if state is not None:
                state._type = type(value)
                if not state.done:
                    state.finish(None)
        if single:
            return next(iter(futures.values()))
        if type(data) is dict:
            return futures
        out = [futures[_data_key(item, hash)] for item in data] if hash else list(futures.values())
        return type(data)(*out) if is_namedtuple_instance(data) else type(data)(out)

    # --- cancel and retry ----------------------------------------------------------------------------------

    def cancel(
        self,
        futures: Any,
        asynchronous: bool | None = None,
        force: bool = False,
        reason: str | None = None,
        msg: str | None = None,
    ) -> Any:
        """Cancel tasks, and what depends on them. `force`: also where other clients want them."""
        return self.sync(
            self._cancel, futures, force=force, reason=reason, msg=msg, asynchronous=asynchronous
        )

    async def _cancel(self, futures: Any, force: bool, reason: str | None, msg: str | None) -> None:
        keys = list({future.key for future in futures_of(futures)})
        # in the order of the other messages: what was submitted before is cancelled, what comes after is not
        self._move_outgoing()
        self._send_to_scheduler(
            {"op": "cancel-keys", "keys": keys, "force": force, "reason": reason, "msg": msg}
        )
        self._move_outgoing()
        cancelled_here = self._cancelled_here
        for key in keys:
            with self._lock:
                state = self.futures.pop(key, None)
            if state is not None:
                state.cancel(reason, msg)
            cancelled_here[key] = None
        while len(cancelled_here) > CANCELLED_MAX:
            del cancelled_here[next(iter(cancelled_here))]

    def retry(self, futures: Any, asynchronous: bool | None = None) -> Any:
        """Run failed tasks again, with those that made them fail."""
        return self.sync(self._retry, futures, asynchronous=asynchronous)

    async def _retry(self, futures: Any) -> None:
        keys = [future.key for future in futures_of(futures)]
        for key in await self.scheduler.retry(keys=keys, client=self.id):
            state = self.futures.get(key)
            if state is not None and state.status == "error":
                state.retry()


def _data_key(value: Any, hash: bool) -> str:
    return f"{type(value).__name__}-{tokenize(value) if hash else uuid.uuid4().hex}"


def _fill(obj: Any, results: Mapping[Key, Any]) -> Any:
    """The structure with futures replaced by results."""
    if isinstance(obj, Future):
        value = results[obj.key]
        return None if value is _SKIP else value
    typ = type(obj)
    if typ in (list, tuple, set, frozenset):
        return typ(_fill(item, results) for item in obj if not _skipped(item, results))
    if typ is dict:
        return {key: _fill(value, results) for key, value in obj.items() if not _skipped(value, results)}
    if is_namedtuple_instance(obj):
        return typ(*(_fill(item, results) for item in obj))
    return obj


def _skipped(obj: Any, results: Mapping[Key, Any]) -> bool:
    return isinstance(obj, Future) and results[obj.key] is _SKIP
