"""Programs over partitions: the batches of the in-memory loader, bit for bit."""

import numpy as np
import pytest
import torch

from khop.channel.message import pack, unpack
from khop.distributed import DistLinkNeighborLoader, DistNeighborLoader
from khop.distributed.rpc.partition_handler import RequestHandler
from khop.distributed.rpc.protocol import Degrees, request_header
from khop.errors import ProtocolError
from khop.loader import LinkNeighborLoader, NeighborLoader, ToLayers
from khop.sampler import FastGcn, NeighborSampling, PinSage, PoissonLadies, Ppr
from khop.sampler.replies import check_degrees
from khop.storage.folder import PartitionFolder
from khop.storage.part import Part
from support.cluster import twins
from support.programs import OneHop, Smallest

SEEDS = torch.tensor([*range(0, 60, 3), 149, 11])
COMMON = {"batch_size": 8, "shuffle": True, "seed": 7}
ALL = {"collect_features": True, "with_edge": True}


METHODS = [
    Smallest(3, 2),
    OneHop(),
    Ppr(6, eps=1e-3),
    PinSage(3, num_layers=2),
    NeighborSampling([3, 2, 2], layer_wise=True),
    FastGcn([20, 30], edge_norm="ht"),
]


@pytest.mark.parametrize("some_parts,method", twins.with_parts(METHODS))
def test_homogeneous(twin_root, some_parts, method):
    for num_parts in some_parts:
        root = twin_root("homogeneous", num_parts)
        with twins.open_dataset(root, num_parts) as dataset:
            ours = DistNeighborLoader(dataset, method, SEEDS, **ALL, **COMMON)
            twin = NeighborLoader(twins.homogeneous(), method, SEEDS, **COMMON)
            twins.same_epochs(ours, twin)


def test_samplers_that_read_the_whole_graph_first(twin_root):
    """A sampler process with several batches in flight, which share the sums."""
    with twins.open_dataset(twin_root("homogeneous", 3), 3) as dataset:
        options = {"worker_options": twins.workers(1), **ALL, **COMMON}
        ours = DistNeighborLoader(dataset, FastGcn([20, 30]), SEEDS, **options)
        twins.same_epochs(
            ours, NeighborLoader(twins.homogeneous(), FastGcn([20, 30]), SEEDS, **COMMON)
        )
        ours.shutdown()


@pytest.mark.parametrize("method", [PoissonLadies([20, 30]), [3, 2]])
def test_layers(twin_root, method):
    """Batches say whether their nodes draw in each hop, and are split accordingly."""
    split = {"transform": ToLayers()}
    with twins.open_dataset(twin_root("homogeneous", 2), 2) as dataset:
        ours = DistNeighborLoader(dataset, method, SEEDS, **split, **ALL, **COMMON)
        twin = NeighborLoader(twins.homogeneous(), method, SEEDS, **split, **COMMON)
        for a, b in zip(ours, twin, strict=True):
            assert a.edge_ranges == b.edge_ranges
            for one, other in zip(a.adjs, b.adjs, strict=True):
                assert torch.equal(one.edge_index, other.edge_index)
                assert torch.equal(one.e_id, other.e_id)
                assert one.size == other.size


def test_heterogeneous_links(twin_root):
    data, links = twins.heterogeneous(), torch.stack([torch.arange(20), torch.arange(20) % 7])
    given = {"edge_label_index": (twins.CITES, links), "neg_sampling": "binary"}
    with twins.open_dataset(twin_root("heterogeneous", 3), 3) as dataset:
        ours = DistLinkNeighborLoader(dataset, Smallest(2, 1), **given, **ALL, **COMMON)
        twin = LinkNeighborLoader(data, Smallest(2, 1), **given, **COMMON)
        for a, b in zip(ours, twin, strict=True):
            twins.same_batch(a, b)
            for edge_type in data.edge_types:
                assert "edge_norm" in a[edge_type]


def test_requests_for_degrees(twin_root):
    """They are answered for the part's own nodes, and refused for others; replies are checked."""
    part = Part(PartitionFolder(twin_root("homogeneous", 2)), 1)
    handler = RequestHandler(part)
    low, high = part.meta.node_types[0].bounds[1:3]

    def ask(ids, relation=0):
        header = request_header(Degrees(relation), 1, part=1)
        return unpack(handler(pack(header, [np.asarray(ids, np.int64)])))

    _, (degrees,) = ask(range(low, high))
    assert degrees.tolist() == np.diff(part.indptr(0)).tolist()
    for ids, relation in (([low - 1], 0), ([high], 0), ([-1], 0), ([low], 1)):
        header, arrays = ask(ids, relation)
        assert "error" in header
        assert arrays == []
    for wrong in (
        [],
        [degrees, degrees],
        [degrees[:-1]],
        [degrees.astype(np.int32)],
        [degrees - 9],
    ):
        with pytest.raises(ProtocolError, match="partition 1"):
            check_degrees(wrong, 1, len(degrees), int(degrees.max()))
