"""Process titles that say what a worker is doing, where ``setproctitle`` is installed. Never fails without it."""

from __future__ import annotations

import os

try:
    from setproctitle import setproctitle as _setproctitle
except ImportError:
    _setproctitle = None

#: titles are set only in processes that asked for it: this variable holds the pid of the parent that did for its children
ENVIRONMENT_KEY = "__DASK_PARENT_PID"

_enabled = False


def enable_proctitle_on_current() -> None:
    """Set titles in this process."""
    global _enabled
    _enabled = True


def enable_proctitle_on_children() -> None:
    """Set titles in the processes that this one starts."""
    os.environ[ENVIRONMENT_KEY] = str(os.getpid())


def setproctitle(title: str) -> None:
    """Show a title for this process in ``ps``, if that was enabled for it."""
    global _enabled
    if not _enabled:
        _enabled = os.environ.get(ENVIRONMENT_KEY) == str(os.getppid())
    if _enabled and _setproctitle is not None:
        _setproctitle(title)
