"""The first message of a connection: what each side can read, and which extensions both know.

Pure functions on dicts; `Comm.perform_handshake` sends and reads them. The released package ignores keys that it
does not know, which is why extensions are negotiated here (docs/protocol.md).
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

from distributed.protocol.compression import resolve_compression
from distributed.settings import CommSettings

GRAPH_TABLE = "graph-table/1"
TASK_BATCHES = "task-batches/1"

#: what this implementation understands
EXTENSIONS = (GRAPH_TABLE, TASK_BATCHES)


class HandshakeError(ValueError):
    """The peer's hello cannot be used; says what is wrong with it."""


def local_handshake(*, same_host: bool) -> dict[str, Any]:
    """Our hello. Compression is pointless between two ends on one host, so it is not offered there."""
    compression = None if same_host else resolve_compression(CommSettings.from_config().compression)
    return {
        "compression": compression,
        "python": tuple(sys.version_info)[:3],
        "pickle-protocol": pickle.HIGHEST_PROTOCOL,
        "extensions": EXTENSIONS,
    }


def negotiate(local: dict[str, Any], remote: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Options and extensions that both hellos allow.

    Returns the options (``compression``: a codec name or None, ``pickle-protocol``: int) and the extensions.

    Raises
    ------
    HandshakeError
        The remote hello is not a map or lacks its pickle protocol.
    """
    if not isinstance(remote, dict):
        raise HandshakeError(f"expected a map as first message, got {type(remote).__name__}")
    protocol = remote.get("pickle-protocol")
    if not isinstance(protocol, int) or isinstance(protocol, bool):
        raise HandshakeError("the peer does not say which pickle protocol it reads")
    compression = local.get("compression")
    if compression != remote.get("compression"):
        compression = None
    announced = remote.get("extensions")
    theirs = (
        {name for name in announced if isinstance(name, str)}
        if isinstance(announced, (tuple, list))
        else set()
    )
    options = {"compression": compression, "pickle-protocol": min(protocol, local["pickle-protocol"])}
    return options, frozenset(theirs.intersection(local.get("extensions", ())))
