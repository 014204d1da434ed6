"""Calls whose keyword arguments type checkers see: mypy reads this file, nothing runs it."""

from khop.distributed import DistClusterLoader, DistLinkNeighborLoader, DistNeighborLoader


def accepted() -> None:
    """Call loaders with options that they have."""
    DistNeighborLoader(None, [2], batch_size=3, seed=1, weight_attr="weight")
    DistLinkNeighborLoader(None, [2], neg_sampling="binary", shuffle=True, device="cuda")
    DistClusterLoader(None, batch_size=2, with_edge=False)


def refused() -> None:
    """Call loaders with others; an ignored error that is none is an error, too."""
    DistNeighborLoader(None, [2], nonsense=3)  # type: ignore[call-arg]
    DistNeighborLoader(None, [2], batch_size="3")  # type: ignore[arg-type]
    DistNeighborLoader(None, [2], None, 3)  # type: ignore[call-arg,arg-type]
    DistNeighborLoader(None, "2")  # type: ignore[arg-type]
    DistNeighborLoader(None, [2], 3)  # type: ignore[arg-type]
    DistNeighborLoader(None, [2], temporal_strategy="first")  # type: ignore[arg-type]
    DistNeighborLoader(None, [2], edge_dir="both")  # type: ignore[arg-type]
    DistLinkNeighborLoader(None, [2], edge_label="a")  # type: ignore[arg-type]
    DistClusterLoader(None, replace=True)  # type: ignore[call-arg]
