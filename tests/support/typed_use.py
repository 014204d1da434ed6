"""Calls whose keyword arguments type checkers see: mypy reads this file, nothing runs it."""

import numpy as np
import torch

from khop.data import Feature, Topology
from khop.distributed import DistClusterLoader, DistLinkNeighborLoader, DistNeighborLoader


def accepted() -> None:
    """Call loaders with options that they have."""
    DistNeighborLoader(None, [2], batch_size=3, seed=1, weight_attr="weight")
    DistLinkNeighborLoader(None, [2], neg_sampling="binary", shuffle=True, device="cuda")
    DistClusterLoader(None, batch_size=2, with_edge=False)
    Topology(torch.zeros(2, 3, dtype=torch.int64), edge_time=[1, 2, 3], weights=np.ones(3))
    Topology(([0, 1], np.zeros(1, np.int64)), input_layout="CSC", num_src=1)
    Feature([[1.0, 2.0]])


def refused() -> None:
    """Call loaders with others; an ignored error that is none is an error, too."""
    DistNeighborLoader(None, [2], nonsense=3)  # type: ignore[call-arg]
    DistNeighborLoader(None, [2], batch_size="3")  # type: ignore[arg-type]
    DistNeighborLoader(None, [2], None, 3)  # type: ignore[call-arg]
    DistClusterLoader(None, replace=True)  # type: ignore[call-arg]
    Topology("edges.npy")  # type: ignore[arg-type]
    Topology([[0], [1]], edge_time=3)  # type: ignore[arg-type]
    Topology([[0], [1]], edge_dir="up")  # type: ignore[arg-type]
    Feature("x.npy")  # type: ignore[arg-type]
