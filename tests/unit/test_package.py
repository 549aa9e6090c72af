"""The package as a whole: names, versions, configuration, import cost and purity."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from pathlib import Path

import dask
import pytest
import yaml

import distributed

ROOT = Path(distributed.__file__).parent


def test_names() -> None:
    for name in distributed.__all__:
        assert getattr(distributed, name) is not None
    assert distributed.__version__.startswith("2026.8.0+")
    assert distributed.config is dask.config.config
    from distributed.config import initialize_logging

    assert callable(initialize_logging)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = distributed.nonsense


def test_through_dask() -> None:
    module = importlib.import_module("dask.distributed")
    assert module.Client is distributed.Client
    assert module.get_worker is distributed.get_worker
    assert module.utils is importlib.import_module("distributed.utils")


def test_public_classes_show_their_public_module() -> None:
    assert distributed.Client.__module__ == "distributed.client"
    assert distributed.Scheduler.__module__ == "distributed.scheduler"
    assert distributed.Worker.__module__ == "distributed.worker"
    assert distributed.Status.__module__ == "distributed.core"
    assert distributed.KilledWorker.__module__ == "distributed.scheduler"
    assert distributed.SchedulerPlugin.__module__ == "distributed.diagnostics.plugin"
    assert distributed.get_client.__module__ == "distributed.worker"


def flatten(tree: dict[str, object], prefix: str = "") -> set[str]:
    keys: set[str] = set()
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            keys |= flatten(value, f"{prefix}{name}.")
        else:
            keys.add(prefix + name)
    return keys


def test_configuration_and_schema_say_the_same() -> None:
    defaults = yaml.safe_load((ROOT / "distributed.yaml").read_text())
    schema = yaml.safe_load((ROOT / "distributed-schema.yaml").read_text())

    def check(values: dict[str, object], properties: dict[str, dict[str, object]], path: str) -> None:
        assert set(values) == set(properties), path
        kinds = {
            "string": str,
            "integer": int,
            "number": (int, float),
            "boolean": bool,
            "null": type(None),
            "array": list,
            "object": dict,
        }
        for name, value in values.items():
            entry = properties[name]
            if "properties" in entry:
                check(value, entry["properties"], f"{path}.{name}")  # type: ignore[arg-type]
                continue
            assert entry["description"]
            types = entry["type"] if isinstance(entry["type"], list) else [entry["type"]]
            assert any(isinstance(value, kinds[t]) for t in types), (
                f"{path}.{name}: {value!r} is none of {types}"
            )

    check(defaults, schema["properties"], "")


def test_every_key_that_is_read_has_a_default() -> None:
    defaults = flatten(yaml.safe_load((ROOT / "distributed.yaml").read_text()))
    import re

    for path in ROOT.rglob("*.py"):
        for key in re.findall(r'config\.get\(\s*"(distributed\.[\w.\-]+)"\s*\)', path.read_text()):
            assert any(key == known or known.startswith(key + ".") for known in defaults), f"{path}: {key}"


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True, text=True
    ).stdout


def test_machines_import_neither_loops_nor_sockets() -> None:
    out = run(
        f"""
        import sys, types
        package = types.ModuleType("distributed")
        package.__path__ = [{str(ROOT)!r}]
        sys.modules["distributed"] = package
        import dask.utils
        for name in ("asyncio", "tornado", "ssl", "distributed.comm", "distributed.core", "distributed.config"):
            sys.modules[name] = None
        import distributed.scheduler_state_machine, distributed.worker_state_machine
        print("pure")
        """
    )
    assert out.strip() == "pure"


def test_import_loads_little() -> None:
    """Time is measured elsewhere; what is loaded can be counted."""
    out = run(
        """
        import sys
        import dask
        import distributed
        heavy = [m for m in ("numpy", "pandas", "tornado", "distributed.client", "distributed.scheduler", "distributed.worker") if m in sys.modules]
        print(heavy)
        """
    )
    assert out.strip() == "[]"


def test_no_logging_of_ours_at_import_of_others() -> None:
    out = run(
        """
        import logging
        logging.basicConfig()
        import distributed
        print(len(logging.getLogger("distributed").handlers))
        """
    )
    assert out.strip() == "0"
