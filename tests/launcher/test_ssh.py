"""`khop run` over a real sshd, where one is installed: two hosts as network namespaces.

KHOP_CLUSTER_ROOT names another folder that has usr/sbin/sshd, as `scripts/cluster_check` makes it.
"""

import os
import signal
import time
from pathlib import Path

import pytest

from soak.network import NoNetworkError
from support.cluster_check import hosts, ssh


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two hosts that ssh reaches."""
    root = Path(os.environ.get("KHOP_CLUSTER_ROOT", "/"))
    if not (root / "usr/sbin/sshd").exists():
        pytest.skip("needs sshd")
    try:
        with hosts.ssh_hosts(root, tmp_path_factory.mktemp("sshd")) as found:
            yield found
    except NoNetworkError as error:
        pytest.skip(str(error))


@pytest.mark.network
@pytest.mark.fault
@pytest.mark.parametrize("role", ["launcher", "ssh", "stage", "trainer"])
def test_nothing_is_left(pair, tmp_path, role):
    (tmp_path / "light.py").write_text(ssh.LIGHT)
    lists = ",".join(f"{host}:2" for host in pair.names)
    job = ssh.Job(pair, tmp_path, "--grace", 1, "--hosts", lists, "--", "light.py")
    job.wait_for("begun", 4)
    assert len(job.stages()) == 4 and len(job.programs("light.py")) == 4
    os.kill(ssh.target(job, role), signal.SIGKILL)
    ended = job.ended(time.monotonic())
    assert ended["left"] == 0, ended
    assert ended["status"] == {"launcher": -9, "trainer": 137}.get(role, 1), ended
    assert "killed" in ended["cause"] or role == "launcher"
