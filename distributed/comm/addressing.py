"""Addresses: ``scheme://location`` strings, which serve as identities everywhere.

Compare them as strings, after `normalize_address` (adds the scheme) and, where a peer named a host by
name, `resolve_address`.
"""

from __future__ import annotations

from typing import Any

from distributed.comm.registry import get_backend
from distributed.settings import default_scheme
from distributed.utils import get_ip_interface


def parse_address(addr: str, strict: bool = False) -> tuple[str, str]:
    """Split into scheme and location, on the last ``://``; the default scheme fills in.

    >>> parse_address("tcp://127.0.0.1:8786")
    ('tcp', '127.0.0.1:8786')

    Raises
    ------
    TypeError
        Not a string.
    ValueError
        `strict` and no scheme given.
    """
    if not isinstance(addr, str):
        raise TypeError(f"expected an address string such as 'tcp://127.0.0.1:8786', got {addr!r}")
    scheme, sep, loc = addr.rpartition("://")
    if strict and not sep:
        raise ValueError(f"invalid address {addr!r}: it needs a scheme, for example tcp://{addr}")
    if not sep:
        scheme = default_scheme()
    return scheme, loc


def unparse_address(scheme: str, loc: str) -> str:
    """Join scheme and location."""
    return f"{scheme}://{loc}"


def normalize_address(addr: str) -> str:
    """The address with an explicit scheme."""
    return unparse_address(*parse_address(addr))


def parse_host_port(address: str | tuple[str, int], default_port: int | None = None) -> tuple[str, int]:
    """Split ``host:port``; IPv6 hosts stand in brackets.

    Raises
    ------
    ValueError
        No port and no default, or a port that is not a number.
    """
    if isinstance(address, tuple):
        return address

    def missing() -> int:
        if default_port is None:
            raise ValueError(f"missing port number in address {address!r}: write host:port")
        return default_port

    def number(text: str) -> int:
        try:
            port = int(text)
        except ValueError:
            raise ValueError(f"invalid port {text!r} in address {address!r}: it must be a number") from None
        if not 0 <= port <= 65535:
            raise ValueError(f"invalid port {port} in address {address!r}: it must be within 0 to 65535")
        return port

    if "://" in address:
        _, address = parse_address(address)
    if address.startswith("["):
        host, sep, tail = address[1:].partition("]")
        if not sep:
            raise ValueError(f"invalid IPv6 address {address!r}: the closing ']' is missing")
        if tail and not tail.startswith(":"):
            raise ValueError(f"invalid address {address!r}: write [host]:port")
        port = number(tail[1:]) if len(tail) > 1 else missing()
    else:
        host, sep, tail = address.partition(":")
        if ":" in tail:
            raise ValueError(f"invalid address {address!r}: IPv6 hosts stand in brackets, [::1]:8786")
        port = number(tail) if tail else missing()
    return host, port


def unparse_host_port(host: str, port: int | str | None = None) -> str:
    """Inverse of `parse_host_port`."""
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"{host}:{port}" if port is not None else host


def get_address_host(addr: str) -> str:
    """Host part of an address, without port."""
    scheme, loc = parse_address(addr)
    return get_backend(scheme).get_address_host(loc)


def get_address_host_port(addr: str, strict: bool = False) -> tuple[str, int]:
    """Host and port of an address.

    Raises
    ------
    ValueError
        The scheme has no ports.
    """
    scheme, loc = parse_address(addr, strict=strict)
    try:
        return get_backend(scheme).get_address_host_port(loc)
    except NotImplementedError:
        raise ValueError(f"addresses of scheme {scheme!r} have no host and port: {addr!r}") from None


def resolve_address(addr: str) -> str:
    """The address with host names resolved to IP numbers."""
    scheme, loc = parse_address(addr)
    return unparse_address(scheme, get_backend(scheme).resolve_address(loc))


def get_local_address_for(addr: str) -> str:
    """An address of this host that a peer at `addr` can reach (the port is left out)."""
    scheme, loc = parse_address(addr)
    return unparse_address(scheme, get_backend(scheme).get_local_address_for(loc))


def uri_from_host_port(host_arg: str | None, port_arg: int | None, default_port: int) -> str:
    """The listen URI meant by a pair of command-line ``--host`` and ``--port`` values.

    ``tcp://0.0.0.0:8786``-like; an empty host listens on all interfaces.
    """
    scheme, loc = parse_address(host_arg or "")
    host, port = parse_host_port(loc, default_port=-1)
    if port == -1:
        port = default_port if port_arg is None else port_arg
    elif port_arg and port != port_arg:
        raise ValueError(f"port number given twice, and differently: {host_arg!r} and {port_arg}")
    return unparse_address(scheme, unparse_host_port(host, port))


def addresses_from_user_args(
    host: Any = None,
    port: Any = None,
    interface: Any = None,
    protocol: Any = None,
    peer: str | None = None,
    security: Any = None,
) -> list[str]:
    """Listen addresses from user arguments, each of which may be a list of equal length."""

    def listed(value: Any) -> list[Any]:
        return list(value) if isinstance(value, (list, tuple)) else [value]

    columns = [listed(host), listed(port), listed(interface), listed(protocol)]
    length = max(map(len, columns))
    for name, column in zip(("host", "port", "interface", "protocol"), columns, strict=True):
        if len(column) not in (1, length):
            raise ValueError(f"{name} lists {len(column)} values where others list {length}: {column!r}")
    columns = [column * length if len(column) == 1 else column for column in columns]
    return [
        address_from_user_args(host=h, port=p, interface=i, protocol=q, peer=peer, security=security)
        for h, p, i, q in zip(*columns, strict=True)
    ]


def address_from_user_args(
    host: str | None = None,
    port: int | str | None = None,
    interface: str | None = None,
    protocol: str | None = None,
    peer: str | None = None,
    security: Any = None,
) -> str:
    """The listen address meant by host, port, interface and protocol arguments.

    Raises
    ------
    ValueError
        Contradicting arguments.
    """
    if security is not None and getattr(security, "require_encryption", False) and not protocol:
        protocol = "tls"
    if protocol and protocol.removesuffix("://") == "inproc":
        return "inproc://"
    if interface:
        if host:
            raise ValueError(
                f"give either host or interface, not both: host={host!r}, interface={interface!r}"
            )
        host = get_ip_interface(interface)
    if host and protocol and "://" in host and not host.startswith(protocol.removesuffix("://") + "://"):
        raise ValueError(f"host {host!r} and protocol {protocol!r} contradict each other")
    text = host or ""
    if protocol and "://" not in text:
        text = protocol.removesuffix("://") + "://" + text
    if peer and not host and not interface:
        local = get_local_address_for(peer)
        text = (
            local if not protocol else unparse_address(protocol.removesuffix("://"), parse_address(local)[1])
        )
    scheme, loc = parse_address(text)
    if scheme == "inproc":
        return "inproc://" + loc
    if port is None or port == "":
        bare, _, tail = loc.rpartition(":") if not loc.endswith("]") else (loc, "", "")
        if bare and tail.isdigit():
            return unparse_address(scheme, loc)
        port = 0
    host_part, loc_port = parse_host_port(loc, default_port=int(port))
    if loc_port not in (0, int(port)):
        raise ValueError(f"port number given twice, and differently: {host!r} and {port!r}")
    return unparse_address(scheme, unparse_host_port(host_part, int(port)))
