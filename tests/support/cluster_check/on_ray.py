"""The example for Ray on a cluster of node processes, one of which is killed in mid-epoch.

The example runs twice: as it is, and with the node of a graph server killed after the first epoch.
Ray restarts the server on the other node. Losses of all epochs must be the same, to six digits. The
second run uses the partitions of the first. Then the script of the Kubernetes RayJob runs. Needs
Ray.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from support import launching, processes, ray_cluster

_EXAMPLES = processes.TESTS.parent / "examples"
_SERVER = b"khop.distributed.remote.server.main"
# The head has a server and both trainers. A server is on one of two other nodes.
_CPUS, _OF_EACH = (3, 1), 1


def run(folder: Path) -> dict[str, object]:
    """Return results of both runs."""
    with ray_cluster.started(_CPUS) as cluster:
        ray_cluster.add_node(cluster)
        first = _train(folder)
        killed = _train(folder, cluster)
        pods = _pods(folder)
    same = first["epochs"] == killed["epochs"]
    return {"as it is": first, "node killed": killed, "losses equal": same, "RayJob": pods}


def _started(folder: Path, script: str, *words: object) -> subprocess.Popen[str]:
    """Start an example. Its standard error goes to a file."""
    return subprocess.Popen(
        [sys.executable, str(_EXAMPLES / script), *map(str, words)],
        env=processes.environment(OMP_NUM_THREADS="1", HOME=str(folder)),
        stdout=subprocess.PIPE,
        stderr=(folder / "ray.log").open("w"),
        text=True,
    )


def _ended(process: subprocess.Popen[str], folder: Path) -> None:
    """Raise an error with the end of standard error if an example has failed."""
    if process.wait() != 0:
        raise RuntimeError((folder / "ray.log").read_text()[-4000:])


def _pods(folder: Path) -> dict[str, Any]:
    """Run the script of the RayJob: trainers with parts, in workers of Ray. Return its losses."""
    words = ("--parts", folder / "parts", "--epochs", 3, "--buffer-size", "64MB")
    process = _started(folder, "k8s/train_ray.py", "--cpus", _OF_EACH, "--", *words)
    out, _ = process.communicate()
    _ended(process, folder)
    return {"losses": [float(loss) for loss in re.findall(r"epoch \d: loss ([\d.]+)", out)]}


def _train(folder: Path, cluster: Any = None) -> dict[str, Any]:
    """Run the example. With a cluster, kill the node of server 1 after the first epoch."""
    words = ("--parts", folder / "parts", "--packages", 4000, "--batch-size", 32, "--epochs", 4)
    begin = time.monotonic()
    process = _started(folder, "ray_sage.py", *words, "--cpus", _OF_EACH)
    assert process.stdout
    epochs: list[str] = []
    result: dict[str, Any] = {}
    for line in process.stdout:
        if "epoch " not in line:
            continue
        epochs.append(line[line.index("epoch ") :].strip())
        if len(epochs) == 1:
            result["seconds to the end of the first epoch"] = round(time.monotonic() - begin, 1)
            result |= {} if cluster is None else _kill(cluster)
        elif cluster is not None:
            servers = sum(map(len, _servers(cluster).values()))
            result["graph servers on other nodes"] = servers
            cluster = cluster if servers == 0 else None
    _ended(process, folder)
    return {**result, "seconds": round(time.monotonic() - begin, 1), "epochs": epochs}


def _servers(cluster: Any) -> dict[Any, list[int]]:
    """Return {node: process ids of its graph servers}, of nodes that are not the head."""
    found = {}
    for node in cluster.worker_nodes:
        below = launching.descendants(node.all_processes["raylet"][0].process.pid)
        found[node] = [pid for pid, (_, line) in below.items() if _SERVER in line]
    return found


def _kill(cluster: Any) -> dict[str, Any]:
    """Kill the processes of the node with graph server 1. Return what is left of them."""
    (victim,) = (node for node, servers in _servers(cluster).items() if servers)
    below = launching.descendants(victim.all_processes["raylet"][0].process.pid)
    cluster.remove_node(victim, allow_graceful=False)
    return {"left of the node": len(launching.left_of(below, 10))}
