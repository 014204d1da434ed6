"""`PartitionSampler` draws what `khop.sampler.NeighborSampler` draws, whatever the options."""

import itertools

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import LinkNeighborLoader as PygLinkNeighborLoader
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput

from khop.distributed import DistDataset, PartitionSampler
from khop.loader import LinkNeighborLoader
from khop.partition import RandomPartitioner
from khop.sampler import NeighborSampler

NUM_NODES = 120


@pytest.fixture(scope="module")
def graph():
    generator = torch.Generator().manual_seed(3)
    ids = torch.arange(NUM_NODES)
    return Data(
        x=ids.float().view(-1, 1),
        edge_index=torch.randint(0, NUM_NODES - 5, (2, 900), generator=generator),
        edge_attr=torch.arange(900).view(-1, 1),
        weight=torch.randint(0, 4, (900,), generator=generator).float(),
        time=torch.randint(0, 20, (NUM_NODES,), generator=generator),
    )


@pytest.fixture(scope="module")
def dataset_of(graph, tmp_path_factory):
    """A dataset in three parts, with times and weights or without: cut when first asked for."""
    made = {}

    def make(**attrs):
        key = tuple(sorted(attrs.items()))
        if key not in made:
            root = tmp_path_factory.mktemp("parts") / "folder"
            RandomPartitioner.from_data(graph, root, 3, **attrs).partition()
            made[key] = root
        return DistDataset().load(made[key], 0, also_serve=[1, 2])

    return make


def same_output(ours, theirs):
    for name in ("node", "row", "col", "edge", "batch"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert (mine is None) == (other is None), name
        assert mine is None or torch.equal(mine, other), name
    assert ours.num_sampled_nodes == theirs.num_sampled_nodes
    assert ours.num_sampled_edges == theirs.num_sampled_edges
    return True


# What a folder was partitioned with -> options of loaders over it.
OPTIONS = {
    (): [
        {"replace": True},
        {"disjoint": True},
        {"subgraph_type": "induced"},
        {"subgraph_type": "bidirectional"},
    ],
    ("weight_attr",): [{}, {"replace": True}],
    ("time_attr",): [{}, {"temporal_strategy": "last"}, {"subgraph_type": "induced"}],
    ("time_attr", "weight_attr"): [{}],
}


@pytest.mark.parametrize("drawn_by", OPTIONS, ids=lambda names: "-".join(names) or "plain")
def test_nodes(graph, dataset_of, drawn_by):
    attrs = {name: name.removesuffix("_attr") for name in drawn_by}
    dataset = dataset_of(**attrs)
    for options in OPTIONS[drawn_by]:
        ours = PartitionSampler(dataset, [4, 3], seed=5, **attrs, **options)
        theirs = NeighborSampler(graph, [4, 3], seed=5, **attrs, **options)
        generator = torch.Generator().manual_seed(0)
        times = torch.arange(15) if "time_attr" in attrs else None
        for time in (None, times):
            seeds = torch.randint(0, NUM_NODES, (15,), generator=generator)
            index = NodeSamplerInput(None, seeds, time=time)
            assert same_output(ours.sample_from_nodes(index), theirs.sample_from_nodes(index))


def test_links(graph, dataset_of):
    ours = PartitionSampler(dataset_of(), [4, 3], seed=5)
    theirs = NeighborSampler(graph, [4, 3], seed=5)
    weighted = NegativeSampling("triplet", 2, dst_weight=torch.arange(NUM_NODES).float())
    choices = itertools.product(
        (None, NegativeSampling("binary", 2), weighted), (False, True), (False, "reverse")
    )
    for first, (negatives, strict, exclude) in enumerate(choices):
        if strict and negatives is None:
            continue
        row, col = graph.edge_index[:, 10 * first : 10 * first + 10]
        index = EdgeSamplerInput(torch.arange(10), row, col)
        options = {"strict_negatives": strict, "exclude_seed_edges": exclude}
        mine = ours.sample_from_edges(index, negatives, **options)
        other = theirs.sample_from_edges(index, negatives, **options)
        assert same_output(mine, other)
        for a, b in zip(mine.metadata, other.metadata, strict=True):
            assert (a is None and b is None) or torch.equal(a, b)


def test_temporal_links(graph, dataset_of):
    ours = PartitionSampler(dataset_of(time_attr="time"), [4, 3], seed=5, time_attr="time")
    theirs = NeighborSampler(graph, [4, 3], seed=5, time_attr="time")
    row, col = graph.edge_index[:, :10]
    index = EdgeSamplerInput(None, row, col, time=torch.arange(10))
    for negatives in (None, NegativeSampling("triplet", 1)):
        mine = ours.sample_from_edges(index, negatives)
        assert same_output(mine, theirs.sample_from_edges(index, negatives))


def test_link_loaders(graph, dataset_of):
    """PyG's link loader over the stores: batches of khop's over the graph, edge attributes too."""
    dataset = dataset_of()
    links = graph.edge_index[:, :50]
    common = {"batch_size": 20, "neg_sampling": NegativeSampling("binary", 1)}
    ours = PygLinkNeighborLoader(
        (dataset, dataset),
        [4, 3],
        (None, links),
        neighbor_sampler=PartitionSampler(dataset, [4, 3], seed=5),
        **common,
    )
    sampler = NeighborSampler(graph, [4, 3], seed=5)
    theirs = PygLinkNeighborLoader(graph, [4, 3], links, neighbor_sampler=sampler, **common)
    names = ("n_id", "e_id", "edge_index", "x", "edge_attr", "edge_label_index", "edge_label")
    for mine, other in zip(ours, theirs, strict=True):
        for name in names:
            assert torch.equal(mine[name], other[name]), name
    khops = LinkNeighborLoader(
        (dataset, dataset),
        [4, 3],
        (None, links),
        neighbor_sampler=PartitionSampler(dataset, [4, 3]),
        seed=9,
        strict_negatives=True,
        **common,
    )
    whole = LinkNeighborLoader(graph, [4, 3], links, seed=9, strict_negatives=True, **common)
    for mine, other in zip(khops, whole, strict=True):
        for name in names:
            assert torch.equal(mine[name], other[name]), name
