"""`khop doctor` reports what it finds and survives what it does not."""

from __future__ import annotations

import errno
import json
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

import khop
from khop import __version__, _native, numa
from khop.cli import doctor
from khop.cli.main import main
from khop.cli.mapped_pages import HUGE_BYTES, MappedPages, mapped_pages
from khop.numa import format_cpus
from support import machines
from support.installed import install


def test_report_names_what_a_maintainer_asks_for(command):
    done = command("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    for name in (
        *("torch", "torch_geometric", "numpy", "pyzmq", "libzmq", "curve", "pyg_lib"),
        *("torch_sparse", "features", "cores of this process", "compiled", "usable", "memfd"),
        *("lightning", "ray", "shtab", "/dev/shm", "RLIMIT_MEMLOCK", "RLIMIT_NOFILE"),
        *("enabled", "shmem_enabled"),
    ):
        assert f"  {name} " in done.stdout, name


def test_json(command):
    found = json.loads(command("doctor", "--json").stdout)
    assert found["khop"]["version"] == __version__
    assert found["processor"]["cores of this process"] == len(os.sched_getaffinity(0))
    assert found["shared memory"]["memfd"] is True
    assert found["CUDA"]["usable"] in (True, False)
    assert found.pop("advice") == []
    assert not any("probe failed" in section for section in found.values())


def test_plugins_are_listed(monkeypatch, tmp_path):
    """Those of installed packages, without an import of one, and those that variables name."""
    install(tmp_path, "khop-test", "[khop.sources]\ncircle = khop_test_missing:Circle\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("KHOP_TRANSPORT", "mine:Own")
    found = doctor.report()["plugins"]
    assert found["khop.sources"] == ["circle"] and found["khop.methods"] == []
    assert found["KHOP_TRANSPORT"] == "mine:Own" and found["KHOP_CLUSTER_ENVIRONMENT"] is None


def test_numa_nodes(monkeypatch, tmp_path, command):
    """Nodes and GPUs of a machine, what 'auto' does there, and what the system refuses."""
    found = json.loads(command("doctor", "--json").stdout)["NUMA"]
    cores = format_cpus(os.sched_getaffinity(0))
    assert found["node 0"].startswith("cores ") and f", cores {cores}, " in found["this process"]
    assert found["refused"] == []
    machine = numa.topology(machines.write(tmp_path, "two sockets"), range(64), [0, 1])
    monkeypatch.setattr(doctor, "topology", lambda: machine)
    monkeypatch.setattr(doctor, "refusals", lambda placement: ["set_mempolicy: no"])
    monkeypatch.setenv("KHOP_PLACEMENT", "node:1")
    found = doctor.report()["NUMA"]
    assert found["node 1"] == "cores 16-31,48-63, 94.0 GiB, distances 21 10"
    assert found["GPU 0000:3b:00.0"] == "at node 1"
    assert found["GPU 0000:e0:00.0"] == "of an unknown node"
    assert found["auto"] == "trainers and samplers, node by node"
    assert (found["KHOP_PLACEMENT"], found["refused"]) == ("node:1", ["set_mempolicy: no"])
    for name, cpus, reason in (
        ("two sockets", range(63), "cores of this process are restricted"),
        ("CXL", range(8), "one node has cores"),
    ):
        folder = machines.write(tmp_path / name, name)
        machine = numa.topology(folder, cpus, [0, 1])
        monkeypatch.setattr(doctor, "topology", lambda found=machine: found)
        assert doctor.report()["NUMA"]["auto"] == f"places nothing: {reason}"


def test_gpus_are_named(monkeypatch, command):
    """None without a device; else a line each, of what the extension says."""
    found = json.loads(command("doctor", "--json").stdout)["CUDA"]
    assert sum(name.startswith("GPU ") for name in found) == found.get("devices", 0)
    gpu = {"name": "NVIDIA X", "capability": (9, 0), "memory": 80 << 30, "multiprocessors": 132}
    both = [{**gpu, "registers_read_only": True}, {**gpu, "registers_read_only": False}]
    status = {"compiled": True, "devices": 2, "error": "", "gpus": both}
    monkeypatch.setattr(_native, "cuda_status", lambda: status)
    found = doctor.report()["CUDA"]
    line = "NVIDIA X, compute capability 9.0, 80.0 GiB, 132 multiprocessors, "
    assert found["GPU 0"] == line + "can read mapped files in place, dependent launch on"
    assert found["GPU 1"] == line + "cannot read mapped files in place, dependent launch on"
    assert "gpus" not in found
    assert found["usable"]


@pytest.mark.parametrize(
    ("capability", "usable"), [((7, 5), False), ((8, 0), True), ((10, 0), True)]
)
def test_gpus_that_khop_was_not_built_for(monkeypatch, capability, usable):
    """They are there, and cannot be used: the report says what to do."""
    gpu = {"name": "NVIDIA T4", "capability": capability, "memory": 16 << 30}
    gpu |= {"multiprocessors": 40, "registers_read_only": True}
    status = {"compiled": True, "devices": 1, "error": "", "gpus": [gpu]}
    monkeypatch.setattr(_native, "cuda_status", lambda: {**status, "lowest_capability": (8, 0)})
    found = doctor.report()["CUDA"]
    assert found["usable"] is usable
    assert found["built for"] == "compute capability 8.0 and later"
    advice = "; not usable: build khop with KHOP_CUDA_ARCHITECTURES=75"
    assert found["GPU 0"].endswith(advice) is not usable
    assert "lowest_capability" not in found


def test_a_build_for_the_gpu_that_was_there(monkeypatch):
    """'native': what is the lowest is not known, and nothing is said of it."""
    gpu = {"name": "NVIDIA T4", "capability": (7, 5), "memory": 16 << 30}
    gpu |= {"multiprocessors": 40, "registers_read_only": True}
    status = {"compiled": True, "devices": 1, "error": "", "gpus": [gpu]}
    monkeypatch.setattr(_native, "cuda_status", lambda: {**status, "lowest_capability": (0, 0)})
    found = doctor.report()["CUDA"]
    assert found["usable"]
    assert "built for" not in found


def test_neither_torch_nor_numpy_heavy_modules_are_imported(command):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from khop.cli.main import main; sys.exit(main(['doctor']))"
    )
    path = str(Path(doctor.__file__).parents[2])
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr


