"""A DistDataset as PyG's FeatureStore and GraphStore, and PyG's own loaders over it."""

import copy
import functools
import pickle
import shutil
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NeighborLoader as PygNeighborLoader, NodeLoader
from torch_geometric.sampler import EdgeSamplerInput, NodeSamplerInput, SamplerOutput

from khop.data.waiter import Waiter
from khop.distributed import DistDataset, PartitionSampler
from khop.distributed.rpc.partition_client import PartitionClient
from khop.loader import NeighborLoader
from khop.partition import RandomPartitioner
from khop.sampler import NeighborSampler
from support.cluster import jobs
from support.reference import oracle

EDGES = (None, None)
NODE_ATTRS = ("x", "half", "brain", "y", "train_mask")


def open_dataset(root, num_parts):
    """A dataset whose one trainer serves all parts."""
    return DistDataset().load(root, 0, also_serve=range(1, num_parts))


@pytest.fixture
def num_parts():
    """Number of parts; tests may ask for others."""
    return 3


@pytest.fixture
def dataset(folder_of, num_parts):
    """The homogeneous graph in so many parts, some rows of which are copied."""
    return open_dataset(folder_of("frequency", num_parts), num_parts)


@pytest.fixture(scope="module")
def typed():
    """Type 'venue' has no attributes; 'cites' has none, 'never' no edges; others have ids."""
    generator = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["paper"].x = torch.arange(150).float().view(-1, 1).repeat(1, 3)
    data["paper"].y = torch.arange(150)
    data["author"].x = torch.arange(90).to(torch.float16)
    data["venue"].num_nodes = 7
    sizes = {"paper": 150, "author": 90, "venue": 7}
    for src, relation, dst, count in (
        ("author", "writes", "paper", 500),
        ("paper", "rev_writes", "author", 400),
        ("paper", "cites", "paper", 300),
        ("venue", "prints", "paper", 100),
        ("paper", "never", "venue", 0),
    ):
        store = data[src, relation, dst]
        ends = [torch.randint(sizes[t] - 3, (count,), generator=generator) for t in (src, dst)]
        store.edge_index = torch.stack(ends)
        if relation != "cites":
            store.edge_attr = torch.arange(count).view(-1, 1)
            store.half = torch.arange(count).to(torch.bfloat16)
    return data


@pytest.fixture(scope="module")
def typed_folder_of(typed, tmp_path_factory):
    """Returns typed_folder_of(num_parts): the root of a partitioning of the heterogeneous graph."""
    base = tmp_path_factory.mktemp("typed")

    @functools.cache
    def typed_folder_of(num_parts):
        RandomPartitioner.from_data(typed, base / str(num_parts), num_parts).partition()
        return base / str(num_parts)

    return typed_folder_of


@pytest.fixture
def typed_dataset(typed_folder_of, num_parts):
    """The heterogeneous graph in so many parts."""
    return open_dataset(typed_folder_of(num_parts), num_parts)


def same_hetero(ours, theirs):
    """Equal nodes, edges and attributes of all types; edge stores hold nothing else."""
    for t in theirs.node_types:
        for name in set(theirs[t].keys()) - {"num_nodes"}:
            equal_values(ours[t][name], theirs[t][name], (t, name))
    assert set(ours.edge_types) == set(theirs.edge_types)
    for t in theirs.edge_types:
        assert set(ours[t].keys()) == set(theirs[t].keys())
        for name in theirs[t].keys():  # noqa: SIM118
            equal_values(ours[t][name], theirs[t][name], (t, name))
    return True


def equal_values(ours, theirs, what):
    if isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs), what
    else:
        assert ours == theirs, what


# PyG's own loaders ------------------------------------------------------------------------------


