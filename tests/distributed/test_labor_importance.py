"""LABOR's program over partitions: the batches of the in-memory loader, bit for bit."""

import numpy as np
import pytest
import torch

from khop.distributed import DistNeighborLoader
from khop.errors import ProtocolError
from khop.loader import NeighborLoader
from khop.sampler import Labor
from khop.sampler.replies import check_weights
from support.cluster import twins

SEEDS = torch.tensor([*range(0, 60, 3), 5, 5, 149, 11])
COMMON = {"batch_size": 8, "shuffle": True, "seed": 7}
ALL = {"collect_features": True, "with_edge": True}

METHODS = [
    Labor([4, 3], importance=-1, edge_norm="ht"),
    Labor([4, -1], importance=2, sequential=False, layer_dependency=False, edge_norm="hajek"),
    Labor([3, 3], batch_dependency=2),
    Labor([4, 3], replace=True, edge_norm="ht"),
]

WEIGHTED = [
    ("weight", Labor([4, 3], importance=1, weight_attr="edge_weight", edge_norm="ht"), {}),
    ("weight", Labor([4, 3], sequential=False, edge_norm="hajek"), {"weight_attr": "edge_weight"}),
    ("weight", Labor([3, -1], replace=True, weight_attr="edge_weight", edge_norm="ht"), {}),
    ("time", Labor([3, 3], importance=-1, weight_attr="edge_weight"), {"time_attr": "time"}),
    ("plain", Labor([3, 3], importance=1, edge_norm="ht"), {"disjoint": True}),
]


@pytest.mark.parametrize("some_parts,method", twins.with_parts(METHODS))
def test_homogeneous(twin_root, some_parts, method):
    data = twins.homogeneous()
    for num_parts in some_parts:
        with twins.open_dataset(twin_root("homogeneous", num_parts), num_parts) as dataset:
            ours = DistNeighborLoader(dataset, method, SEEDS, **ALL, **COMMON)
            batches = twins.same_epochs(ours, NeighborLoader(data, method, SEEDS, **COMMON))
        assert sum(batch.edge_index.size(1) for batch in batches) > 50


@pytest.mark.parametrize("some_parts,kind,method,options", twins.with_parts(WEIGHTED))
def test_weights_times_and_trees(twin_root, some_parts, kind, method, options):
    """Owners send weights in replies of their own."""
    data = twins.homogeneous()
    for num_parts in some_parts:
        root = twin_root("homogeneous", num_parts, kind)
        with twins.open_dataset(root, num_parts) as dataset:
            ours = DistNeighborLoader(dataset, method, SEEDS, **ALL, **COMMON, **options)
            twin = NeighborLoader(data, method, SEEDS, **COMMON, **options)
            batches = twins.same_epochs(ours, twin)
        assert sum(batch.edge_index.size(1) for batch in batches) > 50


def test_weights_of_owners_are_checked():
    """bfloat16 is stored as its bits; what no weight can be fails."""
    stored = torch.tensor([0.5, 2.0], dtype=torch.bfloat16).view(torch.uint16).numpy()
    assert check_weights(stored, "bfloat16").tolist() == [0.5, 2.0]
    assert check_weights(np.array([3, 0]), "int64").tolist() == [3.0, 0.0]
    for wrong in ([np.nan], [1.0, -1.0], [np.inf]):
        with pytest.raises(ProtocolError, match=r"weights of a partition holds .* not negative"):
            check_weights(np.array(wrong), "float64")


def test_heterogeneous(twin_root):
    data, seeds = twins.heterogeneous(), ("paper", torch.tensor([3, 3, 119, *range(20)]))
    fanouts = {t: [3, 2] for t in data.edge_types} | {twins.CITES: [0, 2], twins.WRITES: [2, -1]}
    method = Labor(fanouts, importance=1, edge_norm="hajek")
    with twins.open_dataset(twin_root("heterogeneous", 3), 3) as dataset:
        ours = DistNeighborLoader(dataset, method, seeds, **ALL, **COMMON)
        twins.same_epochs(ours, NeighborLoader(data, method, seeds, **COMMON))
    weighted = Labor(fanouts, importance=1, edge_norm="ht", weight_attr="edge_weight")
    with twins.open_dataset(twin_root("heterogeneous", 3, "time"), 3) as dataset:
        options = {**COMMON, "time_attr": "time"}
        ours = DistNeighborLoader(dataset, weighted, seeds, **ALL, **options)
        twins.same_epochs(ours, NeighborLoader(data, weighted, seeds, **options))


def test_samplers_and_resume(twin_root):
    """A sampler process draws; the state of a loader is taken up by another."""
    data, method = twins.homogeneous(), METHODS[0]
    with twins.open_dataset(twin_root("homogeneous", 3), 3) as dataset:
        options = {"worker_options": twins.workers(1), **ALL, **COMMON}
        ours = DistNeighborLoader(dataset, method, SEEDS, **options)
        twins.same_epochs(ours, NeighborLoader(data, method, SEEDS, **COMMON))
        ours.shutdown()
    want = list(NeighborLoader(data, method, SEEDS, **COMMON))
    first = NeighborLoader(data, method, SEEDS, **COMMON)
    next(iter(first))
    resumed = NeighborLoader(data, method, SEEDS, **COMMON)
    resumed.load_state_dict(first.state_dict())
    for batch, other in zip(resumed, want[1:], strict=True):
        twins.same_batch(batch, other)
    unweighted = NeighborLoader(data, Labor([4, 3], importance=-1), SEEDS, **COMMON)
    with pytest.raises(ValueError, match="other options of sampling"):
        unweighted.load_state_dict(first.state_dict())
