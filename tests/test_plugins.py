"""Names of plugins: resolved where this process's user names them, and nowhere else."""

import importlib
import sys

import numpy as np
import pytest

from khop import codec
from khop.errors import PluginError, ProtocolError
from khop.partition import PartitionerBase, RandomPartitioner, partition_graph, repartition
from khop.partition.cut import PARTITIONERS, make_partitioner
from khop.plugins import Registry, instance_of, subclass_of
from khop.sampler.methods import MethodSpec
from khop.sampler.methods.modules import PACKAGES, modules_named
from khop.sources import Source, read_source
from khop.sources.read import LAYOUTS, find_layout
from support.installed import install

PLUGINS = """
from pathlib import Path
import numpy as np
from khop.partition import GraphSource, PartitionerBase
from khop.sources import Source

Path(__file__).with_name("imported").touch()

class Circle(Source):
    def matches(self, spec):
        return spec.startswith("circle:")

    def read(self, spec, scratch, root):
        nodes = np.arange(int(spec.partition(":")[2]))
        return GraphSource.from_arrays(len(nodes), [nodes, np.roll(nodes, 1)])

class Evens(PartitionerBase):
    def assign_nodes(self, node_type):
        return np.arange(self.source.nodes[node_type].count) % self.num_parts

class Needs(PartitionerBase):
    def __init__(self, argument):
        pass

class Nothing(Source):
    def matches(self, spec):
        return True

    def read(self, spec, scratch, root):
        return None

NUMBER = 7
"""
BROKEN = "from pathlib import Path\nPath(__file__).with_name('imported').touch()\n1 / 0\n"
ENTRY_POINTS = """
[khop.sources]
circle = khop_test_plugins:Circle
broken = khop_test_broken:Gone

[khop.partitioners]
evens = khop_test_plugins:Evens
number = khop_test_plugins:NUMBER
gone = khop_test_plugins:Gone
random = khop_test_plugins:Evens

[khop.methods]
own = khop_test_plugins
"""


@pytest.fixture
def installed(tmp_path_factory, monkeypatch):
    """The folder that a package with plugins is installed in; `imported` is there once one ran."""
    folder = tmp_path_factory.mktemp("site")
    install(folder, "khop-test", ENTRY_POINTS, khop_test_plugins=PLUGINS, khop_test_broken=BROKEN)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for registry in (LAYOUTS, PARTITIONERS):
        monkeypatch.setattr(registry, "_named", {})
    importlib.invalidate_caches()
    yield folder
    for name in ("khop_test_plugins", "khop_test_broken"):
        sys.modules.pop(name, None)


def was_imported(folder):
    return (folder / "imported").exists()


def test_a_source_of_an_installed_package(installed):
    assert LAYOUTS.installed() == ["broken", "circle"]
    assert LAYOUTS.known("circle") is None
    with pytest.raises(FileNotFoundError, match=r"igbh:SIZE, broken:\.\.\., circle:\.\.\. "):
        find_layout("nowhere")
    assert not was_imported(installed)
    source = read_source("circle:5")  # the user names it
    assert was_imported(installed)
    assert source.edges["node", "to", "node"].dst.tolist() == [4, 0, 1, 2, 3]
    assert isinstance(LAYOUTS.known("circle"), Source)


def test_layouts_by_hand(installed):
    """By package:Class, as a class, as an object: the same graph."""
    by_hand = read_source("circle:5", layout="khop_test_plugins:Circle")
    circle = importlib.import_module("khop_test_plugins").Circle
    for layout in (circle, circle(), "circle"):
        source = read_source("circle:5", layout=layout)
        for one, other in zip(source.edges.values(), by_hand.edges.values(), strict=True):
            assert np.array_equal(one.src, other.src) and np.array_equal(one.dst, other.dst)
    both = read_source("circle:5", undirected=True, layout=circle).edges["node", "to", "node"]
    assert both.num_edges == 10
    with pytest.raises(ValueError, match="layout circle does not read 'square:5'"):
        read_source("square:5", layout="circle")
    with pytest.raises(TypeError, match=r"must be a subclass of khop\.sources\.Source \(got 'int'"):
        read_source("circle:5", layout=3)
    with pytest.raises(
        TypeError, match=r"Nothing\.read must return a khop\.partition\.GraphSource"
    ):
        read_source("circle:5", layout="khop_test_plugins:Nothing")


