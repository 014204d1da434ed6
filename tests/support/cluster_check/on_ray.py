"""The example for Ray on a cluster of node processes, one of which is killed in mid-epoch.

The example runs three times: as it is, with the node of a graph server killed after the first
epoch, and with the node of a trainer killed after a checkpoint in the second epoch. Ray restarts
the server, or all trainers, on other nodes. Losses of all epochs must be the same, to six digits.
Later runs use the partitions of the first. The script of the Kubernetes RayJob runs, too. Needs
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
_SERVER, _TRAINER = b"khop.distributed.remote.server.main", b"RayTrainWorker"
# The head has a server and both trainers. A server is on one of two other nodes.
_CPUS, _OF_EACH = (3, 1), 1
# The head has the server, and room for one trainer. One of two further nodes has another.
_MORE_CPUS, _OF_EACH_OF_MORE = 2, 1.5


def run(folder: Path) -> dict[str, object]:
    """Return results of all runs."""
    with ray_cluster.started(_CPUS) as cluster:
        ray_cluster.add_node(cluster)
        first = _train(folder)
        killed = _train(folder, cluster)
        pods = _pods(folder)
        for _ in range(2):
            ray_cluster.add_node(cluster, _MORE_CPUS)
        trainer = _train(folder, cluster, _TRAINER)
    same = first["epochs"] == killed["epochs"] == trainer["epochs"]
    runs = {"as it is": first, "node killed": killed, "trainer's node killed": trainer}
    return {**runs, "losses equal": same, "RayJob": pods}


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


def _train(folder: Path, cluster: Any = None, program: bytes = _SERVER) -> dict[str, Any]:
    """Run the example. With a cluster, kill the node of server 1, or of a trainer, in epoch 1."""
    words = ("--parts", folder / "parts", "--packages", 4000, "--batch-size", 32, "--epochs", 4)
    words = (*words, "--save-every", 5)
    is_trainer = program == _TRAINER
    each = ("--servers", 1, "--cpus", _OF_EACH_OF_MORE) if is_trainer else ("--cpus", _OF_EACH)
    begin = time.monotonic()
    process = _started(folder, "ray_sage.py", *words, *each)
    assert process.stdout
    epochs: list[str] = []
    result: dict[str, Any] = {}
    for line in process.stdout:
        if "goes on in epoch" in line:
            result["resumed"] = line[line.index("goes on") :].strip()
        if "epoch " not in line or ", loss" not in line:
            continue
        epochs.append(line[line.index("epoch ") :].strip())
        if len(epochs) == 1:
            result["seconds to the end of the first epoch"] = round(time.monotonic() - begin, 1)
            if is_trainer:
                _wait_for_checkpoints(folder, process)
            result |= {} if cluster is None else _kill(cluster, program)
        elif cluster is not None and not is_trainer:
            servers = sum(map(len, _running(cluster, _SERVER).values()))
            result["graph servers on other nodes"] = servers
            cluster = cluster if servers == 0 else None
    _ended(process, folder)
    # An epoch whose last checkpoint was lost ends twice, with the same loss.
    epochs = list(dict.fromkeys(epochs))
    return {**result, "seconds": round(time.monotonic() - begin, 1), "epochs": epochs}


def _wait_for_checkpoints(folder: Path, process: subprocess.Popen[str]) -> None:
    """Wait until the trainers have written three more checkpoints. Then Ray counts the first."""
    pattern = "checkpoints/*/checkpoint_*/rank-0.pt"
    before, found = {*folder.glob(pattern)}, set[Path]()
    while len(found - before) < 3:
        found |= {*folder.glob(pattern)}
        if process.poll() is not None:
            raise RuntimeError("the example has ended before three more checkpoints")
        time.sleep(0.05)


def _running(cluster: Any, program: bytes) -> dict[Any, list[int]]:
    """Return {node: ids of its processes of a program}, of nodes that are not the head."""
    found = {}
    for node in cluster.worker_nodes:
        below = launching.descendants(node.all_processes["raylet"][0].process.pid)
        found[node] = [pid for pid, (_, line) in below.items() if program in line]
    return found


def _kill(cluster: Any, program: bytes) -> dict[str, Any]:
    """Kill the processes of a node that runs a program. Return what is left of them."""
    victim = next(node for node, found in _running(cluster, program).items() if found)
    below = launching.descendants(victim.all_processes["raylet"][0].process.pid)
    cluster.remove_node(victim, allow_graceful=False)
    return {"left of the node": len(launching.left_of(below, 10))}
