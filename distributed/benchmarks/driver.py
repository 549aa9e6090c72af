"""The client process of a benchmark: builds and runs workloads on request.

Started as a script by the interpreter of either side. It reads one JSON command per line from standard input and answers with one JSON line:
``{"do": "build", "workload": ...}``, ``{"do": "run"}``, ``{"do": "cleanup"}``, ``{"do": "quit"}``. The controller puts `workloads.py` on the module path of all
processes of a side, as ``benchmark_workloads``: the package that it lies in may be another side's.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
from typing import Any

import benchmark_workloads as workloads

import distributed


def main() -> None:
    """Serve commands until ``quit`` or the end of the input."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not be taken for an answer

    def reply(**fields: Any) -> None:
        answer.write(json.dumps(fields) + "\n")
        answer.flush()

    address, n_workers = sys.argv[1], int(sys.argv[2])
    client = distributed.Client(address)
    client.wait_for_workers(n_workers, timeout=60)
    reply(ready=True, pid=os.getpid(), version=distributed.__version__)
    workload: Any = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if command["do"] == "build":
                start = time.perf_counter()
                workload = workloads.make_workload(client, command["workload"])
                gc.collect()
                reply(ok=True, build_s=time.perf_counter() - start)
            elif command["do"] == "run":
                start = time.perf_counter()
                result = workload.run()
                reply(ok=True, wall_s=time.perf_counter() - start, **result)
            elif command["do"] == "cleanup":
                workload.cleanup()
                workload = None
                gc.collect()
                # results are gone when the scheduler says so
                deadline = time.monotonic() + 60
                while client.run_on_scheduler(count_tasks) and time.monotonic() < deadline:
                    time.sleep(0.05)
                reply(ok=True)
            elif command["do"] == "quit":
                break
        except Exception:  # anything the measured side raises is the controller's to report
            reply(ok=False, error=traceback.format_exc())
    client.close()


def count_tasks(dask_scheduler: Any) -> int:
    """Tasks that the scheduler knows."""
    return len(dask_scheduler.tasks)


if __name__ == "__main__":
    main()
