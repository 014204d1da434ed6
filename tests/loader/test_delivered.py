"""What methods deliver beside nodes and edges: every method, in every way of making batches."""

import dataclasses

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import LinkNeighborLoader as PygLinkNeighborLoader, NodeLoader
from torch_geometric.sampler import NodeSamplerInput
from torch_geometric.testing import MyGraphStore

from khop.loader import LinkNeighborLoader, NeighborLoader
from khop.sampler import NeighborSampler, PoissonLadies
from khop.sampler.methods import METHODS as REGISTERED, as_method
from support.cluster import twins
from support.delivered import METHODS, check_same
from support.loaders.stores import RowStore
from support.programs import Smallest

SEEDS = torch.tensor([3, 77, 12, 149, 40])
OPTIONS = {"batch_size": 2, "seed": 7}
ALL = pytest.mark.parametrize("name", METHODS)


@pytest.fixture(scope="module")
def data():
    """150 nodes without weights of their own, whose name methods use."""
    full = twins.homogeneous()
    return Data(edge_index=full.edge_index, num_nodes=150, x=full.x)


def same(out):
    return out


def copied(out):
    return dataclasses.replace(out)


class AsInPyg(NeighborLoader):
    """The two steps of PyG's loader, written out."""

    def collate_fn(self, index):
        out = self.node_sampler.sample_from_nodes(self.input_data[index])
        return self.filter_fn(out) if self.filter_per_worker else out

    def filter_fn(self, out):
        return super().filter_fn(out)


IN_THREADS = {
    "threads": {"num_workers": 2},
    "joined here": {"num_workers": 2, "filter_per_worker": False},
    "hook": {"transform_sampler_output": same},
    "hook that copies": {"transform_sampler_output": copied, "num_workers": 1},
}


def test_no_method_is_left_out():
    own = {name for name, kind in REGISTERED.items() if kind.__module__.startswith("khop.")}
    assert own == {as_method(method).spec().name for method, _ in METHODS.values()} & own


@ALL
def test_ways_in_this_process(data, name):
    method, names = METHODS[name]
    plain = list(NeighborLoader(data, method, SEEDS, **OPTIONS))
    check_same(plain, plain, names)
    for way in IN_THREADS.values():
        check_same(NeighborLoader(data, method, SEEDS, **way, **OPTIONS), plain, names)
    check_same(AsInPyg(data, method, SEEDS, **OPTIONS), plain, names)
    check_same(AsInPyg(data, method, SEEDS, num_workers=1, **OPTIONS), plain, names)
    sampler = NeighborSampler(data, method)
    given = NeighborLoader(data, [], SEEDS, neighbor_sampler=sampler, **OPTIONS)
    check_same(given, plain, names)


@ALL
def test_stores(data, name):
    method, names = METHODS[name]
    features, graph = RowStore(), MyGraphStore()
    features.put_tensor(data.x, group_name=None, attr_name="x", index=None)
    graph.put_edge_index(data.edge_index, edge_type=None, layout="coo", size=(150, 150))
    loader = NeighborLoader((features, graph), method, SEEDS, **OPTIONS)
    check_same(loader, NeighborLoader(data, method, SEEDS, **OPTIONS), names)


@ALL
def test_links(data, name):
    method, names = METHODS[name]
    options = {"edge_label_index": data.edge_index[:, :5], "neg_sampling": "binary", **OPTIONS}
    plain = list(LinkNeighborLoader(data, method, **options))
    check_same(plain, plain, names)
    for way in IN_THREADS.values():
        check_same(LinkNeighborLoader(data, method, **way, **options), plain, names)


@pytest.mark.parametrize(
    "way,name",
    [
        ({"worker_type": "process"}, "layer-wise"),
        ({"worker_type": "process"}, "own program"),
        ({"worker_type": "process", "filter_per_worker": False}, "ppr"),
        ({"worker_type": "process", "transform_sampler_output": copied}, "own program"),
    ],
)
def test_worker_processes(data, way, name):
    method, names = METHODS[name]
    plain = NeighborLoader(data, method, SEEDS, **OPTIONS)
    check_same(NeighborLoader(data, method, SEEDS, num_workers=1, **way, **OPTIONS), plain, names)