@pytest.mark.parametrize("num_parts,workers", [
    (1, [(0, True)]),
    (2, [(2, True)]),
    (3, [(0, True), (1, True), (2, False)]),
])  # fmt: skip
def test_node_loader(graph, dataset, workers):
    """Batches of PyG's NodeLoader: those of the graph in memory, edge attributes included."""
    for num_workers, filter_per_worker in workers:
        common = {"batch_size": 60, "num_workers": num_workers}
        ours = NodeLoader(
            (dataset, dataset),
            PartitionSampler(dataset, jobs.FANOUTS, seed=1),
            jobs.seeds_of_rank(0),
            filter_per_worker=filter_per_worker,
            **common,
        )
        sampler = NeighborSampler(graph, jobs.FANOUTS, seed=1)
        reference = NodeLoader(graph, sampler, jobs.seeds_of_rank(0), **common)
        assert jobs.same_batches(ours, reference) == len(reference)
    assert not dataset.reader._positions  # no table of all edges was needed


@pytest.mark.parametrize("num_parts", [1, 3])
def test_node_loader_of_types(typed, typed_dataset):
    """The same of a heterogeneous graph."""
    fanouts = {t: [3, i % 3 - 1] for i, t in enumerate(typed.edge_types)}
    for num_workers, filter_per_worker, seed_type in ((0, True, "venue"), (2, False, "paper")):
        seeds = (seed_type, torch.tensor([1, 0, 1, 6, 4, 2]))
        common = {"batch_size": 4, "input_nodes": seeds, "num_workers": num_workers}
        ours = NodeLoader(
            (typed_dataset, typed_dataset),
            PartitionSampler(typed_dataset, fanouts, seed=1),
            filter_per_worker=filter_per_worker,
            **common,
        )
        reference = NodeLoader(typed, NeighborSampler(typed, fanouts, seed=1), **common)
        for a, b in zip(ours, reference, strict=True):
            assert same_hetero(a, b)
    assert not typed_dataset.reader._positions


def test_spawned_workers(graph, folder_of):
    """Dataset and sampler pickle; a worker connects for itself."""
    dataset = open_dataset(folder_of("random", 2), 2)
    common = {"batch_size": 100, "num_workers": 1, "input_nodes": torch.arange(200)}
    ours = NodeLoader(
        (dataset, dataset),
        PartitionSampler(dataset, [3], seed=1),
        multiprocessing_context="spawn",
        **common,
    )
    reference = NodeLoader(graph, NeighborSampler(graph, [3], seed=1), **common)
    assert jobs.same_batches(ours, reference) == 2


def test_neighbor_loader_and_all_nodes_of_a_type(typed, typed_dataset):
    """PyG's NeighborLoader takes the sampler, and a node type as seeds."""
    sampler = PartitionSampler(typed_dataset, [2, 2], seed=4)
    ours = PygNeighborLoader(
        (typed_dataset, typed_dataset), [2, 2], "author", batch_size=40, neighbor_sampler=sampler
    )
    reference = PygNeighborLoader(
        typed, [2, 2], "author", batch_size=40,
        neighbor_sampler=NeighborSampler(typed, [2, 2], seed=4),
    )  # fmt: skip
    assert len(ours) == 3
    assert all(same_hetero(a, b) for a, b in zip(ours, reference, strict=True))


def bidirectional(out):
    """Another output with each edge in both directions."""
    return out.to_bidirectional()


def first_edges(out):
    """The output itself, with fewer edges."""
    if isinstance(out, SamplerOutput):
        out.row, out.col, out.edge = out.row[:3], out.col[:3], out.edge[:3]
    else:
        for t in out.edge:
            out.row[t], out.col[t], out.edge[t] = out.row[t][:3], out.col[t][:3], out.edge[t][:3]
    return out


def backwards(out):
    """A copy with its edges in another order."""
    out = copy.copy(out)
    out.row, out.col, out.edge = out.row.flip(0), out.col.flip(0), out.edge.flip(0)
    return out


def beside_a_copy(out, kept=[]):  # noqa: B006
    """The output itself, of which a copy with other edges lives on."""
    kept.append(backwards(out))
    return out


