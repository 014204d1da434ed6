"""Calls whose arguments type checkers see: mypy reads this file, nothing runs it."""

import numpy as np
import torch
from torch_geometric.data import Data

from khop.data import Feature, Topology
from khop.distributed import DistClusterLoader, DistLinkNeighborLoader, DistNeighborLoader
from khop.loader import (
    ClusterData,
    ClusterLoader,
    EpochOptions,
    GraphSAINTRandomWalkSampler,
    HGTLoader,
    LinkNeighborLoader,
    NeighborLoader,
    RandomNodeLoader,
    ShaDowKHopSampler,
    SubGraphLoader,
)
from khop.sampler import Labor, NeighborSampler


def accepted() -> None:
    """Call distributed loaders with options that they have."""
    DistNeighborLoader(None, [2], batch_size=3, seed=1, weight_attr="weight")
    DistLinkNeighborLoader(None, [2], neg_sampling="binary", shuffle=True, device="cuda")
    DistClusterLoader(None, batch_size=2, with_edge=False)
    Topology(torch.zeros(2, 3, dtype=torch.int64), edge_time=[1, 2, 3], weights=np.ones(3))
    Topology(([0, 1], np.zeros(1, np.int64)), input_layout="CSC", num_src=1)
    Feature([[1.0, 2.0]])


def accepted_in_memory(data: Data) -> None:
    """Call loaders of graphs in memory with the arguments of their documentation."""
    seeds = torch.arange(4)
    NeighborLoader(data, [15, 10], seeds, batch_size=2, shuffle=True, num_workers=2, seed=1)
    NeighborLoader(data, {("a", "to", "b"): [2]}, ("a", seeds), input_time=seeds, time_attr="t")
    NeighborLoader(data, Labor([15, 10]), "a", worker_type="process", transform=lambda b: b)
    NeighborLoader(data, [2], [0, 1], neighbor_sampler=NeighborSampler(data, [2]))
    LinkNeighborLoader(data, [2], seeds.view(2, 2), neg_sampling="binary", drop_last=True)
    LinkNeighborLoader(data, [2], (("a", "b"), None), neg_sampling={"mode": "triplet"})
    HGTLoader(data, {"a": [2]}, ("a", None), batch_size=2, stream=1)
    SubGraphLoader(data, seeds, disjoint=True, batch_size=2)
    ShaDowKHopSampler(data, 2, 5, seeds, batch_size=2, seed=1)
    shared: EpochOptions = {"seed": 1, "num_workers": 2}
    ClusterLoader(ClusterData(data, 3, assignment=[0, 1, 2]), batch_size=2, **shared)
    GraphSAINTRandomWalkSampler(data, 5, 2, num_steps=3, **shared)
    for batch in RandomNodeLoader(data, 3, **shared):
        print(batch.x)


def refused() -> None:
    """Call loaders with wrong options. An ignored error that does not occur is an error, too."""
    DistNeighborLoader(None, [2], nonsense=3)  # type: ignore[call-arg]
    DistNeighborLoader(None, [2], batch_size="3")  # type: ignore[arg-type]
    DistNeighborLoader(None, [2], None, 3)  # type: ignore[call-arg,arg-type]
    DistNeighborLoader(None, "2")  # type: ignore[arg-type]
    DistNeighborLoader(None, [2], 3)  # type: ignore[arg-type]
    DistNeighborLoader(None, [2], temporal_strategy="first")  # type: ignore[arg-type]
    DistNeighborLoader(None, [2], edge_dir="both")  # type: ignore[arg-type]
    DistLinkNeighborLoader(None, [2], edge_label="a")  # type: ignore[arg-type]
    DistClusterLoader(None, replace=True)  # type: ignore[call-arg]
    Topology("edges.npy")  # type: ignore[arg-type]
    Topology([[0], [1]], edge_time=3)  # type: ignore[arg-type]
    Topology([[0], [1]], edge_dir="up")  # type: ignore[arg-type]
    Feature("x.npy")  # type: ignore[arg-type]


def refused_in_memory(data: Data) -> None:
    """Make users' mistakes: wrong names, types and values of arguments, and unknown methods."""
    NeighborLoader(data, "abc")  # type: ignore[arg-type]
    NeighborLoader(data, [2], bach_size=3)  # type: ignore[call-arg]
    NeighborLoader(data, [2], batch_size="3")  # type: ignore[arg-type]
    NeighborLoader(data, [2], subgraph_type="indused")  # type: ignore[arg-type]
    NeighborLoader(data, [2], worker_type="fork")  # type: ignore[arg-type]
    NeighborLoader(data, [2], neighbor_sampler=NeighborSampler)  # type: ignore[arg-type]
    LinkNeighborLoader(data, [2], neg_sampling="binry")  # type: ignore[arg-type]
    LinkNeighborLoader(data, [2], "edges")  # type: ignore[arg-type]
    HGTLoader(data, [2], None, replace=True)  # type: ignore[call-arg]
    SubGraphLoader(data, None, subgraph_type="induced")  # type: ignore[call-arg]
    RandomNodeLoader(data, 3, batch_size=2)  # type: ignore[call-arg]
