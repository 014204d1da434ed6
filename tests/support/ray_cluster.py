"""A local Ray cluster of two node processes with one CPU each, on loopback."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import sys
import tempfile

import pytest

_NODE = {"object_store_memory": 100 << 20, "node_ip_address": "127.0.0.1"}
# A node that is killed is noticed after three seconds, not after twenty.
_HEALTH = {"initial_delay_ms": 1000, "period_ms": 1000, "timeout_ms": 1000, "failure_threshold": 3}


@contextlib.contextmanager
def started(num_cpus=(1, 1)):
    """Start a cluster, which RAY_ADDRESS names in the block. Skip the test without Ray.

    Args:
        num_cpus: CPUs of the head and of the other node.
    """
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs Ray: pip install 'khop[ray]'")
    # Names of sockets below it must be short.
    folder = tempfile.mkdtemp(prefix="khop-ray-", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Nodes get the addresses that they are given: loopback.
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        import ray
        from ray.cluster_utils import Cluster

        handler = signal.getsignal(signal.SIGTERM)  # nodes take it to themselves
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                **{**_NODE, "num_cpus": num_cpus[0], "include_dashboard": False},
                "_system_config": {f"health_check_{name}": n for name, n in _HEALTH.items()},
            },
        )
        try:
            add_node(cluster, num_cpus[1])
            signal.signal(signal.SIGTERM, handler)
            patch.setenv("RAY_ADDRESS", cluster.address)
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


def add_node(cluster, num_cpus=1):
    """Add a node process to the cluster, and return it."""
    return cluster.add_node(**_NODE, num_cpus=num_cpus)
