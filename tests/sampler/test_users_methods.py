"""Users' own methods in memory: what they draw, and what is said of mistakes."""

import importlib
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from khop import codec
from khop.errors import ProtocolError
from khop.loader import LinkNeighborLoader, NeighborLoader
from khop.sampler import (
    METHODS,
    NeighborSampler,
    SaintWalks,
    Sample,
    StepMethod,
    Transits,
    register,
)
from khop.sampler.methods import MethodSpec
from khop.sampler.methods.modules import import_methods, modules_of
from support import users_methods
from support.cluster import twins
from support.reference import oracle
from support.users_methods import (
    EXAMPLES,
    ORACLES,
    LayerImportance,
    Raises,
    Shared,
    TopDegree,
    Walks,
    Wrong,
    WrongValues,
)

SEEDS = torch.tensor([3, 77, 12, 149])


def check(loader, rows, seeds, size, method, seed):
    """AssertionError unless batches are what a method's oracle draws."""
    for number, batch in enumerate(loader):
        own = seeds[size * number : size * (number + 1)].tolist()
        run_key = oracle.run_key(seed, 0, 0)
        nodes, hops, norms = ORACLES[type(method)](rows, own, method, run_key, number)
        assert batch.n_id.tolist() == nodes
        assert batch.num_sampled_edges == [len(hop) for hop in hops]
        assert sum(batch.num_sampled_nodes) == len(nodes)
        edges = [edge for hop in hops for edge in hop]
        assert batch.e_id.tolist() == [edge for _, _, edge in edges]
        assert batch.n_id[batch.edge_index].T.tolist() == [[u, v] for u, v, _ in edges]
        if norms is not None:
            assert torch.equal(batch.edge_norm, torch.tensor(norms, dtype=torch.float32))


@pytest.mark.parametrize("method", EXAMPLES)
def test_a_batch_is_what_the_method_picks(method):
    data = twins.homogeneous()
    rows = users_methods.rows_of(data.edge_index)
    loader = NeighborLoader(data, method, SEEDS, batch_size=2, seed=5)
    check(loader, rows, SEEDS, 2, method, 5)
    batch = next(iter(loader))
    assert batch.edge_attr.view(-1).tolist() == batch.e_id.tolist()
    assert torch.equal(batch.x, data.x[batch.n_id])


@settings(max_examples=25, deadline=None)
@given(twins.homogeneous_graphs(), st.sampled_from(EXAMPLES), st.integers(1, 5), st.integers(0, 9))
def test_any_graph(data, method, size, seed):
    """Isolated nodes, parallel edges, loops, no edges at all."""
    seeds = torch.arange(data.num_nodes)[:8].repeat(2)
    loader = NeighborLoader(data, method, seeds, batch_size=size, seed=seed)
    check(loader, users_methods.rows_of(data.edge_index), seeds, size, method, seed)


def test_default_transits_draw_once():
    """As with a list of fan-outs that take all: PyG's batch, each node expanded once."""
    data = twins.homogeneous()
    mine = next(iter(NeighborLoader(data, TopDegree(100, 2), SEEDS, batch_size=4)))
    all_of = next(iter(NeighborLoader(data, [-1, -1], SEEDS, batch_size=4)))
    assert set(mine.n_id.tolist()) == set(all_of.n_id.tolist())
    assert sorted(mine.e_id.tolist()) == sorted(all_of.e_id.tolist())
    assert mine.num_sampled_nodes == all_of.num_sampled_nodes


def test_layers_have_no_bias():
    """Sums over drawn neighbours, weighted by the norms, are those over all, in the mean."""
    data = twins.homogeneous()
    seeds = torch.arange(20).repeat(400)
    loader = NeighborLoader(data, LayerImportance(8, 1), seeds, batch_size=20, seed=1)
    degrees = torch.bincount(data.edge_index[1], minlength=150)[:20].double()
    sums = [
        torch.zeros(b.num_nodes).double().index_add_(0, b.edge_index[1], b.edge_norm.double())[:20]
        for b in loader
    ]
    drawn = torch.stack(sums)
    error = drawn.std(0) / len(sums) ** 0.5
    assert ((drawn.mean(0) - degrees).abs() <= 4 * error + 1e-9).all()


def test_links():
    links = torch.tensor([[1, 2], [3, 4]])
    given = {"edge_label_index": links, "neg_sampling": "binary", "batch_size": 2}
    batch = next(iter(LinkNeighborLoader(twins.homogeneous(), Walks(3), **given)))
    assert batch.edge_label_index.max() < batch.n_id.numel()


