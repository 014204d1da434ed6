"""Base of the classes that read a trainer's rank from its launcher's environment variables.

Runs in trainers. Imports no torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

from khop.errors import RendezvousError

BY_HAND = "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
"""Remedy for most incomplete environments."""

# Range of computed ports: above the system's ports, below the ports of outgoing connections.
_FIRST_PORT, _NUM_PORTS = 10_000, 20_000
_MAX_DIGITS = 18


class Place(NamedTuple):
    """Rank of a process and address of process 0, which a launcher has assigned.

    Attributes:
        launcher: name of the launcher, for error messages.
        rank: rank of this process.
        world_size: number of processes.
        master: host of process 0, or None if unknown.
        port: port at which process 0 may listen, or None if unknown.
        job: unique name of the job if the port is computed: another job may listen there.

    Example:
        >>> Place("my scheduler", rank=1, world_size=4, master="node0").port is None
        True
    """

    launcher: str
    rank: int
    world_size: int
    master: str | None = None
    port: int | None = None
    job: str | None = None


class ClusterEnvironment(ABC):
    """Base of classes that read a trainer's rank from the launcher that started it.

    khop makes an instance without arguments. Users name their own class in
    `init_worker_group(cluster_environment=)` or in the environment variable
    KHOP_CLUSTER_ENVIRONMENT. A name is 'package:Class', or an installed package's entry point in
    the group `khop.cluster_environments`.

    Example:
        >>> class Alone(ClusterEnvironment):
        ...     def detect(self, environment): return Place("no launcher", 0, 1)
        >>> init_worker_group(cluster_environment=Alone).world_size
        1
    """

    @abstractmethod
    def detect(self, environment: Mapping[str, str]) -> Place | None:
        """Return rank and trainer 0's address, or None if another launcher started the process.

        It is called before torch.distributed is initialised.

        Args:
            environment: the process's environment variables.

        Raises:
            RendezvousError: the variables are incomplete. The message has the remedy.
        """


def integer(environment: Mapping[str, str], name: str) -> int | None:
    """Return the number in a variable, or None if it is not set.

    Raises:
        RendezvousError: its text is no number of at least 0, or has more than 18 digits.
    """
    text = environment.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > _MAX_DIGITS:
        raise RendezvousError(f"{name} must be a number of at least 0 (got '{text:.80}')")
    return int(text)


def computed_port(job: int) -> int:
    """Return the port, 10,000 to 29,999, of a job whose number is `job`."""
    return _FIRST_PORT + job % _NUM_PORTS


def contradiction(one: Place, other: Place) -> RendezvousError:
    """Return the error of two launchers that assign different ranks to this process."""
    return RendezvousError(
        f"{one.launcher} says that this is process {one.rank} of {one.world_size}, "
        f"{other.launcher} {other.rank} of {other.world_size}: {BY_HAND}"
    )
