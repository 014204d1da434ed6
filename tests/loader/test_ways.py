"""The two ways of a batch in memory: which one an epoch takes."""

import gc
import weakref

import pytest
import torch
import torch_geometric.loader
import torch_geometric.sampler
from torch_geometric.data import Data
from torch_geometric.testing import MyFeatureStore, MyGraphStore

from khop.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader
from khop.loader.batches.ways import NativeWay, PygWay, way_of

EDGES = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
DATA = Data(x=torch.arange(4.0).view(4, 1), edge_index=EDGES)


class OwnSampler:
    """A user's sampler: the seeds alone."""

    edge_permutation = None

    def sample_from_nodes(self, inputs):
        none = torch.empty(0, dtype=torch.long)
        return torch_geometric.sampler.SamplerOutput(
            inputs.node, none, none, none, metadata=(inputs.input_id, inputs.time)
        )


def as_stores():
    features, graph = MyFeatureStore(), MyGraphStore()
    features.put_tensor(DATA.x, group_name=None, attr_name="x", index=None)
    graph.put_edge_index(EDGES, edge_type=None, layout="coo", size=(4, 4))
    return features, graph


def test_natively():
    for loader in (
        NeighborLoader(DATA, [2], transform=lambda batch: batch),
        LinkNeighborLoader(DATA, [2], neg_sampling="binary"),
        SubGraphLoader(DATA, None, [1]),
    ):
        assert isinstance(way_of(loader), NativeWay)
        assert isinstance(
            loader, torch_geometric.loader.LinkLoader | torch_geometric.loader.NodeLoader
        )


@pytest.mark.parametrize(
    "make",
    [
        lambda: NeighborLoader(DATA, [2], transform_sampler_output=lambda out: out),
        lambda: NeighborLoader(DATA, [2], neighbor_sampler=OwnSampler()),
        lambda: NeighborLoader(as_stores(), [2]),
        lambda: type("Own", (NeighborLoader,), {"filter_fn": lambda _, out: out})(DATA, [2]),
    ],
    ids=["hook", "sampler", "stores", "method"],
)
def test_in_pygs_form(make):
    loader = make()
    assert isinstance(way_of(loader), PygWay)
    assert len(list(loader)) == 4


def test_hooks_count_from_the_next_epoch_on():
    loader = NeighborLoader(DATA, [2])
    loader.filter_fn = lambda out: out.node.tolist()
    assert isinstance(way_of(loader), PygWay)
    assert next(iter(loader)) == [0, 3]
    del loader.filter_fn
    assert isinstance(way_of(loader), NativeWay)


def test_loaders_end_without_the_garbage_collector():
    """A loader holds no way: a way holds the loader."""
    loader = NeighborLoader(DATA, [2])
    list(loader)
    alive = weakref.ref(loader)
    gc.disable()
    try:
        del loader
        assert alive() is None
    finally:
        gc.enable()