MISTAKES = [
    ("steps", r"Wrong\.steps\(\) must be from 1 to 1,000 \(got 0\)"),
    ("float steps", r"Wrong\.steps\(\) must be an integer \(got 1\.0\)"),
    ("size", r"Wrong\.sample_size\(0\) must be from 1 to 16,777,216 \(got 0\)"),
    ("none", r"Wrong\.next must return a NumPy array of integers \(got a NoneType\)"),
    ("list", r"Wrong\.next must return a NumPy array of integers \(got a list\)"),
    ("float", r"Wrong\.next .* integers \(got an array of shape \(4, 2\) and dtype float64\)"),
    ("shape", r"Wrong\.next must return picks of shape \(4, 2\) in step 0.*\(got \(4, 1\)\)"),
    ("beyond", r"Wrong\.next in step 0 picked the entry \d+ at \(1, 0\), .* of transit 1 are"),
    ("before", r"Wrong\.next in step 0 picked the entry -\d+ at \(0, 0\), .*; -1 picks none"),
    ("transits", r"Wrong\.step_transits must return a vector of nodes that are in the sample"),
    ("list of transits", r"Wrong\.step_transits must return a NumPy array .*\(got a list\)"),
]


@pytest.mark.parametrize("mistake,message", MISTAKES)
def test_mistakes(mistake, message):
    """They are named with the class and the method, and later batches are not harmed."""
    data, seeds = twins.homogeneous(), torch.tensor([1, 2, 3, 4])
    with pytest.raises((TypeError, ValueError), match=message):
        next(iter(NeighborLoader(data, Wrong(mistake), seeds, batch_size=4)))


@pytest.mark.parametrize(
    "mistake,message",
    [
        ("alone", r"WrongValues\.next must return picks and their values.*\(got an array of shape"),
        ("integers", r"must return values as array of floats \(got .* dtype int64\)"),
        ("values' shape", r"values of the shape of picks, \(4, 2\) \(got \(2,\)\)"),
    ],
)
def test_mistakes_in_values(mistake, message):
    seeds = torch.tensor([1, 2, 3, 4])
    with pytest.raises((TypeError, ValueError), match=message):
        next(iter(NeighborLoader(twins.homogeneous(), WrongValues(mistake), seeds, batch_size=4)))


def test_attributes_that_are_wrong():
    for name, value, message in (
        ("sampling_type", "both", r"Odd\.sampling_type must be 'individual' or 'collective'"),
        ("edge_values", ("a", "b"), r"Odd may name one value of edges and none of nodes"),
        ("node_values", ("a",), r"Odd may name one value of edges and none of nodes"),
    ):
        odd = dataclass(frozen=True)(type("Odd", (Walks,), {name: value, "__module__": __name__}))
        with pytest.raises(ValueError, match=message):
            NeighborLoader(twins.homogeneous(), register(odd)(1), SEEDS)
    with pytest.raises(ValueError, match="Walks draws from graphs of one node and edge type"):
        NeighborLoader(twins.heterogeneous(), Walks(1), ("paper", SEEDS))
    with pytest.raises(ValueError, match="Walks makes no disjoint batches"):
        NeighborLoader(twins.homogeneous(), Walks(1), SEEDS, disjoint=True)


def test_collective_entries_may_be_of_any_row_but_of_a_row():
    class Beyond(LayerImportance):
        def next(self, transits, step):
            return np.full(self.size, len(transits.neighbors)), np.ones(self.size)

    method = register(dataclass(frozen=True)(Beyond))(3)
    with pytest.raises(ValueError, match=r"Beyond\.next in step 0 picked .* entries of all rows"):
        next(iter(NeighborLoader(twins.homogeneous(), method, SEEDS, batch_size=4)))


def test_names_and_collisions():
    assert TopDegree.name == "support.users_methods.TopDegree"
    assert TopDegree(3).spec().name == TopDegree.name
    old = METHODS[TopDegree.name]
    try:
        again = importlib.reload(users_methods)  # the same class, defined anew, takes its place
        assert METHODS[TopDegree.name] is again.TopDegree is not old
        with pytest.raises(TypeError, match="TopDegree is not registered"):
            TopDegree(3).spec()
    finally:
        for kind in (*ORACLES, Wrong, WrongValues, Raises):
            register(kind)
            setattr(users_methods, kind.__name__, kind)
    for name in ("labor", TopDegree.name):
        other = dataclass(frozen=True)(type("Other", (Walks,), {"name": name}))
        with pytest.raises(ValueError, match=f"the sampling method '{name}' is .*another name"):
            register(other)
    assert METHODS[TopDegree.name] is TopDegree


def test_the_name_of_a_script_in_processes_that_it_spawns():
    for module in ("__main__", "__mp_main__"):
        kind = type("Own", (Walks,), {"__module__": module})
        assert register(dataclass(frozen=True)(kind)).name == "__main__.Own"


def test_classes_that_are_no_methods():
    class Bare(Walks):
        steps_more: int = 3

    with pytest.raises(TypeError, match=r"Bare is no dataclass of its own that is frozen"):
        register(Bare)
    with pytest.raises(TypeError, match=r"Bare is not registered: decorate the class"):
        Bare(3).spec()
    with pytest.raises(TypeError, match="ndarray does not travel"):
        TopDegree(np.ones(3)).spec()
    with pytest.raises(ProtocolError, match=r"fields of TopDegree: fanout must be an integer"):
        TopDegree(0).spec()


