"""The life-cycle states of servers and clusters."""

from __future__ import annotations

from enum import Enum


class Status(Enum):
    """Life-cycle of a server.

    The string values travel on the wire and are known to users. Compare with members; `lookup` maps a name to its member.
    """

    undefined = "undefined"
    created = "created"
    init = "init"
    starting = "starting"
    running = "running"
    paused = "paused"
    stopping = "stopping"
    stopped = "stopped"
    closing = "closing"
    closing_gracefully = "closing_gracefully"
    closed = "closed"
    failed = "failed"
    #: returned by a handler that has written its own answer
    dont_reply = "dont_reply"


Status.lookup = {member.name: member for member in Status}  # type: ignore[attr-defined]
# enum members travel by module and name; released peers import them from here
Status.__module__ = "distributed.core"
