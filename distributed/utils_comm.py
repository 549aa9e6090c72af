"""Moving results between processes: the peer transfer protocol, gathering with retries, dealing out."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from itertools import cycle
from typing import Any, NamedTuple

from distributed.core import ConnectionPool, send_recv

logger = logging.getLogger(__name__)

Key = Any

#: pause before asking busy holders again, seconds; part of the documented protocol
BUSY_RETRY_S = 0.15


async def get_data_from_worker(
    pool: ConnectionPool,
    worker: str,
    keys: Collection[Key],
    *,
    who: str | None = None,
    serializers: Any = None,
    deserializers: Any = None,
) -> dict[str, Any]:
    """Ask one worker for results.

    Returns
    -------
    ``{"status": "busy"}``, or ``{"status": "OK", "data": {key: value}}`` without the keys that it does not have.
    """
    comm = await pool.connect(worker)
    try:
        response: dict[str, Any] = await send_recv(
            comm,
            op="get_data",
            keys=list(keys),
            who=who,
            serializers=serializers,
            deserializers=deserializers,
        )
        if response.get("status") == "OK":
            # the holder keeps its transfer slot until we say that we have the data
            await comm.write("OK")
        return response
    except BaseException:
        comm.abort()
        raise
    finally:
        pool.reuse(worker, comm)


class Gathered(NamedTuple):
    """What `gather_from_workers` got."""

    data: dict[Key, Any]
    #: keys that no known holder has
    missing: list[Key]
    #: workers that could not be reached
    failed_workers: set[str]


async def gather_from_workers(
    who_has: Mapping[Key, Collection[str]],
    pool: ConnectionPool,
    *,
    who: str | None = None,
    serializers: Any = None,
) -> Gathered:
    """Collect results from their holders; one that fails is replaced by another holder of the same key."""
    holders = {key: set(workers) for key, workers in who_has.items()}
    data: dict[Key, Any] = {}
    missing: list[Key] = []
    failed: set[str] = set()
    busy: set[str] = set()
    while holders:
        requests: defaultdict[str, list[Key]] = defaultdict(list)
        for key, workers in list(holders.items()):
            workers -= failed
            if not workers:
                missing.append(key)
                del holders[key]
                continue
            free = workers - busy
            if free:
                requests[next(iter(free)) if len(free) == 1 else random.choice(list(free))].append(key)
        if not requests:
            if holders:
                await asyncio.sleep(BUSY_RETRY_S)
                busy.clear()
            continue
        replies = await asyncio.gather(
            *(
                get_data_from_worker(pool, worker, keys, who=who, serializers=serializers)
                for worker, keys in requests.items()
            ),
            return_exceptions=True,
        )
        for (worker, keys), reply in zip(requests.items(), replies, strict=True):
            if isinstance(reply, OSError):
                logger.debug("Cannot get data from %s: %s", worker, reply)
                failed.add(worker)
            elif isinstance(reply, BaseException):
                raise reply
            elif reply["status"] == "busy":
                busy.add(worker)
            else:
                found = reply["data"]
                for key in keys:
                    if key in found:
                        data[key] = found[key]
                        holders.pop(key, None)
                    elif key in holders:
                        holders[key].discard(worker)
    return Gathered(data, missing, failed)


async def scatter_to_workers(
    workers: Collection[str],
    data: Mapping[Key, Any],
    call: Callable[[str], Any],
    start: int = 0,
) -> tuple[dict[Key, list[str]], dict[Key, int]]:
    """Deal data out to workers in turn; ``call(address)`` gives an rpc. Returns who has what, and sizes in bytes."""
    ordered = sorted(workers)
    turn = cycle(ordered[start % len(ordered) :] + ordered[: start % len(ordered)])
    shares: defaultdict[str, dict[Key, Any]] = defaultdict(dict)
    who_has: dict[Key, list[str]] = {}
    for key, value in data.items():
        worker = next(turn)
        shares[worker][key] = value
        who_has[key] = [worker]
    replies = await asyncio.gather(
        *(call(worker).update_data(data=share) for worker, share in shares.items())
    )
    nbytes: dict[Key, int] = {}
    for reply in replies:
        nbytes.update(reply["nbytes"])
    return who_has, nbytes