def test_changed_outputs(graph, dataset):
    """Edge attributes follow what a `transform_sampler_output` makes of the edges."""
    for change in (lambda out: out, bidirectional, first_edges, backwards, beside_a_copy):
        loader = NodeLoader(
            (dataset, dataset),
            PartitionSampler(dataset, [3, 2], seed=1),
            torch.arange(40),
            batch_size=20,
            transform_sampler_output=change,
        )
        for batch in loader:
            assert torch.equal(batch.edge_attr, graph.edge_attr[batch.e_id])
            assert batch.num_edges == len(batch.edge_attr) > 0


def test_changed_outputs_of_types(typed, typed_dataset):
    loader = NodeLoader(
        (typed_dataset, typed_dataset),
        PartitionSampler(typed_dataset, [3, 2], seed=1),
        "venue",
        batch_size=7,
        transform_sampler_output=first_edges,
    )
    (batch,) = loader
    for t in typed.edge_types:
        assert batch[t].e_id.numel() <= 3
        if "edge_attr" in typed[t]:
            assert torch.equal(batch[t].edge_attr, typed[t].edge_attr[batch[t].e_id])


def test_other_samplers_get_no_wrong_edge_attributes(graph, dataset):
    """PyG asks by node id: without a PartitionSampler edge attributes are left out, and it says so.

    The sampler draws from the graph that the dataset, as a graph store, puts together.
    """
    sampler = NeighborSampler((dataset, dataset), [3, 2], seed=1)
    common = {"input_nodes": torch.arange(100), "batch_size": 50}
    ours = NodeLoader((dataset, dataset), sampler, **common)
    reference = NodeLoader(graph, NeighborSampler(graph, [3, 2], seed=1), **common)
    with pytest.warns(UserWarning, match="'edge_attr' is left out.*index=batch.e_id"):
        batches = list(ours)
    for a, b in zip(batches, reference, strict=True):
        assert "edge_attr" not in a
        for name in (*NODE_ATTRS, "n_id", "e_id", "edge_index"):
            assert torch.equal(a[name], b[name])
        assert torch.equal(dataset.get_tensor(EDGES, "edge_attr", a.e_id), b.edge_attr)


def test_altered_edge_ids_are_looked_up_like_any_others(typed, typed_dataset):
    """Sampled edge ids as rows of another type, or changed in place, are ids like any others."""
    sampler = PartitionSampler(typed_dataset, [5], seed=1)
    seeds = NodeSamplerInput(None, torch.arange(50), input_type="paper")
    out = sampler.sample_from_nodes(seeds)
    prints, writes = ("venue", "prints", "paper"), ("author", "writes", "paper")
    ids = out.edge[prints]
    assert len(ids) > 10
    for edge_type in (prints, writes):
        values = typed_dataset.get_tensor(edge_type, "edge_attr", ids)
        assert torch.equal(values, typed[edge_type].edge_attr[ids])
    ids += 1 - 2 * (ids == 99).long()
    values = typed_dataset.get_tensor(prints, "edge_attr", ids)
    assert torch.equal(values, typed[prints].edge_attr[ids])


def test_without_edges(dataset):
    """with_edge=False: no e_id, no edge attributes."""
    sampler = PartitionSampler(dataset, [3], with_edge=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = next(iter(NodeLoader((dataset, dataset), sampler, torch.arange(5))))
    assert "e_id" not in batch and "edge_attr" not in batch and "x" in batch


def test_batches_pickle_and_copy(dataset):
    """Nothing of the sampler clings to a batch."""
    loader = NodeLoader((dataset, dataset), PartitionSampler(dataset, [3]), torch.arange(5))
    batch = next(iter(loader))
    assert b"khop" not in pickle.dumps(batch)
    assert torch.equal(copy.deepcopy(batch).e_id, batch.e_id)


def test_pygs_own_sampler(graph, dataset):
    """PyG samples from the graph store itself where its kernels are installed."""
    pytest.importorskip("torch_sparse")
    stores, seeds = (dataset, dataset), torch.arange(60)
    ours = NodeLoader(stores, PartitionSampler(dataset, [-1, -1]), seeds, batch_size=30)
    with pytest.warns(UserWarning, match="left out"):
        theirs = list(PygNeighborLoader(stores, [-1, -1], seeds, batch_size=30))
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a.e_id.sort()[0], b.e_id.sort()[0])
        assert torch.equal(b.x, graph.x[b.n_id]) and "edge_attr" not in b