def test_partitioners_by_name(installed, make_ring, tmp_path):
    for number, method in enumerate(("evens", "khop_test_plugins:Evens")):
        summary = partition_graph(make_ring(), tmp_path / str(number), 2, method=method)
        assert summary.nodes == [5, 5] and summary.method["name"] == "Evens"
    assert PARTITIONERS.resolve("random") is RandomPartitioner  # none takes a built-in name


def test_a_broken_plugin_breaks_where_it_is_named(installed, make_ring, tmp_path):
    read_source("circle:3")
    for name, message in (
        (
            "broken:x",
            r"khop\.sources: cannot import 'khop_test_broken:Gone' of package khop-test: Z",
        ),
        ("broken:x", r"ZeroDivisionError: division by zero\. Install it where"),
    ):
        with pytest.raises(PluginError, match=message):
            read_source(name)
    for method, error, message in (
        (
            "gone",
            PluginError,
            r"AttributeError: module 'khop_test_plugins' has no attribute 'Gone'",
        ),
        (
            "number",
            TypeError,
            r"NUMBER' of package khop-test must be a subclass of khop\.partition",
        ),
        ("khop_test_plugins:Circle", TypeError, r"PartitionerBase \(got class Circle\)"),
        ("khop_test_missing:X", PluginError, "No module named 'khop_test_missing'"),
        (
            "evns",
            ValueError,
            "no method 'evns': did you mean 'evens'.*: evens, gone, number, random",
        ),
        (":X", ValueError, "must be written package.module:Class"),
        ("a:b:c", ValueError, "must be written package.module:Class"),
        ("os.path:", ValueError, "must be written package.module:Class"),
        ("", ValueError, "no method ''"),
        ("x" * 10_000, ValueError, r"no method 'xxx.*\.\.\..*: there are"),
        (None, TypeError, "method must be a subclass"),
    ):
        with pytest.raises(error, match=message):
            make_partitioner(make_ring(), tmp_path / "parts", 2, method=method)


def test_two_packages_of_one_name(installed):
    """The same entry point twice is one, as of a package that is installed at two places."""
    (installed / "more").mkdir()
    install(installed / "more", "khop-more", "[khop.sources]\ncircle = khop_test_plugins:Circle\n")
    sys.path.append(str(installed / "more"))
    try:
        assert find_layout("circle:3").matches("circle:1")
        install(installed / "more", "khop-other", "[khop.sources]\nbroken = elsewhere:X\n")
        importlib.invalidate_caches()
        with pytest.raises(PluginError, match="have 'broken': khop_test_broken:Gone, elsewhere:X"):
            find_layout("broken:3")
        assert find_layout("circle:3").matches("circle:1")
    finally:
        sys.path.remove(str(installed / "more"))


def test_a_registry():
    class Base:
        """Of plugins."""

    class Own(Base):
        """A plugin."""

    one = Base()
    objects = Registry("khop.test", {"one": one}, instance_of(Base), "thing")
    assert objects.resolve("one") is objects.checked("one") is objects.checked(one) is one
    assert type(objects.checked(Own)) is Own
    assert objects.known("two") is None and objects.installed() == []
    with pytest.raises(
        ValueError, match=r"no thing 'two': there are one; .*khop\.test\): none; or"
    ):
        objects.resolve("two")
    classes = Registry("khop.test", {}, subclass_of(Base), "thing")
    assert classes.checked(Own) is Own
    with pytest.raises(ValueError, match="no thing 'two': there are none built in"):
        classes.resolve("two")
    with pytest.raises(
        TypeError, match=r"must be a subclass of tests?\.?.* \(got 'Own'\)|got 'Own'"
    ):
        classes.checked(Own())


