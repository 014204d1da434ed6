"""Ranks of pods of Kubernetes: Kubeflow's PyTorchJob, and Indexed Jobs.

Runs in trainers. Imports no torch.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from khop.distributed.job.cluster_environment import ClusterEnvironment, Place, integer
from khop.errors import RendezvousError

# Port of trainer 0's pod, as of torchrun. A pod has a network of its own.
_PORT = 29_500
_PODS_NOT_PROCESSES = (
    "this pod of a PyTorchJob is to have {} processes, but RANK and WORLD_SIZE count pods: start "
    "the script by torchrun, which reads PET_* (processes of your own must set LOCAL_RANK, too)"
)


class PyTorchJob(ClusterEnvironment):
    """Pod of Kubeflow's PyTorchJob or TrainJob that starts the script itself, without torchrun.

    The operator sets PET_NNODES, PET_NODE_RANK and PET_NPROC_PER_NODE for torchrun. It sets RANK
    and WORLD_SIZE, too, which count pods, or in later versions processes in WORLD_SIZE alone.
    """

    def detect(self, environment: Mapping[str, str]) -> Place | None:
        """Return the rank of this pod, or None outside of a PyTorchJob, and below torchrun."""
        pods = environment.get("PET_NNODES")
        if pods is None or "LOCAL_RANK" in environment or "TORCHELASTIC_RUN_ID" in environment:
            return None
        # Operators before 1.7 write it with one more underscore.
        names = ("PET_NPROC_PER_NODE", "PET_N_PROC_PER_NODE")
        processes = next((environment[name] for name in names if name in environment), "1")
        # The default is 'auto'. A script that is not started by torchrun is one process there.
        if processes.isdigit() and int(processes[:9]) > 1:
            raise RendezvousError(_PODS_NOT_PROCESSES.format(processes[:9]))
        rank, world_size = (integer(environment, name) for name in ("RANK", "WORLD_SIZE"))
        if ":" in pods:
            raise RendezvousError(
                f"this PyTorchJob has {pods:.40} pods and no ranks (elasticPolicy): start the "
                "script by torchrun, which reads PET_*"
            )
        num_pods = integer(environment, "PET_NNODES") or 1
        if rank is None and world_size is None:
            rank, world_size = integer(environment, "PET_NODE_RANK"), num_pods
            if rank is None:
                if num_pods == 1:
                    return None
                raise RendezvousError(
                    f"this is one of {num_pods} pods of a PyTorchJob (PET_NNODES), but neither "
                    "RANK nor PET_NODE_RANK is set: start the script by torchrun"
                )
        if rank is None or world_size is None:
            return None  # half of the pair, which `find_place` refuses
        if world_size != num_pods:
            raise RendezvousError(_PODS_NOT_PROCESSES.format(f"{world_size}/{num_pods}"))
        return Place(
            "PyTorchJob",
            rank,
            world_size,
            environment.get("PET_MASTER_ADDR") or None,
            integer(environment, "PET_MASTER_PORT"),
        )


class IndexedJob(ClusterEnvironment):
    """Pod of a Kubernetes Indexed Job with a headless service: each pod has one trainer.

    Kubernetes sets JOB_COMPLETION_INDEX. The number of pods is WORLD_SIZE, from the manifest. The
    first pod has the name of this one with the index 0, in the domain of the service.
    """

    def detect(self, environment: Mapping[str, str]) -> Place | None:
        """Return the rank of this pod, or None outside of an Indexed Job."""
        rank = integer(environment, "JOB_COMPLETION_INDEX")
        if rank is None:
            return None
        world_size = integer(environment, "WORLD_SIZE")
        if world_size is None:
            raise RendezvousError(
                f"this is pod {rank} of an Indexed Job, but WORLD_SIZE is not set: give it the "
                "number of completions, under env in the pod's template. For a single trainer in "
                "each pod call init_worker_group(world_size=1, rank=0)"
            )
        if world_size == 1 or environment.get("MASTER_ADDR"):
            return Place("an Indexed Job", rank, world_size, None, _PORT)
        return Place("an Indexed Job", rank, world_size, _first_pod(rank), _PORT)


def _first_pod(rank: int) -> str:
    # Kubernetes writes the pod's full name to /etc/hosts if the template has a subdomain.
    host, _, domain = socket.getfqdn().partition(".")
    job = host.removesuffix(f"-{rank}")
    if job == host or not domain:
        raise RendezvousError(
            f"pod {rank} of an Indexed Job must be named JOB-{rank}.SERVICE (got "
            f"'{socket.getfqdn():.80}'): make a headless service, and name it as `subdomain` in "
            "the pod's template, or set MASTER_ADDR"
        )
    return f"{job}-0.{domain}"