# khop's own loader ------------------------------------------------------------------------------


@pytest.mark.parametrize("num_parts", [1, 3])
def test_in_memory_loader_over_the_stores(graph, dataset):
    """As any other pair of stores; with a PartitionSampler nothing is put together in memory."""
    options = {"input_nodes": graph.train_mask, "batch_size": 50, "seed": 2, "shuffle": True}
    reference = NeighborLoader(graph, [3, 2], **options)
    whole = NeighborLoader((dataset, dataset), [3, 2], **options)
    assert jobs.same_batches(whole, reference) == len(reference)
    sampler = PartitionSampler(dataset, [3, 2])
    for workers in ({}, {"num_workers": 2}):
        drawn = NeighborLoader(dataset, [3, 2], neighbor_sampler=sampler, **options, **workers)
        reference = NeighborLoader(graph, [3, 2], **options)
        assert jobs.same_batches(drawn, reference) == len(reference)


def test_in_memory_loader_over_the_stores_of_types(typed, typed_dataset):
    options = {"input_nodes": "paper", "batch_size": 50, "seed": 2}
    sampler = PartitionSampler(typed_dataset, [3, 2])
    for own in (None, sampler):
        reference = NeighborLoader(typed, [3, 2], **options)
        ours = NeighborLoader(typed_dataset, [3, 2], neighbor_sampler=own, **options)
        assert all(same_hetero(a, b) for a, b in zip(ours, reference, strict=True))


# Feature store ----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_parts", [1, 3])
def test_lists(graph, dataset, typed_dataset):
    """What there is, with sizes."""
    listed = {(a.group_name, a.attr_name) for a in dataset.get_all_tensor_attrs()}
    assert listed == {*((None, name) for name in NODE_ATTRS), (EDGES, "edge_attr")}
    for attr in dataset.get_all_tensor_attrs():
        assert dataset.get_tensor_size(attr) == tuple(graph[attr.attr_name].shape)
    assert dataset.get_tensor_size(None, "z") is None
    (edges,) = dataset.get_all_edge_attrs()
    assert (edges.edge_type, edges.layout.value, edges.size) == (None, "coo", (500, 500))
    listed = [(a.group_name, a.attr_name) for a in typed_dataset.get_all_tensor_attrs()]
    assert listed[:3] == [("paper", "x"), ("paper", "y"), ("author", "x")]
    assert (("author", "writes", "paper"), "half") in listed and len(listed) == 3 + 4 * 2
    sizes = {a.edge_type[1]: a.size for a in typed_dataset.get_all_edge_attrs()}
    assert sizes["writes"] == (90, 150) and sizes["never"] == (150, 7)


INDICES = [
    slice(None),
    slice(400, 10, -7),
    torch.tensor([499, 0, 3, 3, 250]),
    torch.tensor([5], dtype=torch.int32),
    torch.tensor([], dtype=torch.int64),
    np.array([499]),
    [7, 8],
    range(3, 9),
    17,
]


@pytest.mark.parametrize("num_parts", [1, 3])
def test_rows(graph, dataset):
    """Any index selects what it selects of the whole tensor."""
    for group, name in [(None, n) for n in NODE_ATTRS] + [(EDGES, "edge_attr")]:
        whole = dataset.get_tensor(group_name=group, attr_name=name, index=None)
        assert whole.dtype == graph[name].dtype and torch.equal(whole, graph[name])
        for index in INDICES:
            plain = index if isinstance(index, (slice, int)) else np.asarray(index)
            want = graph[name][torch.from_numpy(np.array(np.arange(len(whole))[plain]))]
            got = dataset.get_tensor(group_name=group, attr_name=name, index=index)
            assert got.dtype == want.dtype and torch.equal(got, want), (name, index)
    edges = dataset.get_tensor(("node", "to", "node"), "edge_attr", torch.tensor([2999, 0]))
    assert edges.tolist() == [[2999.0], [0.0]]


