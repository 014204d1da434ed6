"""Jobs that `khop run` starts: batches are those in memory, and keys go through no store."""

import re

import pytest
import torch

from khop.loader import NeighborLoader
from support import launching
from support.cluster import launched


def digests(graph):
    """Digests of the first epoch of two trainers, from loaders in memory."""
    return [
        str(
            launched.digest(
                NeighborLoader(graph, [4, 4], torch.arange(500), stream=rank, **launched.COMMON)
            )
        )
        for rank in range(2)
    ]


def run(folder, tmp_path, *words):
    """Run two trainers over `folder`, one epoch. Return the ended launcher."""
    (tmp_path / "stop").touch()
    script = ("python", "-m", launched.__name__, folder, tmp_path / "stop")
    done = launching.run(*words, "--parts", folder, "--", *script, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.network
def test_two_hosts_with_keys(graph, folder_of, tmp_path, two_hosts):
    """Trainers in two network namespaces: only a public key is in the job's store."""
    names = ",".join(prefix[-1] for prefix in two_hosts[0])
    words = ("--rsh", "ip netns exec {host} sh -c", "--hosts", names)
    out = run(folder_of("random", 2), tmp_path, *words)
    assert sorted(re.findall("key (.*)", out)) == ["0o600 no secret"] * 2
    assert re.findall(r"digest (\d+)", "\n".join(sorted(out.splitlines()))) == digests(graph)


def test_graph_servers_and_clients(graph, folder_of, tmp_path):
    """Servers get their keys, and end with the job."""
    words = ("--servers", "a:2", "--clients", "b:2", "--rsh", launching.RSH)
    out = run(folder_of("random", 2), tmp_path, *words)
    lines = sorted(line for line in out.splitlines() if "digest" in line)
    assert re.findall(r"digest (\d+)", "\n".join(lines)) == digests(graph)
