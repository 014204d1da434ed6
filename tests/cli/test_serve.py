"""`khop serve`: a graph server without torch, from its start to its end."""

import argparse
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from khop.cli.arguments import byte_size
from khop.distributed.remote.addresses import Servers
from khop.distributed.remote.directory_client import DirectoryClient
from khop.distributed.remote.messages import DescribeGraph, RegisterClient, read_json
from khop.distributed.rpc.endpoint import Endpoint
from khop.distributed.rpc.partition_client import PartitionClient
from khop.partition import RandomPartitioner
from support.cluster import jobs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A ring of 40 nodes in two parts."""
    ids = torch.arange(40)
    data = Data(x=ids.float().view(-1, 1), edge_index=torch.stack([ids, (ids + 1) % 40]))
    root = tmp_path_factory.mktemp("ring") / "parts"
    RandomPartitioner.from_data(data, root, 2).partition()
    return root


def start(*arguments):
    """`khop serve` where torch cannot be imported."""
    code = (
        "import sys; sys.modules['torch'] = None; "
        f"sys.path[:] = {sys.path!r}; "
        "from khop.cli.main import main; sys.exit(main())"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, "serve", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_serve(folder, tmp_path):
    """Serves with labels, ends with its last client, leaves nothing."""
    labels = tmp_path / "y.npy"
    np.save(labels, np.arange(40))
    master = f"127.0.0.1:{jobs.free_port()}"
    process = start(
        folder, "--master", master, "--num-clients", 1, "--part", 0, "--part", 1,
        "--labels", labels, "--buffer-limit", "1GB",
    )  # fmt: skip

    def registration(secret):
        return RegisterClient(0, secret, 1, 1, "c", 1)

    client = DirectoryClient(Servers(master), registration, timeout=30.0)
    table = client.wait_for_servers()
    socket = Path(table.servers[0].addresses.ipc.removeprefix("ipc://"))
    assert socket.is_socket()
    meta = read_json(client.request(0, DescribeGraph()).arrays, "it")["meta"]
    assert "y" in meta["node_types"][0]["attrs"]
    client.close()
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert f"serving at tcp://{master}" in out
    assert "all clients have gone" in err
    assert not socket.parent.exists()


@pytest.mark.parametrize(
    ("number", "run", "status"),
    [(signal.SIGTERM, {}, 0), (signal.SIGINT, {}, 0), (signal.SIGTERM, {"KHOP_RUN": "x"}, 143)],
)
def test_signals(folder, monkeypatch, number, run, status):
    """SIGTERM and Ctrl-C end it cleanly. A job of `khop run` ends with it."""
    for name, value in run.items():
        monkeypatch.setenv(name, value)
    master = f"127.0.0.1:{jobs.free_port()}"
    process = start(folder, "--master", master, "--part", "0", "--part", "1")
    assert "serving" in process.stdout.readline()
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == status, err


def test_a_file_that_is_cut_off_while_it_is_served(folder, tmp_path):
    """The server cannot go on; its log says why, and its status stays that of the signal."""
    root = shutil.copytree(folder, tmp_path / "evil\x1b]0;name")
    master = f"127.0.0.1:{jobs.free_port()}"
    process = start(root, "--master", master, "--part", 0)
    assert "serving" in process.stdout.readline()
    client = PartitionClient({0: Endpoint(f"tcp://{master}")})
    wanted = 0, "node", 0, np.array([0]), ["x"]
    try:
        client.wait([client.fetch(*wanted)])
        os.truncate(root / "part-0" / "node" / "node" / "x.npy", 0)
        client.fetch(*wanted)
        _, err = process.communicate(timeout=20)
    finally:
        client.close()
    assert process.returncode == -signal.SIGBUS
    assert "ends by SIGBUS: it read a part of a mapped file that is no longer there" in err
    assert f"'{tmp_path}/evil\\x1b]0;name' was cut off" in err
    assert "\x1b" not in err
    assert "Fatal Python error: Bus error" in err  # where it was, as for other faults


@pytest.mark.parametrize(
    "arguments,words",
    [
        (["--master", "nowhere"], "HOST:PORT"),
        (["--master", "127.0.0.1:1", "--part", "7"], "2 partitions"),
        (["--master", "192.0.2.1:4000"], "khop keygen"),
        (["--master", "127.0.0.1:4000", "--labels", "paper=y.npy"], "no node type 'paper'"),
        (["--master", "127.0.0.1:4000", "--labels", "/dev/zero"], "is no regular file"),
        (["--master", "127.0.0.1:4000", "--rank", "3"], "rank 3 is not one of 1"),
    ],
)
def test_bad_arguments(command, folder, arguments, words):
    """What is wrong is said in a line, with status 2."""
    done = command("serve", folder, *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_sizes():
    """Sizes as people write them."""
    assert byte_size("8GB") == byte_size("8GiB") == 8 << 30
    assert byte_size("1.5 MiB") == 3 << 19
    assert byte_size("4096") == 4096
    for bad in ("", "GB", "-1MB", "8 apples", "0"):
        with pytest.raises(argparse.ArgumentTypeError, match="bytes"):
            byte_size(bad)