def test_attributes_without_columns(tmp_path):
    """They take no bytes, also where another part has the rows."""
    edges = torch.randint(40, (2, 100), generator=torch.Generator().manual_seed(0))
    data = Data(edge_index=edges, x=torch.empty(40, 0), y=torch.arange(40))
    RandomPartitioner.from_data(data, tmp_path / "parts", 2).partition()
    dataset = open_dataset(tmp_path / "parts", 2)
    assert dataset.get_tensor(None, "x", torch.arange(40)).shape == (40, 0)
    batch = next(iter(NeighborLoader((dataset, dataset), [3], torch.arange(8), batch_size=8)))
    assert batch.x.shape == (batch.num_nodes, 0) and torch.equal(batch.y, batch.n_id)


def test_masks_and_views(graph, dataset, typed, typed_dataset):
    """Boolean masks; PyG's attribute views."""
    assert torch.equal(dataset[None, "x", graph.train_mask], graph.x[graph.train_mask])
    mask = graph.edge_attr.view(-1) % 7 == 0
    assert torch.equal(dataset[EDGES, "edge_attr", mask], graph.edge_attr[mask])
    ids = torch.tensor([8, 1])
    assert torch.equal(typed_dataset["paper"].x[ids], typed["paper"].x[ids])
    writes = ("author", "writes", "paper")
    assert torch.equal(typed_dataset[(writes, "half", ids)], typed[writes].half[ids])
    assert torch.equal(typed_dataset["paper", "y"](), typed["paper"].y)
    array = typed_dataset.get_tensor("author", "x", np.array([3]), convert_type=True)
    assert isinstance(array, np.ndarray) and array.tolist() == [3.0]


@settings(max_examples=20)
@given(picks=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 89)), max_size=30))
def test_multi_get_tensor_takes_different_indices(typed, picks, typed_folder_of):
    """multi_get_tensor over types with different indices, with repeats."""
    dataset = open_dataset(typed_folder_of(1), 1)
    attrs = [("paper", "x"), ("author", "x"), (("author", "writes", "paper"), "edge_attr")]
    asked = [[i for which, i in picks if which == n] for n in range(3)]
    values = dataset.multi_get_tensor(
        [
            (*attr, torch.tensor(ids, dtype=torch.int64))
            for attr, ids in zip(attrs, asked, strict=True)
        ]
    )
    for (group, name), ids, value in zip(attrs, asked, values, strict=True):
        assert torch.equal(value, typed[group][name][ids])


def test_requests_go_out_together(folder_of, monkeypatch):
    """One request for each type and owner, whatever the number of attributes; no wait between."""
    dataset = open_dataset(folder_of("random", 3), 3)
    sent, sent_before_waits = [], []
    fetch, wait = PartitionClient.fetch, Waiter.wait

    def fetch_and_note(self, part, kind, index, ids, names):
        sent.append((part, kind, sorted(names)))
        return fetch(self, part, kind, index, ids, names)

    def wait_and_note(self, *arguments):
        sent_before_waits.append(len(sent))
        return wait(self, *arguments)

    loader = NodeLoader((dataset, dataset), PartitionSampler(dataset, [4]), torch.arange(100),
                        batch_size=100)  # fmt: skip
    out = loader.node_sampler.sample_from_nodes(loader.input_data[torch.arange(100)])
    monkeypatch.setattr(PartitionClient, "fetch", fetch_and_note)
    monkeypatch.setattr(Waiter, "wait", wait_and_note)
    loader.filter_fn(out)
    wanted = [("node", sorted(NODE_ATTRS)), ("edge", ["edge_attr"])]
    assert sorted(sent) == sorted((part, *what) for part in (1, 2) for what in wanted)
    assert set(sent_before_waits) == {4}


