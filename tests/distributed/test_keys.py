"""Keys of graph servers: files that others cannot read, and texts that do not tell secrets."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
import zmq

from khop.cli.main import main
from khop.distributed.processes.child import ChildProcess, wait_for_message
from khop.distributed.rpc import key_files
from khop.distributed.rpc.key_files import (
    add_client,
    read_client_keys,
    read_server_keys,
    revoke_client,
    write_keys,
)
from khop.distributed.rpc.keys import ClientKeys, JobKeys, ServerKeys, check_secured
from khop.errors import SecurityError


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return write_keys(tmp_path / "keys")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def secrets_of(keys: JobKeys) -> list[str]:
    return [keys.server.secret, *(pair.secret for pair in keys.clients.values())]


def test_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        server, client = write_keys(tmp_path / "keys")
    finally:
        os.umask(before)
    assert [mode(server), mode(client), mode(server.parent)] == [0o600, 0o600, 0o700]


def test_both_sides_read_what_belongs_together(files: list[Path]) -> None:
    server, client = read_server_keys(files[0]), read_client_keys(files[1])
    assert server is not None and client is not None
    assert server.server_key == client.server_key
    assert server.curve()["clients"] == [client.client.public]
    assert ServerKeys.from_json(json.loads(json.dumps(server.to_json()))) == server
    # A client's file does not make a server, nor a server's a client.
    assert server.server.secret not in files[1].read_text()
    assert client.client.secret not in files[0].read_text()


def test_a_pair_for_each_client(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One can be shut out, and another let in; the others' files stay as they are."""
    folder = str(tmp_path / "keys")
    assert main(["keygen", folder, "--clients", "3"]) == 0
    before = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    assert sorted(before) == ["client-0.key", "client-1.key", "client-2.key", "server.key"]
    assert main(["keygen", folder, "--revoke", "client-1"]) == 0
    assert main(["keygen", folder, "--add", "client-9"]) == 0
    server = read_server_keys(Path(folder) / "server.key")
    assert server is not None
    assert list(server.clients) == ["client-0", "client-2", "client-9"]
    assert mode(Path(folder) / "server.key") == 0o600
    for name, public in server.clients.items():
        client = read_client_keys(Path(folder) / f"{name}.key")
        assert client is not None
        assert client.client.public == public
        assert before.get(f"{name}.key") in (None, (Path(folder) / f"{name}.key").read_bytes())
    capsys.readouterr()
    for wrong, words in (
        (["--revoke", "client-1"], "no client 'client-1' to revoke"),
        (["--add", "client-0"], "has a client 'client-0' already"),
        (["--add", "../x"], "a client's name is letters"),
        (["--add", "server"], "a client's name is letters"),
        (["--clients", "0"], "--clients must be 1 to"),
    ):
        assert main(["keygen", folder, *wrong]) == 2
        assert words in capsys.readouterr().err


