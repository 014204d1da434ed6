"""Clients' keys that change while a graph server runs."""

import logging
from contextlib import closing

import pytest

from khop.distributed.remote.addresses import Servers
from khop.distributed.remote.directory_client import DirectoryClient
from khop.distributed.remote.messages import Ping
from khop.distributed.remote.server.main import KeyFileWatch
from khop.distributed.rpc.key_files import (
    add_client,
    read_client_keys,
    read_server_keys,
    revoke_client,
    write_keys,
)
from khop.errors import PartitionUnavailableError
from support.cluster import serving


@pytest.fixture
def folder(tmp_path):
    write_keys(tmp_path / "keys", 2)
    return tmp_path / "keys"


@pytest.fixture
def watched(folder):
    """A watch that is not started, and what it has admitted: names of clients."""
    admitted = []
    keys = read_server_keys(folder / "server.key")

    def admit(clients):
        known = read_server_keys(folder / "server.key").clients
        admitted.append(sorted(name for name, public in known.items() if public in clients))
        assert len(admitted[-1]) == len(clients)

    return KeyFileWatch(folder / "server.key", keys, admit), admitted


def test_changes_are_taken_over(folder, watched):
    watch, admitted = watched
    watch.look()
    assert admitted == []
    add_client(folder, "late")
    watch.look()
    watch.look()
    revoke_client(folder, "client-0")
    watch.look()
    assert admitted == [["client-0", "client-1", "late"], ["client-1", "late"]]


def test_a_link_that_leads_elsewhere_is_a_change(folder, watched, tmp_path):
    """As Kubernetes changes a secret."""
    watch, admitted = watched
    path = folder / "server.key"
    whole = path.read_bytes()
    revoke_client(folder, "client-0")
    path.rename(tmp_path / "two")
    for name, content in (("one", whole), ("same", whole)):
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_bytes(content)
        path.symlink_to(tmp_path / name)
        watch.look()
        path.unlink()
    assert admitted == []
    path.symlink_to(tmp_path / "two")
    watch.look()
    assert admitted == [["client-1"]]


@pytest.mark.parametrize("damage", ["missing", "half", "open", "pair"])
def test_a_file_that_cannot_be_used_changes_nothing(folder, watched, caplog, tmp_path, damage):
    """It is said once; when the file is whole again, its clients are admitted."""
    watch, admitted = watched
    path = folder / "server.key"
    add_client(folder, "late")
    good = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "half":
        path.write_bytes(good[: len(good) // 2])
    elif damage == "open":
        path.chmod(0o644)
    else:
        path.write_bytes(write_keys(tmp_path / "other", 1)[0].read_bytes())
    with caplog.at_level(logging.WARNING, "khop"):
        watch.look()
        watch.look()
    assert [record.event for record in caplog.records] == ["keys-unreadable"]
    assert admitted == []
    path.write_bytes(good)
    path.chmod(0o600)
    watch.look()
    assert admitted == [["client-0", "client-1", "late"]]


def client_of(graph, file):
    """A client with a key file, which asks over TCP."""
    keys = read_client_keys(file)
    return DirectoryClient(Servers(graph.master, keys.server_key, keys.client), timeout=20.0)


def test_a_running_server_takes_changes_over(folder_of, folder):
    """A revoked client's connection ends, and it gets no other; one that was added gets in."""
    root = folder_of("random", 1)
    keys = read_server_keys(folder / "server.key").to_json()
    with serving.serving(root, 0, num_servers=1, key_file=str(folder / "server.key")) as graph:
        graph.config["keys"] = keys
        graph.start(0)
        with (
            closing(client_of(graph, folder / "client-0.key")) as revoked,
            closing(client_of(graph, folder / "client-1.key")) as other,
        ):
            for client in (revoked, other):
                client.wait_for_servers()
                assert client.request(None, Ping()).fields.rank == 0
            revoke_client(folder, "client-0")
            late = add_client(folder, "late")
            with closing(client_of(graph, late)) as added:
                added.wait_for_servers()
                assert added.request(None, Ping()).fields.rank == 0
            with pytest.raises(PartitionUnavailableError, match="refuses this process's key"):
                while True:
                    revoked.request(None, Ping(), timeout=0.5)
            assert other.request(None, Ping()).fields.rank == 0