def test_labels_from_a_file(folder_of, graph, tmp_path):
    """Labels that the folder does not hold are an attribute like others."""
    np.save(tmp_path / "label.npy", (graph.y * 2).numpy())
    dataset = DistDataset().load(
        folder_of("random", 1), whole_node_label_file=tmp_path / "label.npy"
    )
    assert [a.attr_name for a in dataset.get_all_tensor_attrs()].count("y") == 1
    assert dataset.get_tensor_size(None, "y") == (500,)
    for index in (None, torch.tensor([4, 1])):
        want = graph.y * 2 if index is None else graph.y[index] * 2
        assert torch.equal(dataset.get_tensor(None, "y", index), want)


def test_read_only_and_errors(dataset, typed_dataset):
    """Nothing can be put or removed; what does not exist is named."""
    edge_attr = dataset.get_all_edge_attrs()[0]
    for attempt in (
        lambda: dataset.put_tensor(torch.zeros(500), None, "z", None),
        lambda: dataset.remove_tensor(None, "x", None),
        lambda: dataset.put_edge_index((torch.tensor([0]), torch.tensor([0])), edge_attr),
        lambda: dataset.remove_edge_index(edge_attr),
        lambda: dataset.csc(store=True),
    ):
        with pytest.raises(RuntimeError, match="read-only: partition the graph again"):
            attempt()
    with pytest.raises(KeyError, match=r"no attribute 'z' of group None: there are .*'x'"):
        dataset.get_tensor(None, "z", None)
    with pytest.raises(KeyError, match="no attribute 'x' of group 'venue'"):
        typed_dataset.get_tensor("venue", "x", None)
    with pytest.raises(IndexError, match="index holds id 500"):
        dataset.get_tensor(None, "x", torch.tensor([3, 500]))
    with pytest.raises(IndexError, match="index holds id -1"):
        dataset.get_tensor(EDGES, "edge_attr", -1)
    with pytest.raises(ValueError, match="mask of shape"):
        dataset.get_tensor(None, "x", torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match="no edge type"):
        typed_dataset.coo([("a", "to", "b")])
    with pytest.raises(KeyError, match="not found"):
        dataset.get_edge_index(None, "csc")
    assert dataset != typed_dataset and len({dataset, typed_dataset, dataset}) == 2


# Graph store ------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_parts", [1, 3])
def test_edges(graph, dataset, typed, typed_dataset):
    """The edge list in its own order; compressed, with the original ids of the entries."""
    assert torch.equal(torch.stack(dataset.get_edge_index(None, "coo")), graph.edge_index)
    check_layouts(graph.edge_index, (500, 500), dataset.coo(), dataset.csr(), dataset.csc())
    every = typed_dataset.coo(), typed_dataset.csr(), typed_dataset.csc()
    for t in typed.edge_types:
        sizes = typed[t[0]].num_nodes, typed[t[2]].num_nodes
        layouts = [[arrays[t] for arrays in layout] for layout in every]
        check_layouts(typed[t].edge_index, sizes, *layouts)


def check_layouts(edge_index, sizes, coo, csr, csc):
    """All layouts against NumPy's stable sort."""
    src, dst = edge_index
    assert torch.equal(coo[0], src) and torch.equal(coo[1], dst) and coo[2] is None
    for (row, col, ids), want in (
        (csr, oracle.csr(src, dst, sizes[0])),
        ((csc[1], csc[0], csc[2]), oracle.csr(dst, src, sizes[1])),
    ):
        for got, expected in zip((row, col, ids), want, strict=True):
            assert torch.equal(got, torch.from_numpy(np.asarray(expected)))


