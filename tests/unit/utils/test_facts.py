"""Security fields, replies as HTML, versions."""

from __future__ import annotations

import pickle

import dask
import pytest

from distributed.exceptions import WorkerStartTimeoutError
from distributed.objects import HasWhat, SchedulerInfo, WhoHas
from distributed.security import Security
from distributed.versions import error_message, get_versions


def test_security() -> None:
    security = Security(tls_ca_file="ca.pem", tls_client_key="-----BEGIN\nsecret\n", require_encryption=True)
    assert security.get_connection_args("client")["require_encryption"] is True
    assert security.get_tls_config_for_role("client")["ca_file"] == "ca.pem"
    assert "secret" not in repr(security) and "ca.pem" in repr(security)
    assert Security().require_encryption is False
    with dask.config.set({"distributed.comm.require-encryption": True}):
        assert Security().require_encryption is True
        assert Security(require_encryption=False).require_encryption is False
    with pytest.raises(TypeError, match="nonsense"):
        Security(nonsense=1)
    with pytest.raises(ValueError, match="unknown role"):
        security.get_listen_args("boss")


@pytest.mark.parametrize(
    "obj",
    [
        HasWhat({"<script>": ("a", "b")}),
        WhoHas({"<script>": ("<script>",)}),
        SchedulerInfo(
            {
                "address": "<script>",
                "workers": {"<script>": {"name": "<script>", "nthreads": 1, "memory_limit": 10}},
            }
        ),
    ],
)
def test_replies_escape(obj: HasWhat | WhoHas | SchedulerInfo) -> None:
    html = obj._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html


def test_versions_that_differ_are_named() -> None:
    mine = get_versions()
    assert mine["packages"]["distributed"] == "2026.8.0"
    assert error_message(mine, {"tcp://a": mine}, mine) == {"warning": "", "error": ""}
    other = {**mine, "packages": {**mine["packages"], "msgpack": "0.0"}}
    text = error_message(mine, {"tcp://a": other}, mine)["warning"]
    assert "msgpack" in text and "0.0" in text and "tcp://a" in text and "tornado" not in text
    assert "no such package" in get_versions(["no such package"])["packages"]


def test_worker_start_timeout() -> None:
    error = WorkerStartTimeoutError(1, 3, 0.5)
    assert isinstance(error, TimeoutError)
    assert str(pickle.loads(pickle.dumps(error))) == "Only 1/3 workers arrived after 0.5 s"
