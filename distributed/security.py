"""Fields of a TLS set-up. The TLS transport itself comes in a later release: asking for encryption is refused clearly until then."""

from __future__ import annotations

from typing import Any

import dask.config

_FIELDS = (
    "require_encryption",
    "tls_ca_file",
    "tls_ciphers",
    "tls_min_version",
    "tls_max_version",
    "tls_client_cert",
    "tls_client_key",
    "tls_scheduler_cert",
    "tls_scheduler_key",
    "tls_worker_cert",
    "tls_worker_key",
    "extra_conn_args",
)

_CONFIG_KEYS = {
    "tls_ca_file": "distributed.comm.tls.ca-file",
    "tls_ciphers": "distributed.comm.tls.ciphers",
    "tls_min_version": "distributed.comm.tls.min-version",
    "tls_max_version": "distributed.comm.tls.max-version",
    "tls_client_cert": "distributed.comm.tls.client.cert",
    "tls_client_key": "distributed.comm.tls.client.key",
    "tls_scheduler_cert": "distributed.comm.tls.scheduler.cert",
    "tls_scheduler_key": "distributed.comm.tls.scheduler.key",
    "tls_worker_cert": "distributed.comm.tls.worker.cert",
    "tls_worker_key": "distributed.comm.tls.worker.key",
}


class Security:
    """TLS settings: certificates and keys per role, as paths or PEM text.

    Raises
    ------
    TypeError
        Unknown keyword.
    """

    __slots__ = _FIELDS

    def __init__(self, require_encryption: bool | None = None, **kwargs: Any) -> None:
        unknown = set(kwargs) - set(_FIELDS)
        if unknown:
            raise TypeError(f"Unknown parameters: {sorted(unknown)!r}; known: {list(_FIELDS)}")
        for name in _FIELDS:
            value = kwargs.get(name)
            if value is None and name in _CONFIG_KEYS:
                value = dask.config.get(_CONFIG_KEYS[name], None)
            setattr(self, name, value)
        self.extra_conn_args = kwargs.get("extra_conn_args") or {}
        if require_encryption is None:
            require_encryption = dask.config.get("distributed.comm.require-encryption", None)
        if require_encryption is None:
            require_encryption = any(kwargs.get(name) for name in _CONFIG_KEYS)
        self.require_encryption = bool(require_encryption)

    def get_tls_config_for_role(self, role: str) -> dict[str, Any]:
        """CA, certificate and key of a role: client, scheduler or worker."""
        if role not in ("client", "scheduler", "worker"):
            raise ValueError(f"unknown role {role!r}: expected client, scheduler or worker")
        return {
            "ca_file": self.tls_ca_file,  # type: ignore[attr-defined]
            "cert": getattr(self, f"tls_{role}_cert"),
            "key": getattr(self, f"tls_{role}_key"),
            "ciphers": self.tls_ciphers,  # type: ignore[attr-defined]
        }

    def get_connection_args(self, role: str) -> dict[str, Any]:
        """Arguments for `connect` by a role."""
        self.get_tls_config_for_role(role)
        return {"extra_conn_args": self.extra_conn_args, "require_encryption": self.require_encryption}

    def get_listen_args(self, role: str) -> dict[str, Any]:
        """Arguments for `listen` by a role."""
        self.get_tls_config_for_role(role)
        return {"require_encryption": self.require_encryption}

    def __repr__(self) -> str:
        shown = [f"require_encryption={self.require_encryption}"]
        for name in _CONFIG_KEYS:
            value = getattr(self, name)
            if value is not None:
                # keys and certificates may be given as text: never print them
                shown.append(f"{name}=..." if "\n" in str(value) else f"{name}={value!r}")
        return f"Security({', '.join(shown)})"