def test_folders_by_source(graph, folder_of, num_parts):
    """Edges keep their direction; draws follow them along, as those of the reversed graph."""
    dataset = open_dataset(folder_of("random", num_parts, "by_src"), num_parts)
    assert torch.equal(torch.stack(dataset.get_edge_index(None, "coo")), graph.edge_index)
    flipped = graph.clone()
    flipped.edge_index = graph.edge_index.flip(0)
    common = {"batch_size": 32, "input_nodes": jobs.seeds_of_rank(0)}
    ours = NodeLoader((dataset, dataset), PartitionSampler(dataset, [3, 2], seed=1), **common)
    reference = NodeLoader(flipped, NeighborSampler(flipped, [3, 2], seed=1), **common)
    assert jobs.same_batches(ours, reference) == len(reference)


# Sampler ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_parts", [1, 3])
def test_sampler(graph, dataset):
    """Seeds, streams, fan-outs that are set later, copies."""
    seeds = NodeSamplerInput(None, torch.tensor([5, 3, 5, 0]))
    ours, reference = (
        PartitionSampler(dataset, [3], seed=4, stream=2, replace=True),
        NeighborSampler(graph, [3], seed=4, stream=2, replace=True),
    )
    ours.num_neighbors = reference.num_neighbors = [2, -1]
    assert ours.num_neighbors == [2, -1]
    same_output(ours.sample_from_nodes(seeds), reference.sample_from_nodes(seeds))
    copied = pickle.loads(pickle.dumps(ours))
    first = NeighborSampler(graph, [2, -1], seed=4, stream=2, replace=True)
    same_output(copied.sample_from_nodes(seeds), first.sample_from_nodes(seeds))
    same_output(ours.sample_from_nodes(seeds), reference.sample_from_nodes(seeds))
    free = PartitionSampler(dataset, [2])
    torch.manual_seed(3)
    once = free.sample_from_nodes(seeds)
    torch.manual_seed(3)
    same_output(free.sample_from_nodes(seeds), once)


def same_output(ours, theirs):
    for name in ("node", "row", "col", "edge"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name))
    assert ours.num_sampled_nodes == theirs.num_sampled_nodes
    assert ours.num_sampled_edges == theirs.num_sampled_edges


def test_bad_samplers(dataset, typed_dataset):
    """Errors that name what was given."""
    with pytest.raises(TypeError, match="must be a DistDataset"):
        PartitionSampler((dataset, dataset), [2])
    with pytest.raises(ValueError, match="num_neighbors"):
        PartitionSampler(dataset, [-2])
    sampler = PartitionSampler(dataset, [2])
    with pytest.raises(IndexError, match="seeds holds id 500"):
        sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([500])))
    edge = torch.tensor([0])
    with pytest.raises(IndexError, match="sources of links holds id 500"):
        sampler.sample_from_edges(EdgeSamplerInput(None, edge + 500, edge))
    with pytest.raises(ValueError, match="'input_time' is set, 'time_attr' is not set"):
        sampler.sample_from_nodes(NodeSamplerInput(None, edge, time=edge))
    with pytest.raises(ValueError, match="partition again with time_attr='time'"):
        PartitionSampler(dataset, [2], time_attr="time")
    with pytest.raises(ValueError, match=r"need a node type .* \(got None\)"):
        PartitionSampler(typed_dataset, [2]).sample_from_nodes(NodeSamplerInput(None, edge))


# Several trainers -------------------------------------------------------------------------------


def test_trainers_with_their_own_parts_alone(folder_of, tmp_path):
    """No machine has another's files: rows, whole attributes and edges come over the network."""
    num_parts = 2
    whole, roots = folder_of("frequency", num_parts), []
    for rank in range(num_parts):
        roots.append(str(tmp_path / f"machine-{rank}"))
        others = [f"part-{p}" for p in range(num_parts) if p != rank]
        shutil.copytree(whole, roots[-1], ignore=shutil.ignore_patterns(*others))
    arguments = {"roots": roots, "homes": list(range(num_parts))}
    started = jobs.start_trainers("stores", arguments, num_parts)
    results = jobs.finish_trainers(started, silent=True)
    assert results == [{"batches": 5}] * num_parts
