"""`LocalCluster`: a scheduler and workers on this machine, reachable from this machine only."""

from __future__ import annotations

import logging
import math
import warnings
import weakref
from typing import Any, ClassVar

from tornado.ioloop import IOLoop

from distributed.deploy.spec import SpecCluster
from distributed.deploy.utils import nprocesses_nthreads
from distributed.nanny import Nanny
from distributed.scheduler import Scheduler
from distributed.security import Security
from distributed.system import CPU_COUNT
from distributed.worker import Worker
from distributed.worker_memory import parse_memory_limit

logger = logging.getLogger("distributed.deploy.local")


class LocalCluster(SpecCluster):
    """Scheduler and workers on this machine.

    The scheduler runs in this process, on the cluster's event loop; workers run in processes of their own, or with
    ``processes=False`` in this one.

    Parameters
    ----------
    n_workers, threads_per_worker
        Default: split the cores of the machine (`nprocesses_nthreads`).
    processes
        Whether workers are processes (`Nanny`); default True unless `worker_class` is no nanny.
    host
        Address to listen on; default loopback, so that nobody outside this machine can connect.
    scheduler_port
        0 for any.
    silence_logs
        Logging level below which the package is silent; False leaves logging alone.
    memory_limit
        Per worker: bytes, size string, fraction of the machine, ``"auto"`` (an equal share), None or 0 for none.
    protocol
        ``tcp://`` or ``inproc://``; default ``inproc`` without processes and without a port, else ``tcp``.
    worker_kwargs
        Everything else goes to the worker class.

    Examples
    --------
    >>> with LocalCluster(n_workers=2) as cluster, Client(cluster) as client:  # doctest: +SKIP
    ...     client.submit(sum, [1, 2]).result()
    3
    """

    _instances: ClassVar[weakref.WeakSet[SpecCluster]] = SpecCluster._instances

    def __init__(
        self,
        name: str | None = None,
        n_workers: int | None = None,
        threads_per_worker: int | None = None,
        processes: bool | None = None,
        loop: IOLoop | None = None,
        start: bool | None = None,
        host: str | None = None,
        ip: str | None = None,
        scheduler_port: int = 0,
        silence_logs: int | str | bool = logging.WARNING,
        dashboard_address: str | None = ":8787",
        worker_dashboard_address: str | None = None,
        services: Any = None,
        worker_services: Any = None,
        service_kwargs: Any = None,
        asynchronous: bool = False,
        security: Security | dict[str, Any] | bool | None = None,
        protocol: str | None = None,
        blocked_handlers: list[str] | None = None,
        interface: str | None = None,
        worker_class: Any = None,
        scheduler_kwargs: dict[str, Any] | None = None,
        scheduler_sync_interval: float | str = 1,
        **worker_kwargs: Any,
    ) -> None:
        if ip is not None:
            warnings.warn("The ip keyword has been renamed to host", DeprecationWarning, stacklevel=2)
            host = ip
        if start is not None:
            warnings.warn(
                "The start keyword has no effect; use asynchronous=True", DeprecationWarning, stacklevel=2
            )
        if processes is None:
            processes = worker_class is None or issubclass(worker_class, Nanny)
        if worker_class is None:
            worker_class = Nanny if processes else Worker
        if n_workers is not None and n_workers < 0:
            raise ValueError(f"n_workers must not be negative, got {n_workers}")
        if threads_per_worker is not None and threads_per_worker < 1:
            raise ValueError(f"threads_per_worker must be at least 1, got {threads_per_worker}")
        if security is True:
            raise NotImplementedError(
                "security=True needs TLS, which this release does not have yet; leave it out: a LocalCluster listens on loopback only"
            )
        if isinstance(security, dict):
            security = Security(**security)
        if not security:
            security = Security()
        if host is not None and "://" in host and protocol is None:
            protocol = host.split("://")[0]
        if protocol is None:
            protocol = "inproc" if not processes and not scheduler_port else "tcp"
        protocol = protocol.removesuffix("://") + "://"
        if host is None and not protocol.startswith("inproc") and not interface:
            host = "127.0.0.1"
        if n_workers is None and threads_per_worker is None:
            if processes:
                n_workers, threads_per_worker = nprocesses_nthreads()
            else:
                n_workers, threads_per_worker = 1, CPU_COUNT
        if n_workers is None:
            assert threads_per_worker is not None, "one of the two was given"
            n_workers = max(1, CPU_COUNT // threads_per_worker)
        if threads_per_worker is None:
            threads_per_worker = max(1, math.ceil(CPU_COUNT / max(n_workers, 1)))
        if n_workers and "memory_limit" not in worker_kwargs:
            worker_kwargs["memory_limit"] = parse_memory_limit("auto", 1, n_workers)
        worker_kwargs.update(
            {
                "host": host,
                "nthreads": threads_per_worker,
                "services": worker_services,
                "dashboard_address": worker_dashboard_address,
                "dashboard": worker_dashboard_address is not None,
                "interface": interface,
                "protocol": protocol,
                "security": security,
                "silence_logs": silence_logs,
            }
        )
        scheduler_spec = {
            "cls": Scheduler,
            "options": {
                "host": host,
                "services": services,
                "service_kwargs": service_kwargs,
                "security": security,
                "port": scheduler_port,
                "interface": interface,
                "protocol": protocol,
                "dashboard": dashboard_address is not None,
                "dashboard_address": dashboard_address,
                "blocked_handlers": blocked_handlers,
                **(scheduler_kwargs or {}),
            },
        }
        worker = {"cls": worker_class, "options": worker_kwargs}
        super().__init__(
            workers=dict.fromkeys(range(n_workers), worker),
            scheduler=scheduler_spec,
            worker=worker,
            loop=loop,
            name=name,
            asynchronous=asynchronous,
            security=security,
            silence_logs=silence_logs,
            scheduler_sync_interval=scheduler_sync_interval,
        )

    def start_worker(self, *args: Any, **kwargs: Any) -> None:
        """Gone; `scale` instead."""
        raise NotImplementedError("start_worker has been removed: use cluster.scale(n)")

    def _repr_html_(self, cluster_status: str | None = None) -> str:
        status = f"Using processes: {issubclass(self.new_spec['cls'], Nanny)}" if self.new_spec else None
        return super()._repr_html_(cluster_status=cluster_status or status)