def test_a_key_that_is_revoked_while_another_is_added_stays_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two changes at a time the second begins with what the first has written."""
    write_keys(tmp_path / "keys", 2)
    revoking = threading.Thread(target=revoke_client, args=(tmp_path / "keys", "client-0"))
    has_come = threading.Event()
    lock, replace = fcntl.flock, key_files._replace_server_key

    def note_lock(*arguments: Any) -> None:
        if threading.current_thread() is revoking:
            has_come.set()
        lock(*arguments)

    def replace_late(*arguments: Any) -> None:
        if threading.current_thread() is not revoking:
            revoking.start()
            while revoking.is_alive() and not has_come.wait(0.01):
                pass
        replace(*arguments)

    monkeypatch.setattr(fcntl, "flock", note_lock)
    monkeypatch.setattr(key_files, "_replace_server_key", replace_late)
    add_client(tmp_path / "keys", "client-2")
    revoking.join()
    server = read_server_keys(tmp_path / "keys" / "server.key")
    assert server is not None
    assert list(server.clients) == ["client-1", "client-2"]


def test_files_of_the_first_version_are_read() -> None:
    """They had the clients' pair, whole, in the servers' file."""
    made = JobKeys.new()
    pair = made.clients["client"]
    old = made.for_servers().to_json()
    del old["clients"]
    old["client"] = {"public": pair.public, "secret": pair.secret}
    assert ServerKeys.from_json(old) == made.for_servers()


def test_keys_differ_from_job_to_job() -> None:
    one, other = JobKeys.new(), JobKeys.new()
    assert len({*secrets_of(one), *secrets_of(other)}) == 4


def test_nothing_is_overwritten(files: list[Path]) -> None:
    before = [path.read_bytes() for path in files]
    with pytest.raises(FileExistsError, match="never overwritten"):
        write_keys(files[0].parent)
    files[0].unlink()
    with pytest.raises(FileExistsError, match=r"client\.key"):
        write_keys(files[0].parent)
    assert not files[0].exists(), "half of a set of keys was left behind"
    assert files[1].read_bytes() == before[1]


def test_keys_are_not_written_through_a_link(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o700)
    (folder / "server.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        write_keys(folder)
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(SecurityError, match=r"or a link to one"):
        write_keys(tmp_path / "link")


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o755)
    with pytest.raises(SecurityError, match=r"mode 0755"):
        write_keys(folder)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o620, 0o602, 0o610])
def test_files_that_others_can_use_are_refused(files: list[Path], bits: int) -> None:
    files[0].chmod(bits)
    with pytest.raises(SecurityError, match=f"mode {bits:04o}.*chmod 600"):
        read_server_keys(files[0])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_another_users_file_is_refused(files: list[Path]) -> None:
    os.chown(files[0], 12345, -1)
    with pytest.raises(SecurityError, match="belongs to user 12345"):
        read_server_keys(files[0])


def test_a_link_leads_to_a_file_that_is_checked(files: list[Path], tmp_path: Path) -> None:
    link = tmp_path / "mounted.key"
    link.symlink_to(files[0])
    assert read_server_keys(link) == read_server_keys(files[0])
    files[0].chmod(0o644)
    with pytest.raises(SecurityError, match="0644"):
        read_server_keys(link)


def test_key_path_without_a_regular_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SecurityError, match="No such file"):
        read_server_keys(tmp_path / "missing")
    with pytest.raises(SecurityError, match="no regular file"):
        read_server_keys(tmp_path)
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(SecurityError, match="no regular file"):
        read_server_keys(tmp_path / "fifo")


def test_roles_are_told_apart(files: list[Path]) -> None:
    with pytest.raises(SecurityError, match=r"'client'.*server\.key"):
        read_server_keys(files[1])
    with pytest.raises(SecurityError, match=r"'server'.*client\.key"):
        read_client_keys(files[0])


def damaged(content: dict[str, object]) -> list[dict[str, object]]:
    server = dict(content["server"])  # type: ignore[call-overload]
    return [
        {**content, "version": 3},
        {**content, "version": True},
        {**content, "clients": {"client": "~" * 40}},
        {**content, "clients": {"../x": content["server"]["public"]}},  # type: ignore[index]
        {**content, "clients": None},
        {**content, "format": "other"},
        {**content, "server": None},
        {**content, "server": {**server, "secret": server["secret"][:-1]}},
        {**content, "server": {**server, "secret": "~" * 40}},
        {**content, "server": {**server, "secret": "#" * 40}},  # words above 32 bits
        {**content, "server": {**server, "secret": 3}},
        {**content, "server": {**server, "public": content["clients"]["client"]}},  # type: ignore[index]
    ]


def test_damaged_files_are_refused_without_a_word_of_secrets(files: list[Path]) -> None:
    keys = read_server_keys(files[0])
    assert keys is not None
    content = json.loads(files[0].read_text())
    texts = [json.dumps(c) for c in damaged(content)]
    texts += ["", "{", "[" * 100_000, json.dumps(keys.server.secret), files[0].read_text()[:-9]]
    for text in texts:
        files[0].write_text(text)
        with pytest.raises(SecurityError) as caught:
            read_server_keys(files[0])
        assert caught.value.__cause__ is None
        assert keys.server.secret[:-1] not in str(caught.value)


def test_secrets_are_in_no_repr() -> None:
    keys = JobKeys.new()
    of_server = keys.for_servers()
    shown = f"{keys!r} {keys} {keys.for_client()!r} {of_server!r} {of_server.credentials()!r}"
    assert not [secret for secret in secrets_of(keys) if secret in shown]


@pytest.mark.process
def test_secrets_are_in_no_command_line_or_environment(tmp_path: Path) -> None:
    keys = JobKeys.new()
    config = {
        "root": str(tmp_path),
        "part": 0,
        "ipc_path": None,
        "tcp_host": "127.0.0.1",
        "curve": keys.for_servers().curve(),
        "num_threads": 1,
    }
    child = ChildProcess("khop.distributed.rpc.partition_server", config)
    try:
        seen = Path(f"/proc/{child.pid}/cmdline").read_bytes()
        seen += Path(f"/proc/{child.pid}/environ").read_bytes()
        message = wait_for_message(child.line)  # there is no folder: it says so
        assert message is not None
        assert message.json()["type"] == "FolderError"
        seen += message.payload
    finally:
        child.close()
    assert not [secret for secret in secrets_of(keys) if secret.encode() in seen]


def test_the_environment_names_a_file(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KHOP_KEY_FILE", raising=False)
    assert read_server_keys() is None
    assert read_client_keys() is None
    monkeypatch.setenv("KHOP_KEY_FILE", str(files[1]))
    assert isinstance(read_client_keys(), ClientKeys)
    # What is given goes before what the environment says.
    assert isinstance(read_server_keys(files[0]), ServerKeys)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost"])
def test_loopback_needs_no_keys(host: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "khop"):
        check_secured(host, None, False, "server 0")
    assert not caplog.records


@pytest.mark.parametrize(
    "host", ["10.0.0.1", "0.0.0.0", "::", "*", "", "node-3", "localhost.evil.example", "127.1.evil"]
)
def test_other_addresses_need_keys(host: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SecurityError, match=r"khop keygen DIR.*insecure=True"):
        check_secured(host, None, False, "server 0")
    check_secured(host, JobKeys.new().for_servers(), False, "server 0")
    check_secured(host, JobKeys.new().for_client(), False, "server 0")
    assert not caplog.records
    with caplog.at_level(logging.WARNING, "khop"):
        check_secured(host, None, True, "server 0")
    assert "neither encryption nor authentication" in caplog.text


def test_keygen_writes_keys_that_zeromq_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "keys"
    assert main(["keygen", str(folder)]) == 0
    server, client = (
        read_server_keys(folder / "server.key"),
        read_client_keys(folder / "client.key"),
    )
    assert server is not None and client is not None
    printed = capsys.readouterr().out
    assert str(folder / "client.key") in printed
    assert not [s for s in (server.server.secret, client.client.secret) if s in printed]
    assert main(["keygen", str(folder)]) == 2
    assert "never overwritten" in capsys.readouterr().err
    assert greets(server, client)
    assert not greets(JobKeys.new().for_servers(), client, 700)


def greets(server: ServerKeys, client: ClientKeys, wait_ms: int = 20_000) -> bool:
    """Whether a socket with a client's keys can talk to one with a server's."""
    with zmq.Context() as context, context.socket(zmq.REP) as rep, context.socket(zmq.REQ) as req:
        rep.linger = req.linger = 0
        rep.curve_server = True
        rep.curve_publickey = server.curve()["public"].encode()
        rep.curve_secretkey = server.curve()["secret"].encode()
        port = rep.bind_to_random_port("tcp://127.0.0.1")
        own = client.credentials()
        req.curve_serverkey = client.server_key.encode()
        req.curve_publickey, req.curve_secretkey = own.public.encode(), own.secret.encode()
        req.connect(f"tcp://127.0.0.1:{port}")
        req.send(b"hello")
        answering = threading.Thread(target=lambda: rep.poll(wait_ms) and rep.send(rep.recv()))
        answering.start()
        answered = bool(req.poll(wait_ms))
        answering.join()
        return answered
