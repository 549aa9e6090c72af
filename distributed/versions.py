"""Which versions of what run where, and a warning when they differ."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import struct
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from distributed._version import public_version

#: packages whose difference between peers is worth a warning
PACKAGES = ("dask", "distributed", "msgpack", "cloudpickle", "tornado", "toolz", "numpy", "pandas", "lz4")


class VersionMismatchWarning(Warning):
    """Peers run different versions of packages that matter."""


def _version(package: str) -> str | None:
    if package == "distributed":
        # the public part only: peers compare texts
        return public_version
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def get_versions(packages: Iterable[str] | None = None) -> dict[str, dict[str, Any]]:
    """Facts about this machine and the versions of the packages that matter, plus further ones."""
    names = [*PACKAGES, *(packages or ())]
    return {
        "host": {
            "python": "{}.{}.{}.{}.{}".format(*sys.version_info),
            "python-bits": struct.calcsize("P") * 8,
            "OS": platform.system(),
            "OS-release": platform.release(),
            "machine": platform.machine(),
            "processor": platform.processor(),
            "byteorder": sys.byteorder,
            "LC_ALL": os.environ.get("LC_ALL", "None"),
            "LANG": os.environ.get("LANG", "None"),
        },
        "packages": {
            "python": "{}.{}.{}.{}.{}".format(*sys.version_info),
            **{name: _version(name) for name in names},
        },
    }


def error_message(
    scheduler: Mapping[str, Any] | None,
    others: Mapping[str, Mapping[str, Any] | None],
    client: Mapping[str, Any] | None,
    client_name: str = "client",
) -> dict[str, str]:
    """Compare versions.

    Returns
    -------
    ``warning``: a table of the packages that differ, or an empty text. ``error``: always empty; a difference never refuses a peer.
    """
    nodes: dict[str, Mapping[str, Any] | None] = {client_name: client, "Scheduler": scheduler, **others}
    rows: dict[str, dict[str, Any]] = {}
    for package in ("python", *PACKAGES):
        found: dict[Any, list[str]] = {}
        for name, node in nodes.items():
            if node is None and name == client_name:
                continue
            version = (node or {}).get("packages", {}).get(package)
            found.setdefault(version, []).append(name)
        if len(found) > 1:
            rows[package] = {who: version for version, names in found.items() for who in names}
    if not rows:
        return {"warning": "", "error": ""}
    columns = [name for name in nodes if any(name in row for row in rows.values())]
    lines = ["Mismatched versions found", "", " | ".join(["Package", *columns])]
    for package, row in rows.items():
        lines.append(" | ".join([package, *(str(row.get(column)) for column in columns)]))
    return {"warning": "\n".join(lines), "error": ""}
