"""Addresses of this machine, and port numbers."""

from __future__ import annotations

import functools
import socket

import psutil


@functools.lru_cache
def has_ipv6() -> bool:
    """Whether this machine can listen on IPv6."""
    if not socket.has_ipv6:
        return False
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
            sock.bind(("::", 0))
            return True
    except OSError:
        return False


def _local_address(host: str, port: int, family: int, fallback: str) -> str:
    # connecting a datagram socket sends nothing: it only asks the routing table
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((host, port))
            return str(sock.getsockname()[0])
        except OSError:
            pass  # no route, for example without a network: the host name may still resolve
    try:
        infos = socket.getaddrinfo(socket.gethostname(), port, family, socket.SOCK_DGRAM, socket.IPPROTO_UDP)
        return str(infos[0][4][0])
    except OSError:
        return fallback


@functools.lru_cache
def get_ip(host: str = "8.8.8.8", port: int = 80) -> str:
    """The IPv4 address of this machine that is used to reach `host`."""
    return _local_address(host, port, socket.AF_INET, "127.0.0.1")


@functools.lru_cache
def get_ipv6(host: str = "2001:4860:4860::8888", port: int = 80) -> str:
    """The IPv6 address of this machine that is used to reach `host`."""
    return _local_address(host, port, socket.AF_INET6, "::1")


def get_ip_interface(ifname: str) -> str:
    """The IPv4 address of a network interface. ValueError lists the interfaces that there are."""
    interfaces = psutil.net_if_addrs()
    if ifname not in interfaces:
        raise ValueError(
            f"{ifname!r} is not a valid network interface. Valid network interfaces are: {list(interfaces)}"
        )
    for info in interfaces[ifname]:
        if info.family == socket.AF_INET:
            return str(info.address)
    raise ValueError(f"interface {ifname!r} doesn't have an IPv4 address")


def ensure_ip(hostname: str) -> str:
    """An IP number for a host name; IPv4 if there is one."""
    if hostname == "localhost":
        return "127.0.0.1"
    families = (socket.AF_INET, socket.AF_INET6) if socket.has_ipv6 else (socket.AF_INET,)
    error: OSError | None = None
    for family in families:
        try:
            return str(socket.getaddrinfo(hostname, 1234, family, socket.SOCK_STREAM)[0][4][0])
        except socket.gaierror as exc:
            error = exc
    raise OSError(f"cannot resolve host name {hostname!r}: {error}") from error


def open_port(host: str = "") -> int:
    """A port that was free a moment ago."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind((host, 0))
        sock.listen(1)
        return int(sock.getsockname()[1])


def parse_ports(port: int | str | list[int] | None) -> list[int] | list[None]:
    """Ports from a number, a range ``first:last``, a list or None (any port).

    >>> parse_ports("8787:8790")
    [8787, 8788, 8789, 8790]
    """
    if port is None:
        return [None]
    if isinstance(port, bool):
        raise TypeError(f"port must be a number, a range 'first:last' or a list of numbers; got {port!r}")
    if isinstance(port, str):
        first, sep, last = port.partition(":")
        try:
            start, stop = int(first), int(last) if sep else int(first)
        except ValueError:
            raise ValueError(f"invalid port {port!r}: write a number or a range such as 9000:9100") from None
        if stop < start:
            raise ValueError(
                f"When port is given as a range, the first must not be larger than the last: {port!r}"
            )
        return list(range(start, stop + 1))
    if isinstance(port, int):
        return [port]
    if isinstance(port, list) and all(isinstance(p, int) for p in port):
        return port
    raise TypeError(f"port must be a number, a range 'first:last' or a list of numbers; got {port!r}")
