"""Functions that tests send to clusters."""

from __future__ import annotations

import asyncio
import operator
import random
import time
from collections.abc import Callable
from typing import Any


def inc(x: Any) -> Any:
    return x + 1


def dec(x: Any) -> Any:
    return x - 1


def double(x: Any) -> Any:
    return x * 2


def mul(x: Any, y: Any) -> Any:
    return x * y


def div(x: Any, y: Any) -> Any:
    return x / y


def throws(x: Any) -> Any:
    raise RuntimeError("hello!")


def slowinc(x: Any, delay: float = 0.02) -> Any:
    time.sleep(delay)
    return x + 1


def slowdec(x: Any, delay: float = 0.02) -> Any:
    time.sleep(delay)
    return x - 1


def slowdouble(x: Any, delay: float = 0.02) -> Any:
    time.sleep(delay)
    return 2 * x


def slowadd(x: Any, y: Any, delay: float = 0.02) -> Any:
    time.sleep(delay)
    return x + y


def slowsum(seq: Any, delay: float = 0.02) -> Any:
    time.sleep(delay)
    return sum(seq)


def slowidentity(*args: Any, delay: float = 0.02) -> Any:
    time.sleep(delay)
    return args[0] if len(args) == 1 else args


def randominc(x: Any, scale: float = 1) -> Any:
    time.sleep(random.random() * scale)
    return x + 1


async def asyncinc(x: Any, delay: float = 0.02) -> Any:
    await asyncio.sleep(delay)
    return x + 1


def run_for(duration: float, timer: Callable[[], float] = time.time) -> None:
    """Burn CPU for a while."""
    deadline = timer() + duration
    while timer() <= deadline:
        pass


def varying(items: list[Any]) -> Callable[[], Any]:
    """A function that gives one item after the other, call by call; exceptions are raised."""
    position = 0

    def func() -> Any:
        nonlocal position
        item = items[position]
        position += 1
        if isinstance(item, BaseException):
            raise item
        return item

    return func


add = operator.add
