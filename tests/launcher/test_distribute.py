"""`khop distribute`, by a transport that is a shell: hosts are home folders below one folder."""

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given, strategies as st

from khop.errors import SecurityError
from khop.launcher.distribute import FOLDER_STAGE, Distribution, assign_parts, shares_of
from khop.launcher.folder_stage import Delivery
from khop.launcher.run import CheckError
from khop.launcher.session import stage_source, transport_command
from khop.partition import PartitionFolder, partition_graph, verify_folder
from support import launching, processes
from support.cluster import jobs

# A host's home is a folder of its name. The transport is a process of its own, as ssh.
SHELL = "sh -c 'HOME={root}/$1 sh -c \"{before} $2\"; exit $?' rsh {{host}}"


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A folder of four parts."""
    folder = tmp_path_factory.mktemp("distributed") / "parts"
    partition_graph(jobs.make_graph(), folder, 4)
    return folder


PROGRAM = len(stage_source(FOLDER_STAGE)) + 4_000
"""Bytes of the stage's program, and of the digests of a host's files."""


def start(parts, root, *words, before=""):
    """Start `khop distribute` to `~/parts` of hosts below `root`. Their input passes `before`."""
    rsh = SHELL.format(root=root, before=before)
    options = ("distribute", parts, "--to", "~/parts", "--rsh", rsh, "--json")
    return subprocess.Popen(
        processes.command("khop.cli.main", *options, *words),
        env=processes.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(parts, root, *words, before="", status=0):
    """Run `khop distribute`. Return {host: its entry}, or the lines of standard error."""
    process = start(parts, root, *words, before=before)
    out, error = process.communicate(timeout=60)
    assert process.returncode == status, error
    return {one["host"]: one for one in json.loads(out)["hosts"]} if status == 0 else error


def files(folder):
    """{path: content} of all files below a folder."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def without(found, *parts):
    """Files of a folder without those of some parts."""
    outside = tuple(f"part-{part}/" for part in parts)
    return {path: content for path, content in found.items() if not path.startswith(outside)}


@given(st.integers(1, 40), st.integers(1, 40), st.data())
def test_every_part_has_its_hosts(num_parts, num_hosts, data):
    copies = data.draw(st.integers(1, num_hosts))
    hosts = assign_parts(num_parts, num_hosts, copies)
    counts = [sum(part in own for own in hosts) for part in range(num_parts)]
    assert len(hosts) == num_hosts and all(hosts)
    assert all(own == sorted(set(own)) for own in hosts)
    assert all(count >= copies for count in counts)
    if copies == 1 and num_parts >= num_hosts:
        assert [part for own in hosts for part in own] == list(range(num_parts))
        assert max(map(len, hosts)) - min(map(len, hosts)) <= 1
    if copies == 1 and num_parts <= num_hosts:
        assert all(len(own) == 1 for own in hosts) and max(counts) - min(counts) <= 1


@pytest.mark.process
def test_each_host_gets_its_parts(parts, tmp_path):
    """And nothing else; a second run sends nothing, a run with copies only what is new."""
    sent = run(parts, tmp_path, "--hosts", "a,b")
    source = files(parts)
    assert files(tmp_path / "a/parts") == without(source, 2, 3)
    assert files(tmp_path / "b/parts") == without(source, 0, 1)
    assert sent["a"]["parts"] == [0, 1] and sent["a"]["bytes"] == sent["a"]["sent"]
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["parts"]
    folder = PartitionFolder(tmp_path / "b/parts")
    assert folder.fingerprint == PartitionFolder(parts).fingerprint
    assert [folder.has_part(part) for part in range(4)] == [False, False, True, True]
    assert {one["sent"] for one in run(parts, tmp_path, "--hosts", "a:2,b:4").values()} == {0}
    more = run(parts, tmp_path, "--hosts", "a,b", "--copies", "2", "--jobs", "1")
    new = [sum(map(len, without(source, *own).values())) for own in ((0, 1), (2, 3))]
    common = sum(map(len, without(source, 0, 1, 2, 3).values()))
    assert [more[host]["sent"] for host in "ab"] == [size - common for size in new]
    for host in "ab":
        assert files(tmp_path / host / "parts") == source
        assert verify_folder(tmp_path / host / "parts") == []


@pytest.mark.process
def test_it_goes_on_where_it_ended(parts, tmp_path):
    """A connection that ends: nothing is at the target, and whole ranges are not sent again."""
    source = without(files(parts), 1, 2, 3)
    size = sum(map(len, source.values()))
    cut = f"dd bs=1 count={PROGRAM + size // 2} status=none |"
    error = run(parts, tmp_path, "--hosts", "a,b,c,d", before=cut, status=1)
    assert error.count("ended with status 1") == 4
    home = tmp_path / "a"
    assert not (home / "parts").exists()
    (draft,) = home.iterdir()
    assert draft.stat().st_mode & 0o77 == 0
    sent = run(parts, tmp_path, "--hosts", "a,b,c,d")
    assert 0 < sent["a"]["sent"] < size
    assert files(home / "parts") == source
    assert [path.name for path in home.iterdir()] == ["parts"]


