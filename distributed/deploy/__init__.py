"""Clusters: objects that start schedulers and workers and keep them in step with a wish."""

from __future__ import annotations

from distributed.deploy.adaptive import Adaptive
from distributed.deploy.cluster import Cluster
from distributed.deploy.local import LocalCluster
from distributed.deploy.spec import ProcessInterface, SpecCluster

__all__ = ["Adaptive", "Cluster", "LocalCluster", "ProcessInterface", "SpecCluster"]
