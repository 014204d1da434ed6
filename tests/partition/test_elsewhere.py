"""Steps of partitioning as other processes run them: pickled, and more than once. Needs no Ray."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import pickle
import sys
import types

import numpy as np
import pytest

import khop
from khop.cli.main import main
from khop.data import Feature
from khop.data.files import load_npy, mapped_file
from khop.partition import base
from khop.partition.out_of_core.resources import Resources
from khop.partition.out_of_core.workspace import Workspace
from khop.partition.source import EdgeSource
from khop.storage.folder import AttemptWriter, FolderWriter
from support.cut_graphs import CASES, files_of


class Elsewhere(Workspace):
    """Runs each function pickled, as a task would, and twice: a task may be run again."""

    releases_pages = True

    def __init__(self):
        super().__init__(Resources(10_000, 1))

    def in_order(self, function, items):
        of = pickle.dumps(function)
        for item in items:
            pickle.loads(of)(self, item)
            yield pickle.loads(of)(self, item)

    def write(self, function, items, take=lambda item, result: None):
        of = pickle.dumps(function)
        for item in items:
            for _ in range(2):
                writer = AttemptWriter(self._writer.shared())
                results = list(pickle.loads(of)(writer, self, item))
            self._writer.take(writer.written)
            for result in results:
                take(item, result)
            yield item


@pytest.mark.parametrize("case", CASES)
def test_pickled_steps_write_the_same_folder(tmp_path, monkeypatch, case):
    make, options = CASES[case]
    khop.partition_graph(make(), tmp_path / "whole", 3, **options)
    monkeypatch.setattr(base, "open_workspace", lambda partitioner: Elsewhere())
    khop.partition_graph(make(), tmp_path / "pickled", 3, **options)
    assert files_of(tmp_path / "pickled") == files_of(tmp_path / "whole")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["pickled", "whole"]


@pytest.fixture
def file(tmp_path):
    """[1000, 2] integers."""
    np.save(tmp_path / "pairs.npy", np.arange(2000).reshape(1000, 2))
    return tmp_path / "pairs.npy"


def test_mapped_arrays_travel_by_name(file):
    """Views too: columns, pieces, reversed."""
    pairs = load_npy(file, "r")
    for src, dst in ((pairs.T[0], pairs.T[1]), (pairs[7:9], pairs[::-3])):
        of = pickle.dumps(EdgeSource(src, dst, {"w": Feature(pairs)}))
        assert len(of) < 2000
        found = pickle.loads(of)
        for array, wanted in (
            *((found.src, src), (found.dst, dst), (found.attrs["w"].array, pairs)),
        ):
            assert array.tolist() == wanted.tolist()
            assert mapped_file(array).mode == "r"


@pytest.mark.parametrize(
    "make",
    [
        lambda file: np.arange(6).reshape(2, 3),
        lambda file: np.arange(12, dtype=np.int16).reshape(4, 3).T[::2],
        lambda file: np.empty((0, 3), np.float32),
        lambda file: load_npy(file, "c"),
        lambda file: load_npy(file, "r")[:0],
    ],
)
def test_other_arrays_travel_by_value(file, make):
    array = make(file)
    found = pickle.loads(pickle.dumps(EdgeSource(array, array))).src
    assert (found.dtype, found.shape, found.tolist()) == (array.dtype, array.shape, array.tolist())
    assert mapped_file(found) is None


def test_a_file_that_is_elsewhere_is_missed(file):
    of = pickle.dumps(Feature(load_npy(file, "r")))
    file.write_bytes(file.read_bytes() + b"more")
    with pytest.raises(ValueError, match=r"pairs.npy' has 16,132 bytes on machine .*, but 16,128"):
        pickle.loads(of)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"machine .* does not see '.*pairs.npy'.*share"):
        pickle.loads(of)


def save(writer, values):
    writer.save("part-0/node/x.npy", np.array(values))


def test_attempts_may_be_repeated_and_fail(tmp_path):
    """The last one counts; one that fails leaves nothing."""
    with FolderWriter(tmp_path / "f") as writer:
        folder = writer.shared()
        first, second, third = (AttemptWriter(folder) for _ in range(3))
        with (
            pytest.raises(ValueError, match="2 of 3 rows"),
            second.array("part-0/node/x.npy", np.dtype(np.int64), (3,)) as file,
        ):
            save(first, [1, 2, 3])
            file.append(np.array([1, 2]))
        save(third, [1, 2, 3])
        assert first.written == third.written
        assert list((folder / ".attempts").iterdir()) == []
        assert np.load(folder / "part-0/node/x.npy").tolist() == [1, 2, 3]
        writer.take(third.written)
        save(AttemptWriter(folder), [1])
        with pytest.raises(OSError, match="has 136 bytes here, and 152 where it was written"):
            writer.take(third.written)
    assert list(tmp_path.iterdir()) == []


def test_an_attempt_that_comes_late_writes_nothing(tmp_path):
    """The folder has its final name by then, or is gone."""
    with FolderWriter(tmp_path / "f") as writer:
        late = AttemptWriter(writer.shared())
    for attempt in (late.save, lambda *args: AttemptWriter(late._folder.path)):
        with pytest.raises(FileNotFoundError):
            attempt("part-0/node/x.npy", np.zeros(3))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def ray(monkeypatch):
    """Stands for Ray, which need not be installed: what it is asked to join is recorded."""
    module = types.ModuleType("ray")
    module.__spec__ = importlib.machinery.ModuleSpec("ray", None)
    module.joined, module.is_initialized = [], lambda: False

    def init(address, **options):
        module.joined.append(address)
        raise ConnectionError("nobody there")

    module.init = init
    monkeypatch.setitem(sys.modules, "ray", module)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return module


@pytest.mark.parametrize("on", ["ray", "ray:", "ray:auto", "ray:local"])
@pytest.mark.parametrize("named", [None, "", "auto", "local"])
def test_a_cluster_is_not_looked_for(tmp_path, monkeypatch, ray, on, named):
    """Any user of the machine could offer one, and what it sends is unpickled."""
    if named is not None:
        monkeypatch.setenv("RAY_ADDRESS", named)
    with pytest.raises(ValueError, match=r"needs the address of a cluster.*--ray HOST:6379"):
        khop.partition_graph(CASES["homogeneous"][0](), tmp_path / "f", 2, on=on)
    assert ray.joined == []


def test_a_cluster_is_joined_at_its_address(tmp_path, monkeypatch, ray, capsys):
    """The option counts before the variable."""
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    words = ["partition", str(tmp_path / "in"), str(tmp_path / "f"), "--num-parts", "2"]
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in/edge_index.npy", np.array([[0, 1], [1, 0]]))
    for further in ([], ["--ray", "10.0.0.2:6379"]):
        assert main([*words, "--on", "ray", *further]) == 2
    assert ray.joined == ["10.0.0.1:6379", "10.0.0.2:6379"]
    assert "no Ray cluster is reached at '10.0.0.2:6379'" in capsys.readouterr().err
    assert main([*words, "--ray", "10.0.0.2:6379"]) == 2
    assert "--ray needs --on ray" in capsys.readouterr().err


def test_an_engine_that_is_not_there(tmp_path, monkeypatch, capsys):
    with pytest.raises(ValueError, match=r"on must be 'ray', .*got 'spark'"):
        khop.partition_graph(CASES["homogeneous"][0](), tmp_path / "f", 2, on="spark")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"needs package ray: pip install ray"):
        khop.partition_graph(CASES["homogeneous"][0](), tmp_path / "f", 2, on="ray")
    words = ["partition", "nothing", str(tmp_path / "f"), "--num-parts", "2", "--on", "ray"]
    assert main(words) == 2
    assert "--on ray) needs package ray: pip install ray" in capsys.readouterr().err
