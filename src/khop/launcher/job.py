"""Plan of a job of `khop run`: hosts, processes, their commands and variables. Imports no torch."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from khop.launcher.ending import VARIABLE
from khop.launcher.hosts import Host

THIS_HOST = "localhost"
"""Name of this machine, which is reached without ssh."""

_PYTHONS = ("python", "python3")
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class JobOptions:
    """Options of a job that all of its hosts share.

    Attributes:
        command: words of the trainers' command.
        python: words that start Python on a host, also of a wrapper such as `conda run -n env`.
        folder: working folder.
        environment: further variables.
        parts: the partition folder, or None.
        interface: network interface, or None.
        master: address of trainer 0's host for the others. If None, it is found.
        lease: seconds of silence after which a host or `khop run` counts as lost.
        grace: seconds from SIGTERM to SIGKILL.
    """

    command: Sequence[str]
    python: Sequence[str]
    folder: str
    environment: Mapping[str, str] = field(default_factory=dict)
    parts: str | None = None
    interface: str | None = None
    master: str | None = None
    lease: float = 30.0
    grace: float = 3.0


def interface_variables(name: str) -> dict[str, str]:
    """Return the variables with which khop, gloo and NCCL use a network interface."""
    return dict.fromkeys(("KHOP_INTERFACE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), name)


@dataclass(frozen=True)
class Process:
    """A process to start.

    Attributes:
        host: index of its host.
        role: 'trainer' or 'server'.
        rank: rank among the processes of its role.
        local_rank: rank among these of its host.
        local_size: their number on its host.
    """

    host: int
    role: str
    rank: int
    local_rank: int
    local_size: int

    @property
    def label(self) -> str:
        """Name of the process on its host: its rank, or 'server-0'."""
        return str(self.rank) if self.role == "trainer" else f"server-{self.rank}"


@dataclass(frozen=True)
class Job:
    """Hosts and processes of a job.

    Attributes:
        hosts: names of hosts, each once.
        trainers: trainers in the order of their ranks.
        servers: graph servers in the order of their ranks.
        options: options of the job.
        run: name of this start, which no other has.
    """

    hosts: Sequence[str]
    trainers: Sequence[Process]
    servers: Sequence[Process]
    options: JobOptions
    run: str = field(default_factory=lambda: secrets.token_hex(16))

    @classmethod
    def plan(
        cls, trainers: Sequence[Host], servers: Sequence[Host], count: int, options: JobOptions
    ) -> Job:
        """Return the job of trainers, `count` per host by default, and of a server per host."""
        names = list(dict.fromkeys(host.name for host in (*servers, *trainers)))
        started: dict[str, list[Process]] = {"trainer": [], "server": []}
        for role, hosts, default in (("trainer", trainers, count), ("server", servers, 1)):
            processes = started[role]
            for host in hosts:
                size, index = host.slots or default, names.index(host.name)
                processes += [
                    Process(index, role, len(processes) + i, i, size) for i in range(size)
                ]
        return cls(names, started["trainer"], started["server"], options)

    @property
    def processes(self) -> list[Process]:
        return [*self.servers, *self.trainers]

    @property
    def _nodes(self) -> list[int]:
        return list(dict.fromkeys(process.host for process in self.trainers))

    @property
    def is_local(self) -> bool:
        """True if all processes are on this machine."""
        return list(self.hosts) == [THIS_HOST]

    def run_on(self, host: int) -> str:
        """Return the value of KHOP_RUN on a host. Two hosts may have one machine's processes."""
        return f"{self.run}-{host}"

    def files(self) -> list[str]:
        """Return the files that must be equal on all hosts."""
        files = [] if (script := self.script()) is None else [script]
        return files if self.options.parts is None else [*files, f"{self.options.parts}/meta.json"]

    def script(self) -> str | None:
        """Return the script of the trainers' command: its first word that ends with .py."""
        return next((word for word in self.options.command if word.endswith(".py")), None)

    def command_of(self, process: Process, masters: Sequence[str]) -> list[str | None]:
        """Return the words of a process's command. None stands for the interpreter of the host.

        Args:
            process: the process.
            masters: HOST:PORT of trainer 0, and of server 0 if there is one.
        """
        if process.role == "server":
            options = {
                "--rank": process.rank,
                "--num-servers": len(self.servers),
                "--num-clients": len(self.trainers),
                "--master": masters[1],
            }
            words = [str(word) for option in options.items() for word in option]
            return [None, "-m", "khop", "serve", str(self.options.parts), *words]
        first, *rest = self.options.command
        if first in _PYTHONS:
            return [None, *rest]
        return [None, first, *rest] if first.endswith(".py") else [first, *rest]

    def environment_of(self, process: Process, masters: Sequence[str]) -> dict[str, str]:
        """Return the variables of a process, without `options.environment`. See `command_of`."""
        environment = {VARIABLE: self.run_on(process.host)}
        if process.role == "trainer":
            address, _, port = masters[0].rpartition(":")
            environment |= {
                "RANK": str(process.rank),
                "WORLD_SIZE": str(len(self.trainers)),
                "LOCAL_RANK": str(process.local_rank),
                "LOCAL_WORLD_SIZE": str(process.local_size),
                "GROUP_RANK": str(self._nodes.index(process.host)),
                "MASTER_ADDR": address,
                "MASTER_PORT": port,
            }
        if self.servers and process.role == "trainer":
            address, _, port = masters[1].rpartition(":")
            environment |= {
                "KHOP_NUM_SERVERS": str(len(self.servers)),
                "KHOP_SERVERS_ADDR": address,
                "KHOP_SERVERS_PORT": port,
            }
        if self.options.interface is not None:
            environment |= interface_variables(self.options.interface)
        return environment

    def keys(self) -> dict[str, Any]:
        """Return new keys: {role: variable that names the key file, and the file's content}."""
        if self.is_local and not self.servers:
            return {}
        from khop.distributed.rpc.key_files import file_content
        from khop.distributed.rpc.keys import JOB_KEY_VARIABLE, KEY_FILE_VARIABLE, JobKeys

        keys = JobKeys.new(["client"])
        client = file_content(keys.for_client("client"))
        if not self.servers:
            return {"trainer": {"variable": JOB_KEY_VARIABLE, "content": client}}
        server = file_content(keys.for_servers())
        return {
            "trainer": {"variable": KEY_FILE_VARIABLE, "content": client},
            "server": {"variable": KEY_FILE_VARIABLE, "content": server},
        }

    def masters(
        self, addresses: Sequence[str | None], ports: Sequence[Sequence[object]]
    ) -> list[str]:
        """Return HOST:PORT of trainer 0, and of server 0 if there is one.

        Args:
            addresses: address of each host for the others, or None if unknown.
            ports: two free ports of each host.
        """
        masters = []
        for offset, processes in enumerate((self.trainers, self.servers)):
            if processes:
                host = processes[0].host
                address = _LOOPBACK if len(self.hosts) == 1 else addresses[host]
                address = (self.options.master if offset == 0 else None) or address
                masters.append(f"{address}:{ports[host][offset]}")
        return masters