@pytest.mark.process
@pytest.mark.parametrize("way", [{"worker_init_fn": same}, {"multiprocessing_context": "fork"}])
def test_arguments_that_select_processes(data, way):
    method, names = METHODS["poisson-ladies"]
    options = {"num_workers": 1, **way, **OPTIONS}
    plain = list(NeighborLoader(data, method, SEEDS, **OPTIONS))
    check_same(NeighborLoader(data, method, SEEDS, **options), plain, names)
    check_same(AsInPyg(data, method, SEEDS, **options), plain, names)
    links = {"edge_label_index": data.edge_index[:, :5]}
    check_same(
        LinkNeighborLoader(data, method, **links, **options),
        LinkNeighborLoader(data, method, **links, **OPTIONS),
        names,
    )


@pytest.mark.parametrize("way", [{}, *IN_THREADS.values()])
def test_types(way):
    """Values lie with their types, the mark with the whole batch."""
    data, seeds = twins.heterogeneous(), ("paper", SEEDS[2::2])
    plain = NeighborLoader(data, Smallest(2, 2), seeds, **OPTIONS)
    loader = NeighborLoader(data, Smallest(2, 2), seeds, **way, **OPTIONS)
    for batch, reference in zip(loader, plain, strict=True):
        assert batch.layer_wise is reference.layer_wise is True
        for node_type in data.node_types:
            assert torch.equal(batch[node_type].node_norm, reference[node_type].node_norm)
            assert len(batch[node_type].node_norm) == batch[node_type].n_id.numel()
        for edge_type in data.edge_types:
            assert torch.equal(batch[edge_type].edge_norm, reference[edge_type].edge_norm)
            assert len(batch[edge_type].edge_norm) == batch[edge_type].e_id.numel()


@ALL
def test_pygs_own_loaders(data, name):
    """They would drop what methods deliver: refused, with what to do."""
    method, names = METHODS[name]
    sampler = NeighborSampler(data, method)
    nodes = NodeLoader(data, sampler, SEEDS, batch_size=2)
    links = PygLinkNeighborLoader(
        data, [], data.edge_index[:, :4], neighbor_sampler=sampler, batch_size=2
    )
    for loader in (nodes, links):
        if not names:
            assert next(iter(loader)).n_id.numel() > 0
            continue
        with pytest.raises(ValueError, match=f"delivers .*{names[0]}.*neighbor_sampler="):
            next(iter(loader))
    inputs = NodeSamplerInput(None, SEEDS)
    out = sampler.sample_from_nodes(inputs, with_values=True)
    delivered = getattr(out.metadata, "values", {})
    assert {key.rpartition(".")[2] for key in delivered} == set(names)


def test_an_output_that_has_lost_it_is_refused(data):
    def without_metadata(out):
        return dataclasses.replace(out, metadata=tuple(out.metadata))

    def without_an_edge(out):
        return dataclasses.replace(out, row=out.row[1:], col=out.col[1:], edge=out.edge[1:])

    def without_an_edge_and_its_norm(out):
        norm = out.metadata.values["e0.edge_norm"]
        out.metadata.values["e0.edge_norm"] = norm[1:]
        return without_an_edge(out)

    def loader(hook):
        options = {"transform_sampler_output": hook, **OPTIONS}
        return NeighborLoader(data, PoissonLadies([9, 9]), SEEDS, **options)

    with pytest.raises(ValueError, match="has lost edge_norm, layer_wise: pass its `metadata` on"):
        next(iter(loader(without_metadata)))
    with pytest.raises(ValueError, match=r"edges, but 'edge_norm' is of .*e0\.edge_norm"):
        next(iter(loader(without_an_edge)))
    batch = next(iter(loader(without_an_edge_and_its_norm)))
    whole = next(iter(loader(None)))
    assert torch.equal(batch.edge_norm, whole.edge_norm[1:])
    assert torch.equal(batch.edge_index, whole.edge_index[:, 1:])
