"""Hosts with a real sshd each: network namespaces that a cable joins."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from soak.network import Hosts
from support import launching
from support.cluster_check.debian import libraries

_CONFIG = """Host *
  Port 2222
  IdentityFile {folder}/key
  UserKnownHostsFile {folder}/known
  StrictHostKeyChecking accept-new
  LogLevel ERROR
"""
# sshd wants a user of its own, which a copy of /etc/passwd has in its mount namespace.
# Each host has a disk of its own at the same path.
_START = """
mount --bind {folder}/disk-{host} {folder}/disk && \\
  mount --bind {folder}/passwd /etc/passwd && mkdir -p /run/sshd && \\
  exec {sshd} -D -e -f /dev/null \\
  -p 2222 -h {folder}/hostkey -o UsePAM=no -o StrictModes=no -o PidFile=none \\
  -o AuthorizedKeysFile={folder}/key.pub -o PermitRootLogin=yes
"""


class SshHosts(NamedTuple):
    """Hosts that ssh reaches. `folder`/disk is another folder on each, `folder`/disk-0 and so on.

    Attributes:
        network: the namespaces and the cable.
        rsh: value of --rsh.
        inside: words that run a command on the first host.
        servers: processes of sshd.
    """

    network: Hosts
    rsh: str
    inside: list[str]
    servers: list[subprocess.Popen[bytes]]

    def processes(self) -> dict[int, int]:
        """Return {pid: parent} of what runs on the hosts, without sshd."""
        below: dict[int, tuple[int, bytes]] = {}
        for server in self.servers:
            below |= launching.descendants(server.pid)
        return {
            pid: parent for pid, (parent, line) in below.items() if not line.startswith(b"sshd")
        }

    @property
    def names(self) -> list[str]:
        return self.network.addresses


@contextlib.contextmanager
def ssh_hosts(root: Path, folder: Path, count: int = 2) -> Iterator[SshHosts]:
    """Start sshd on `count` hosts. They end with the block."""
    for name in ("key", "hostkey"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(words, check=True)
    (folder / "config").write_text(_CONFIG.format(folder=folder))
    users = Path("/etc/passwd").read_text()
    (folder / "passwd").write_text(f"{users}sshd:x:105:65534::/run/sshd:/usr/sbin/nologin\n")
    for disk in ("disk", *(f"disk-{host}" for host in range(count))):
        (folder / disk).mkdir()
    network = Hosts(count)
    servers: list[subprocess.Popen[bytes]] = []
    try:
        for host, prefix in enumerate(network.prefixes):
            start = _START.format(folder=folder, host=host, sshd=root / "usr/sbin/sshd")
            log = (folder / f"sshd-{len(servers)}.log").open("w")
            words = [*prefix, "sh", "-c", start]
            servers.append(subprocess.Popen(words, env=libraries(root), stdout=log, stderr=log))
        hosts = SshHosts(network, f"ssh -F {folder}/config", network.prefixes[0], servers)
        _wait(hosts)
        yield hosts
    finally:
        for server in servers:
            server.terminate()
            server.wait()
        network.close()


def _wait(hosts: SshHosts) -> None:
    for name in hosts.names:
        words = [*hosts.inside, *hosts.rsh.split(), "-o", "BatchMode=yes", name, "true"]
        end = time.monotonic() + 20
        while subprocess.run(words, check=False, capture_output=True).returncode:
            if time.monotonic() > end:
                raise RuntimeError(f"no sshd at {name}")
            time.sleep(0.2)
