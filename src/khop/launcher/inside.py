"""Variables of a trainer that a scheduler has started: `khop run` without hosts. Imports no torch.

A scheduler has started the process already, so `khop run` starts nothing elsewhere. It sets the
variables that torch.distributed and scripts expect, and executes the command.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from khop.distributed.job.cluster_environment import Place, integer
from khop.errors import RendezvousError

# Rank on the host, and number of processes there.
_LOCAL = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
_TASKS = re.compile(r"(\d{1,6})(?:\(x(\d{1,6})\))?")


def variables_of(launched: Place, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables RANK, WORLD_SIZE, LOCAL_RANK, ... of a trainer.

    Args:
        launched: rank of the trainer, and address of trainer 0.
        environment: variables that the scheduler has set.

    Raises:
        RendezvousError: the address of trainer 0 is unknown.
    """
    if launched.world_size > 1 and (launched.master is None or launched.port is None):
        raise RendezvousError(
            f"{launched.launcher} does not say where trainer 0 is: set MASTER_ADDR (its machine) "
            "and MASTER_PORT (a free port there)"
        )
    variables = {"RANK": launched.rank, "WORLD_SIZE": launched.world_size}
    local = _local(launched, environment)
    if local is not None:
        variables |= {"LOCAL_RANK": local[0], "LOCAL_WORLD_SIZE": local[1]}
    master = {
        "MASTER_ADDR": launched.master or "127.0.0.1",
        "MASTER_PORT": str(launched.port or 29_500),
    }
    return {**{name: str(value) for name, value in variables.items()}, **master}


def _local(launched: Place, environment: Mapping[str, str]) -> tuple[int, int] | None:
    if launched.launcher == "Slurm":
        rank, node = (integer(environment, name) for name in ("SLURM_LOCALID", "SLURM_NODEID"))
        sizes = tasks_per_node(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
        if rank is None or node is None or node >= len(sizes):
            return None
        return rank, sizes[node]
    for names in _LOCAL:
        rank, size = (integer(environment, name) for name in names)
        if rank is not None and size is not None:
            return rank, size
    return (0, 1) if "JOB_COMPLETION_INDEX" in environment or launched.world_size == 1 else None


def tasks_per_node(text: str) -> list[int]:
    """Return the numbers of tasks per node of Slurm's notation: [2, 2, 2, 1] of '2(x3),1'.

    Raises:
        RendezvousError: the text is not in this notation, or has more than a million nodes.
    """
    sizes: list[int] = []
    for entry in text.split(",") if text else ():
        match = _TASKS.fullmatch(entry)
        if match is None or len(sizes) > 1_000_000:
            raise RendezvousError(f"SLURM_STEP_TASKS_PER_NODE is malformed (got '{text:.80}')")
        sizes += [int(match[1])] * int(match[2] or 1)
    return sizes
