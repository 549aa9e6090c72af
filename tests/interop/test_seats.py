"""Every combination of scheduler, workers and client runs the same program."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# absolute: processes run in directories of their own
PEER = (
    os.path.abspath(os.environ["DISTRIBUTED_PEER_PYTHON"])
    if "DISTRIBUTED_PEER_PYTHON" in os.environ
    else None
)
PROGRAM = Path(__file__).with_name("program.py")
PYTHONS = {"ours": sys.executable, "released": PEER or ""}

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not PEER, reason="DISTRIBUTED_PEER_PYTHON names no interpreter with the released package"
    ),
]

SEATS = [
    *((s, (w, w), c) for s, w, c in itertools.product(("ours", "released"), repeat=3)),
    *((s, ("ours", "released"), c) for s, c in itertools.product(("ours", "released"), repeat=2)),
]


@contextlib.contextmanager
def process(log: Path, *args: str) -> Iterator[Any]:
    """A process whose output goes to a file; ends with the block."""
    with (
        log.open("w") as out,
        subprocess.Popen(args, stdout=out, stderr=subprocess.STDOUT, cwd=log.parent) as p,
    ):
        try:
            yield p
        finally:
            p.terminate()
            try:
                p.wait(20)
            except subprocess.TimeoutExpired:
                p.kill()


@pytest.mark.parametrize(
    ("scheduler", "workers", "client"), SEATS, ids=lambda x: "+".join(x) if isinstance(x, tuple) else x
)
def test_program(scheduler: str, workers: tuple[str, ...], client: str, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        contact = tmp_path / "scheduler.json"
        stack.enter_context(
            process(
                tmp_path / "scheduler.log",
                *(PYTHONS[scheduler], "-m", "dask", "scheduler", "--host", "127.0.0.1", "--port", "0"),
                *("--no-dashboard", "--scheduler-file", str(contact)),
            )
        )
        for i, worker in enumerate(workers):
            stack.enter_context(
                process(
                    tmp_path / f"worker-{i}.log",
                    *(
                        PYTHONS[worker],
                        "-m",
                        "dask",
                        "worker",
                        "--scheduler-file",
                        str(contact),
                        "--name",
                        str(i),
                    ),
                    *("--nthreads", "1", "--no-dashboard", "--resources", "special=1"),
                    *("--local-directory", str(tmp_path), "--memory-limit", "2GiB"),
                )
            )
        run = subprocess.run(
            [PYTHONS[client], str(PROGRAM), address(contact)],
            capture_output=True,
            text=True,
            timeout=200,
            cwd=tmp_path,
        )
    logs = {path.name: path.read_text()[-3000:] for path in tmp_path.glob("*.log")}
    assert run.stdout.endswith("done\n") and run.returncode == 0, (run.stdout, run.stderr[-3000:], logs)
    # a released worker may report a heartbeat that its restart has cut off; ours have nothing to report
    seats = {"scheduler.log": scheduler, **{f"worker-{i}.log": worker for i, worker in enumerate(workers)}}
    for name, log in logs.items():
        assert seats[name] == "released" or "Traceback" not in log, (name, log)


def address(contact: Path) -> str:
    """Where the scheduler is, as soon as it says so."""
    import json
    import time

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError):
            return str(json.loads(contact.read_text())["address"])
        time.sleep(0.05)
    raise TimeoutError("the scheduler did not write its file")