@pytest.mark.process
def test_other_parts_of_an_ended_run_are_not_taken(parts, tmp_path):
    """Their files may be incomplete."""
    fingerprint = PartitionFolder(parts).fingerprint
    draft = tmp_path / "a" / f".parts.{fingerprint}.tmp"
    (draft / "part-3/node").mkdir(parents=True)
    (draft / "part-3/node/half.npy").write_bytes(b"half")
    draft.chmod(0o700)
    run(parts, tmp_path, "--hosts", "a,b")
    assert files(tmp_path / "a/parts") == without(files(parts), 2, 3)


@pytest.mark.process
def test_damage_is_repaired(parts, tmp_path):
    """Of files and of a folder that is gone. What is whole stays as it is."""
    run(parts, tmp_path, "--hosts", "a")
    root, source = tmp_path / "a/parts", files(parts)
    kept = (root / "part-1").stat().st_ino
    damaged = next((root / "part-0/node").rglob("*.npy"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
    shutil.rmtree(root / "part-2")
    sent = run(parts, tmp_path, "--hosts", "a")["a"]["sent"]
    gone = sum(len(content) for path, content in source.items() if path.startswith("part-2/"))
    assert sent == gone + damaged.stat().st_size
    assert files(root) == source and (root / "part-1").stat().st_ino == kept


@pytest.mark.process
def test_a_damaged_source_is_no_folder_anywhere(parts, tmp_path):
    """The host compares checksums; a file of another length is found before."""
    source = tmp_path / "source"
    shutil.copytree(parts, source)
    path = next((source / "part-0").rglob("indices.npy"))
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    error = run(source, tmp_path, "--hosts", "a,b", status=1)
    assert f"a: '{path.relative_to(source)}' has another checksum in bytes 0 to" in error
    assert "khop verify" in error and "b: " not in error
    assert not (tmp_path / "a/parts").exists() and (tmp_path / "b/parts").exists()
    path.write_bytes(content[:-1])
    error = run(source, tmp_path, "--hosts", "c", status=2)
    assert f"{path}' has {len(content) - 1:,} bytes instead of {len(content):,}" in error
    assert not (tmp_path / "c").exists()


@pytest.mark.process
def test_problems_of_all_hosts_are_one_list(parts, tmp_path):
    for host in "ab":
        (tmp_path / host / "parts").mkdir(parents=True)
    (tmp_path / "a/parts/own.txt").write_text("mine")
    (tmp_path / "c").mkdir()
    (tmp_path / "c/parts").symlink_to(tmp_path / "b")
    error = run(parts, tmp_path, "--hosts", "a,b,c", status=2)
    assert "2 problems, nothing was sent" in error
    assert "a: '" in error and "exists, and is not this partition folder" in error
    assert "c/parts' is a link" in error
    assert list((tmp_path / "b/parts").iterdir()) == []
    error = run(parts, tmp_path, "--hosts", "a,b", "--python", "/nowhere/python", status=2)
    assert error.count("ended with status 127") == 2
    error = run(parts, tmp_path, "--hosts", "b", "--to", "parts", status=2)
    assert "'parts' is no absolute path" in error
    error = run(parts, tmp_path, "--hosts", "b", "--copies", "2", status=2)
    assert "copies must be 1 to 1" in error
    run(parts, tmp_path, "--hosts", "b")  # an empty folder is in nobody's way


@pytest.mark.process
def test_links_are_not_followed(parts, tmp_path):
    """Nor changed is what they lead to: a link on each host."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    run(parts, tmp_path, "--hosts", "a,b,c", "--copies", "3")
    links = [
        tmp_path / "a" / f".parts.{PartitionFolder(parts).fingerprint}.tmp",
        tmp_path / "b/parts/part-0",
        next((tmp_path / "c/parts/part-0").rglob("indptr.npy")),
    ]
    shutil.rmtree(tmp_path / "a/parts")
    shutil.rmtree(links[1])
    links[2].unlink()
    for link in links:
        link.symlink_to(elsewhere)
    error = run(parts, tmp_path, "--hosts", "a,b,c", "--copies", "3", status=2)
    for host in "abc":
        assert re.search(f"{host}: .*(is a link|Too many levels of symbolic links)", error), error
    assert list(elsewhere.iterdir()) == []


@pytest.mark.fault
def test_silence_ends_it_on_both_sides(parts, tmp_path):
    """Host a gets no more after its program, and host b says nothing. A lease of 2 s."""
    before = 'case \\$HOME in */a) cat=\\"head -c 15000; sleep 100\\";; *) exec sleep 100;; esac;'
    rsh = shlex.split(SHELL.format(root=tmp_path, before=f'{before} eval \\"\\$cat\\" |'))
    folder = PartitionFolder(parts)
    distribution = Distribution(
        folder,
        shares_of(folder, ["a", "b"], 1),
        "~/parts",
        lambda host: transport_command(host, rsh, [sys.executable]),
        jobs=2,
        lease=2.0,
        note=lambda host, line: None,
        progress=lambda step, done, total: None,
    )
    try:
        with pytest.raises(CheckError) as raised:
            distribution.check()
    finally:
        distribution.close()
    problems = str(raised.value).splitlines()
    assert [line.partition(" for ")[0] for line in problems] == [
        f"{h}: has been silent" for h in "ab"
    ]


@pytest.mark.fault
@pytest.mark.parametrize("name", ["TERM", "KILL"])
def test_nothing_is_left_when_it_is_killed(parts, tmp_path, name):
    """While a host waits for its bytes."""
    before = f"(dd bs=1 count={PROGRAM + 10_000} status=none; sleep 100) |"
    process = start(parts, tmp_path, "--hosts", "a", before=before)
    home = tmp_path / "a"
    end = time.monotonic() + 20
    while not list(home.glob(".parts.*")):
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.05)
    below = launching.descendants(process.pid)
    stages = [pid for pid, (_, line) in below.items() if b"python" in line]
    process.send_signal(getattr(signal, f"SIG{name}"))
    error = process.communicate(timeout=20)[1]
    for pid, (_, line) in below.items():
        if b"sleep" in line:  # the connection
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert stages and launching.left_of(stages, 5) == []
    assert process.returncode == {"TERM": 143, "KILL": -9}[name]
    assert name == "KILL" or "run the same again to go on" in error
    assert not (home / "parts").exists()


def delivery(tmp_path, **files):
    """A stage's delivery of {path: content} in ranges of 4 bytes."""
    listed = {}
    for path, content in {"meta.json": b"{}", **files}.items():
        ranges = [content[i : i + 4] for i in range(0, len(content), 4)]
        listed[path] = [len(content), [hashlib.sha256(piece).hexdigest() for piece in ranges]]
    target = str(tmp_path / "parts")
    return Delivery({"target": target, "name": "n", "range_bytes": 4, "files": listed})


def test_ranges(tmp_path):
    """Those that are there and right are not needed again."""
    one = delivery(tmp_path, x=b"0123456789")
    assert one.check()["present"] == ["0", "0"] and one.check()["needed"] == 12
    one.begin()
    one.write("x", 4, 4, iter([b"45", b"67"]))
    with pytest.raises(ValueError, match="'x' has another checksum in bytes 8 to 9"):
        one.write("x", 8, 2, iter([b"8!"]))
    for first, nbytes in ((2, 4), (8, 4), (0, 3), (-4, 4)):
        with pytest.raises(ValueError, match="no range"):
            one.write("x", first, nbytes, iter([b"...."]))
    other = delivery(tmp_path, x=b"0123456789")
    assert other.check()["present"] == ["0", "2"]
    with pytest.raises(ValueError, match="another process writes"):
        other.begin()
    one.write("x", 0, 4, iter([b"0123"]))
    one.write("x", 8, 2, iter([b"89"]))
    one.write("meta.json", 0, 2, iter([b"{}"]))
    one.finish()
    assert files(tmp_path / "parts") == {"x": b"0123456789", "meta.json": b"{}"}
    report = delivery(tmp_path, x=b"0123456789").check()
    assert report["is_complete"] and report["present"] == ["1", "7"] and report["needed"] == 0


def test_bad_requests(tmp_path):
    for path in ("../x", "/x", "a/../../x"):
        with pytest.raises(ValueError, match="leads out"):
            delivery(tmp_path, **{path: b"1"})
    huge = [1 << 62, ["0" * 64] * 4]
    request = {"target": str(tmp_path / "p"), "name": "n", "range_bytes": 1 << 60}
    files = {"meta.json": huge}
    (problem,) = Delivery({**request, "files": files}).check()["problems"]
    assert f"{1 << 62:,} bytes are needed in '{tmp_path}'" in problem


def test_the_draft_of_another_user_is_refused(tmp_path):
    """Who could change what is in it."""
    one = delivery(tmp_path, x=b"1")
    (tmp_path / ".parts.n.tmp").mkdir()
    (tmp_path / ".parts.n.tmp").chmod(0o777)
    with pytest.raises(SecurityError, match="other users can"):
        one.begin()