def test_states_tell_classes_and_fields_apart():
    data = twins.homogeneous()

    @register
    @dataclass(frozen=True)
    class Renamed(Walks):
        """As `Walks`."""

    state = NeighborLoader(data, Walks(3), SEEDS, seed=1).state_dict()
    NeighborLoader(data, Walks(3), SEEDS, seed=1).load_state_dict(state)
    for other in (Walks(4), Renamed(3), SaintWalks(3)):
        with pytest.raises(ValueError, match="other options of sampling"):
            NeighborLoader(data, other, SEEDS, seed=1).load_state_dict(state)


def test_modules_for_other_processes(monkeypatch, tmp_path):
    assert modules_of(Walks(3).spec()) == ["support.users_methods"]
    assert modules_of(SaintWalks(3).spec()) == []

    @register
    @dataclass(frozen=True)
    class Inside(Walks):
        """Of a function."""

    with pytest.raises(ValueError, match=r"class .*Inside is defined in no module: .* a \.py file"):
        modules_of(Inside(3).spec())
    monkeypatch.setattr(Walks, "__module__", "__main__")
    with pytest.raises(ValueError, match=r"Walks is defined in the script or notebook that runs"):
        modules_of(MethodSpec(Walks.name, program=Walks(3)))
    (tmp_path / "khop_test_own.py").write_text("import khop_test_missing\n")
    monkeypatch.syspath_prepend(tmp_path)
    for module, message in (
        ("json", "'json' registers no sampling method"),
        ("methods/mine.py", "is no name of a module"),
        ("khop_test_own", "cannot import 'khop_test_own': No module named 'khop_test_missing'"),
    ):
        with pytest.raises((ValueError, ImportError), match=message):
            import_methods([module])
    import_methods(["support.users_methods", "support"])
    assert "khop_test_own" not in sys.modules


def test_a_method_that_is_not_here():
    with pytest.raises(ValueError, match=r"no sampling method .*serve --methods"):
        MethodSpec("my.Own")
    with pytest.raises(ProtocolError, match=r"no sampling method"):
        codec.from_json(MethodSpec, {"name": "my.Own", "program": {}}, "a spec")


def test_samplers_have_the_method_too():
    sampler = NeighborSampler(twins.homogeneous(), Shared(2))
    assert sampler.num_neighbors == [2]


def test_transits():
    """Rows, words and picks of two nodes, one of which is there twice."""
    sample = Sample(np.array([4, 8]), np.array([4, 8]), key=lambda purpose, step, index: purpose)
    rows = Transits.of(
        np.array([4, 8, 4]), np.array([2, 0, 2]), np.array([5, 6, 5, 6]), sample=sample
    )
    assert rows.begins.tolist() == [0, 2, 2]
    assert rows.rows.tolist() == [0, 0, 2, 2]
    words = rows.words(1)[:, 0]
    assert len(set(words.tolist())) == 3
    assert words[0] == users_methods.word_of(users_methods.OF_TRANSITS, 4)
    assert words[2] == users_methods.word_of(users_methods.OF_TRANSITS + 1, 4)
    assert (rows.uniform(5)[1] == -1).all()
    assert rows.smallest(np.array([2, 1, 0, 0]), 1).tolist() == [[1], [-1], [2]]
    assert issubclass(TopDegree, StepMethod)


def test_neighbours_by_number():
    rows = Transits.of(np.array([4, 8, 9]), np.array([2, 0, 3]), np.array([7, 5, 5, 7, 2]))
    assert rows.nodes.tolist() == [7, 5, 2]
    assert rows.node.tolist() == [0, 1, 1, 0, 2]
    strided = np.array([7, 0, 5, 0], np.int32)[::2]
    assert Transits.of(np.array([4]), np.array([2]), strided).nodes.tolist() == [7, 5]


@pytest.mark.parametrize(
    "dtype", ["f2", "f4", "f8", "g", "i1", "i8", "u1", "u8", "?", "U3", "M8[s]"]
)
def test_smallest_of_all_dtypes(dtype):
    """Of equal values the first entry is first, of whatever dtype."""
    rng = np.random.default_rng(0)
    counts = np.array([7, 0, 1, 12])
    values = rng.integers(0, 5, counts.sum()).astype(dtype)
    rows = Transits.of(np.arange(4), counts, np.arange(counts.sum()))
    found = rows.smallest(values, 3)
    begins = np.cumsum(counts) - counts
    for row, begin, count in zip(found, begins, counts, strict=True):
        order = begin + np.argsort(values[begin : begin + count], kind="stable")
        assert row.tolist() == [*order[:3].tolist(), -1, -1, -1][:3]


def test_values_of_another_length():
    rows = Transits.of(np.arange(2), np.array([2, 1]), np.arange(3))
    with pytest.raises(ValueError, match="values must hold 3 entries"):
        rows.smallest(np.arange(4), 1)
