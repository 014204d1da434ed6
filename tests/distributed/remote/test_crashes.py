"""What is left of a graph server that a signal ends: its status, and a log that names the cause."""

import os
import shutil
import signal

import numpy as np
import pytest

from khop.distributed.processes.socket_files import remove_socket
from khop.distributed.rpc.endpoint import Endpoint
from khop.distributed.rpc.partition_client import PartitionClient
from support.cluster import serving

SENTENCE = "ends by SIGBUS: it read a part of a mapped file that is no longer there"


@pytest.fixture
def root(folder_of, tmp_path):
    """A copy, as it is going to be damaged."""
    return shutil.copytree(folder_of("random", 2), tmp_path / "folder")


def outcome(graph):
    """How server 0 has ended, in words, and the end of its log."""
    server = graph.processes.pop(0)
    serving.wait_until(lambda: server.has_ended)
    remove_socket(graph.addresses[0]["ipc"].removeprefix("ipc://"))  # it could not
    left = server.exit_status(), server.log_tail()
    server.close()
    return left


def test_a_file_that_is_cut_off(root):
    """The server that `init_server` starts; its parent has its log."""
    with serving.serving(root, 1) as graph:
        client = PartitionClient({0: Endpoint(graph.addresses[0]["ipc"])})
        wanted = 0, "node", 0, np.array([0]), ["x"]
        fetched = client.fetch(*wanted)
        client.wait([fetched])
        assert len(fetched.result()[0]) == 1
        for file in (root / "part-0").rglob("x.npy"):
            os.truncate(file, 0)
        client.fetch(*wanted)
        status, log = outcome(graph)
        client.close()
    assert status == "was killed by SIGBUS"
    assert SENTENCE in log
    assert f"'{root}' was cut off" in log


def test_a_signal_that_somebody_sends(root):
    """No file is to blame."""
    with serving.serving(root, 1) as graph:
        os.kill(graph.processes[0].pid, signal.SIGBUS)
        status, log = outcome(graph)
    assert status == "was killed by SIGBUS"
    assert "Bus error" in log
    assert SENTENCE not in log