# What others say imports nothing ---------------------------------------------------------------


@pytest.fixture
def make_ring():
    """A function that makes a graph of ten nodes in a circle."""
    return lambda: read_source("circle:10", layout=_Circle)


class _Circle(Source):
    """As `Circle` above, of no other module."""

    def matches(self, spec):
        return True

    def read(self, spec, scratch, root):
        from khop.partition import GraphSource

        nodes = np.arange(10)
        return GraphSource.from_arrays(10, [nodes, np.roll(nodes, 1)])


HOSTILE = "khop_test_plugins:Evens"
IN_FOLDERS = [
    {"name": HOSTILE},
    {"name": "evens"},
    {"name": "Evens"},
    {"name": "RandomPartitioner", "seed": 0, "method": HOSTILE},
    {"name": "RandomPartitioner", "seed": 0, "on": "ray:127.0.0.1:1"},
    {"name": "RandomPartitioner", "seed": 0, "overwrite": True},
    {"name": "RandomPartitioner", "seed": 0, "tmp": "/"},
    {"name": "FrequencyPartitioner", "batch_size": 2, "num_neighbors": [2], "base": HOSTILE},
    {"name": "FrequencyPartitioner", "batch_size": 2, "num_neighbors": [2], "base": "evens"},
    {"name": "FrequencyPartitioner", "batch_size": 2, "num_neighbors": [2], "base": [HOSTILE]},
]


@pytest.mark.parametrize("method", IN_FOLDERS, ids=str)
def test_a_folder_imports_nothing(installed, make_ring, tmp_path, method):
    """Nor does it choose what else runs, or what is overwritten."""

    class Says(RandomPartitioner):
        def describe(self):
            return method

    partition_graph(make_ring(), tmp_path / "parts", 2, method=Says)
    partition_graph(make_ring(), tmp_path / "kept", 3)
    kept = (tmp_path / "kept" / "meta.json").read_bytes()
    with pytest.raises((ValueError, FileExistsError)):
        repartition(tmp_path / "parts", tmp_path / "kept", 2)
    assert not was_imported(installed) and "khop_test_plugins" not in sys.modules
    assert (tmp_path / "kept" / "meta.json").read_bytes() == kept
    with pytest.raises(ValueError, match="name a method"):
        repartition(tmp_path / "parts", tmp_path / "out", 2)
    assert not was_imported(installed)


def test_methods_of_installed_packages(installed):
    """Servers are started with their name; it stands for a module, which is not imported here."""
    assert PACKAGES.installed() == ["own"]
    assert modules_named(["own", "my.module"]) == ["khop_test_plugins", "my.module"]
    assert not was_imported(installed)


@pytest.mark.parametrize("name", [HOSTILE, "khop_test_plugins.Evens", "evens", "own"])
def test_a_peer_imports_no_method(installed, name):
    """A method's name in a request: known is what this process has imported."""
    with pytest.raises(ProtocolError, match="no sampling method"):
        codec.from_json(MethodSpec, {"name": name, "program": {}}, "a request")
    assert not was_imported(installed)


def test_khop_reads_no_entry_points_by_itself(installed, make_ring, tmp_path, monkeypatch):
    """Neither at import nor for what is built in."""
    monkeypatch.setattr(Registry, "_entries", lambda *args, **options: pytest.fail("read"))
    partition_graph(make_ring(), tmp_path / "parts", 2, method="random")
    np.savez(tmp_path / "g.npz", edge_index=[[0], [1]])
    read_source(str(tmp_path / "g.npz"))
    assert issubclass(PARTITIONERS.resolve("stream"), PartitionerBase)
