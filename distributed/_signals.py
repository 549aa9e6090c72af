"""Wait for a signal inside an event loop."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Collection
from types import FrameType
from typing import Any

logger = logging.getLogger(__name__)


async def wait_for_signals(signals: Collection[signal.Signals]) -> int:
    """Wait until one of the signals arrives and return its number. Main thread only.

    Earlier handlers are restored afterwards, so a second signal has its usual effect.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[int] = loop.create_future()
    previous: dict[int, Any] = {}

    def set_result(signum: int) -> None:
        if not arrived.done():
            arrived.set_result(signum)

    def handle(signum: int, frame: FrameType | None) -> None:
        signal.signal(signum, previous[signum])
        loop.call_soon_threadsafe(set_result, signum)

    for signum in signals:
        previous[signum] = signal.signal(signum, handle)
    try:
        return await arrived
    finally:
        for signum in signals:
            signal.signal(signum, previous[signum])
