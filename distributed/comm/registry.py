"""Which transport serves which address scheme.

Backends register here: the built-in ones when `distributed.comm` is imported, others through the
entry-point group ``distributed.comm.backends`` (entry name = scheme) or by writing to `backends`.
"""

from __future__ import annotations

import importlib.metadata
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from distributed.comm.base import Connector, Listener

ENTRY_POINT_GROUP = "distributed.comm.backends"


class Backend(ABC):
    """How to dial, listen and speak about addresses of one scheme; locations exclude the scheme."""

    @abstractmethod
    def get_connector(self) -> Connector:
        """An object whose ``connect(location, ...)`` opens a comm."""

    @abstractmethod
    def get_listener(
        self, loc: str, handle_comm: Callable[..., Any], deserialize: bool, **connection_args: Any
    ) -> Listener:
        """A listener bound to `loc` once started; it calls ``handle_comm(comm)`` for each accepted comm."""

    @abstractmethod
    def get_address_host(self, loc: str) -> str:
        """The host part of a location."""

    @abstractmethod
    def resolve_address(self, loc: str) -> str:
        """The location with names resolved, so that it can serve as an identity."""

    def get_address_host_port(self, loc: str) -> tuple[str, int]:
        """Host and port of a location; NotImplementedError where there is no port."""
        raise NotImplementedError(f"{type(self).__name__} addresses have no port: {loc!r}")

    @abstractmethod
    def get_local_address_for(self, loc: str) -> str:
        """A location of this host by which a peer at `loc` could reach it (without a fixed port)."""


#: scheme -> backend; open to third parties
backends: dict[str, Backend] = {}


def get_backend(scheme: str) -> Backend:
    """The backend of a scheme, loading entry points on a miss.

    Raises
    ------
    ValueError
        Unknown scheme; the message lists the known ones.
    """
    backend = backends.get(scheme)
    if backend is not None:
        return backend
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP, name=scheme):
        factory = entry.load()
        loaded: Backend = factory() if callable(factory) else factory
        backends[scheme] = loaded
        return loaded
    known = sorted({*backends, *(e.name for e in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP))})
    raise ValueError(f"unknown address scheme {scheme!r} (known schemes: {known})")
