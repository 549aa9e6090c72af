"""How to split a machine into worker processes and threads."""

from __future__ import annotations

import math

from distributed.system import CPU_COUNT


def nprocesses_nthreads(n: int = CPU_COUNT) -> tuple[int, int]:
    """Processes and threads per process for `n` cores.

    Up to four cores: one process each. Above, the number of processes is the smallest factor of `n` that is at least
    its square root: enough processes to dodge the GIL, enough threads to share data.

    >>> nprocesses_nthreads(4)
    (4, 1)
    >>> nprocesses_nthreads(32)
    (8, 4)
    """
    if n < 1:
        raise ValueError(f"expected a positive number of cores, got {n}")
    if n <= 4:
        processes = n
    else:
        processes = min(f for f in range(1, n + 1) if n % f == 0 and f >= math.sqrt(n))
    return processes, n // processes
