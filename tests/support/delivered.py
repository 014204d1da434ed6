"""All sampling methods, with the values that their batches have beside nodes and edges."""

import torch

from khop.sampler import (
    FastGcn,
    Hgt,
    Labor,
    Ladies,
    NeighborSampling,
    PinSage,
    PoissonLadies,
    Ppr,
    RippleWalk,
    SaintEdges,
    SaintNodes,
    SaintWalks,
)
from support.programs import OneHop, Smallest
from support.users_methods import LayerImportance, TopDegree

NORM, WEIGHT, ANEW = "edge_norm", "edge_weight", "layer_wise"

METHODS = {
    "list": ([2, 2], ()),
    "layer-wise": (NeighborSampling([2, 2], layer_wise=True), (ANEW,)),
    "labor": (Labor([2, 2]), ()),
    "labor, layer-wise": (Labor([2, 2], layer_dependency=True, layer_wise=True), (ANEW,)),
    "labor, weighted": (Labor([2, 2], importance=1, sequential=False, edge_norm="ht"), (NORM,)),
    "poisson-ladies": (PoissonLadies([4, 4]), (NORM, ANEW)),
    "ladies": (Ladies([4, 4]), (NORM, ANEW)),
    "fastgcn": (FastGcn([9, 9], edge_norm="ht"), (NORM, ANEW)),
    "ppr": (Ppr(4), (WEIGHT,)),
    "pinsage": (PinSage(3, num_layers=2), (WEIGHT,)),
    "hgt": (Hgt([3, 2]), ()),
    "saint-walks": (SaintWalks(2), ()),
    "saint-edges": (SaintEdges(), ()),
    "saint-nodes": (SaintNodes(4), ()),
    "ripple-walk": (RippleWalk(6), ()),
    "own program": (Smallest(2, 2), (NORM, "node_norm", ANEW)),
    "own steps": (LayerImportance(5, 2), (NORM, ANEW)),
    "own steps without values": (TopDegree(2, 2), ()),
    "own induced": (OneHop(), ()),
}
"""{name: (method, what batches have of it)}."""

VALUES = (NORM, WEIGHT, "node_norm", ANEW)


def values_of(batch):
    """Return {name: value} of a method's values that a homogeneous batch has."""
    return {name: batch[name] for name in VALUES if name in batch}


def check_same(batches, references, names):
    """Check that batches have the values `names`, equal to the reference batches' values."""
    count = 0
    for batch, reference in zip(batches, references, strict=True):
        found, expected = values_of(batch), values_of(reference)
        assert set(found) == set(expected) == set(names)
        assert torch.equal(batch.n_id, reference.n_id)
        for name, value in found.items():
            if name == ANEW:
                assert value is expected[name] is True
                continue
            sizes = {"node_norm": batch.n_id.numel()}
            assert value.dtype == torch.float32
            assert value.shape == (sizes.get(name, batch.edge_index.size(1)),)
            assert torch.equal(value, expected[name])
        count += 1
    assert count > 1
