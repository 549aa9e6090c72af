"""Ground: functions that every layer may use. Knows nothing of this package above itself."""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError

from dask.context import thread_state
from dask.utils import format_bytes, funcname, key_split, parse_bytes, parse_timedelta, typename

from distributed.utils.logs import (
    Log,
    Logs,
    log_errors,
    set_quietness,
    silence_logging_cmgr,
    warn_on_duration,
)
from distributed.utils.loops import Deadline, LoopRunner, SyncMethodMixin, in_async_call, sync, wait_for
from distributed.utils.misc import (
    cli_keywords,
    format_dashboard_link,
    ignoring,
    import_term,
    iscoroutinefunction,
    nbytes,
    read_scheduler_file,
    tmpfile,
)
from distributed.utils.network import (
    ensure_ip,
    get_ip,
    get_ip_interface,
    get_ipv6,
    has_ipv6,
    open_port,
    parse_ports,
)

TimeoutError = asyncio.TimeoutError

__all__ = [
    "CancelledError",
    "Deadline",
    "Log",
    "Logs",
    "LoopRunner",
    "SyncMethodMixin",
    "TimeoutError",
    "cli_keywords",
    "ensure_ip",
    "format_bytes",
    "format_dashboard_link",
    "funcname",
    "get_ip",
    "get_ip_interface",
    "get_ipv6",
    "has_ipv6",
    "ignoring",
    "import_term",
    "in_async_call",
    "iscoroutinefunction",
    "key_split",
    "log_errors",
    "nbytes",
    "open_port",
    "parse_bytes",
    "parse_ports",
    "read_scheduler_file",
    "parse_timedelta",
    "set_quietness",
    "silence_logging_cmgr",
    "sync",
    "thread_state",
    "tmpfile",
    "typename",
    "wait_for",
    "warn_on_duration",
]
