"""Clocks."""

from __future__ import annotations

import time as _time

#: seconds since the epoch
time = _time.time
#: seconds of a clock that never goes back
monotonic = _time.monotonic
process_time = _time.process_time
thread_time = _time.thread_time