def test_files_that_cannot_be_read(monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError("no")

    monkeypatch.setattr(Path, "read_text", refuse)
    found = doctor.report()
    assert found["processor"]["features"] == []
    assert found["memory"]["total"] is None
    assert found["transparent huge pages"]["enabled"] is None


def test_systems_without_what_is_probed(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr("shutil.disk_usage", lambda path: Path("/nonexistent").stat())
    found = doctor.report()
    assert str(found["shared memory"]["memfd"]).startswith("no (")
    assert "unusable" in found["shared memory"]["/dev/shm"]
    assert found["processor"]["cores of this process"] is None


def test_packages_that_are_missing_or_broken(monkeypatch):
    monkeypatch.setitem(sys.modules, "zmq", None)
    monkeypatch.setattr(doctor, "_PACKAGES", ("torch", "no_such_package"))
    found = doctor.report()
    assert "probe failed" in found["ZeroMQ"]
    assert found["packages"]["no_such_package"] == "not installed"
    assert found["khop"]["version"] == __version__


def test_values_as_text():
    assert [doctor._text(v) for v in (True, False, None, [], ["a", 1], 3)] == [
        *("yes", "no", "none", "none", "a 1", "3"),
    ]


def test_the_chosen_setting_of_huge_pages(monkeypatch, tmp_path):
    (tmp_path / "enabled").write_text("always [madvise] never")
    (tmp_path / "defrag").write_text("strange")
    monkeypatch.setattr(doctor, "_HUGEPAGES", tmp_path)
    expected = {"enabled": "madvise", "shmem_enabled": None, "defrag": "strange"}
    assert doctor.report()["transparent huge pages"] == expected


@pytest.fixture
def sound(monkeypatch):
    """A report of a machine that has all that khop needs."""
    monkeypatch.setattr(doctor, "_PACKAGES", ("numpy",))
    gpus = {"compiled": False, "devices": 0, "error": "", "gpus": []}
    monkeypatch.setattr(_native, "cuda_status", lambda: gpus)
    return {**doctor.report(), "limits": {"RLIMIT_NOFILE": "1024 (at most 4096)"}}


def test_it_ends_with_ok(monkeypatch, capsys, sound):
    assert doctor.advice(sound) == []
    monkeypatch.setattr(doctor, "report", lambda: sound)
    assert main(["doctor"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "OK: nothing found that khop needs and does not have"


@pytest.mark.parametrize(
    ("section", "content", "message"),
    [
        ("packages", {"torch": "not installed"}, "install torch: loaders need it; partitioning"),
        ("packages", {"pyzmq": "not installed"}, "install pyzmq: khop needs it"),
        ("ZeroMQ", {"curve": False, "ipc": True}, "install pyzmq's wheel: this ZeroMQ encrypts"),
        ("shared memory", {"memfd": "no (denied)"}, "batches need memfd_create"),
        ("limits", {"RLIMIT_NOFILE": "256 (at most 512)"}, "raise the limit of open files, 256"),
        ("CUDA", {"error": "no driver"}, "CUDA: no driver"),
        ("CUDA", {"GPU 0": "T4; not usable: build khop"}, "GPU 0: T4; not usable: build khop"),
        ("processor", {"probe failed": "OSError: x"}, "processor could not be looked at: OSError"),
    ],
)
def test_it_ends_with_what_to_do(monkeypatch, capsys, sound, section, content, message):
    monkeypatch.setattr(doctor, "report", lambda: {**sound, section: content})
    assert main(["doctor"]) == 0
    first, last = capsys.readouterr().out.splitlines()[-2:]
    assert first == "to do"
    assert last.startswith(f"  - {message}")


def test_pages_of_a_folder(tmp_path, capsys):
    """Only pages in memory are touched. After reads of single pages, few of them are huge."""
    root = tmp_path / "parts"
    graph = Data(x=torch.ones(65536, 128), edge_index=torch.zeros(2, 1, dtype=torch.int64))
    khop.partition_graph(graph, root, 1)
    (file,) = root.rglob("x.npy")
    size = file.stat().st_size
    with file.open("rb") as opened:
        try:
            os.preadv(opened.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                pytest.skip("this file system does not tell which pages are in memory")
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for first in range(0, size, mmap.PAGESIZE):
            os.pread(opened.fileno(), 1, first)
    pages = mapped_pages(root)
    assert pages.nbytes >= size
    assert pages.cached >= size // HUGE_BYTES * HUGE_BYTES
    assert pages.huge <= pages.cached - size // 2
    shown = MappedPages(1 << 30, 1 << 29, 1 << 20)
    assert shown.share == pytest.approx(1 / 512) and MappedPages(1, 0, 0).share == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("khop.cli.mapped_pages.mapped_pages", lambda folder: shown)
        assert main(["doctor", str(root), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pages of the folder"]["in huge pages"] == "0.2%"
    assert any("small pages" in advice for advice in found["advice"])


def test_a_folder_that_does_not_exist(tmp_path, capsys):
    assert main(["doctor", str(tmp_path), "--json"]) == 0
    assert "is not a partition folder" in str(json.loads(capsys.readouterr().out)["advice"])
