"""`NeighborSampling`: GraphSAGE's method, in place of a list of fan-outs. Imports no torch."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from khop.sampler.methods.base import MethodSpec, SamplingMethod, register
from khop.typing import NumNeighbors


@register
@dataclass(frozen=True)
class NeighborSampling(SamplingMethod):
    """Neighbours drawn for each row separately, uniformly or by weight: what a list means.

    A node draws its neighbours once, and a batch's layers share them. With `layer_wise` all nodes
    draw anew in every hop, as in GraphSAGE's pseudocode and in DGL's blocks. Layer-wise batches are
    larger, and `khop.loader.ToLayers` separates their layers.

    Method: GraphSAGE (https://arxiv.org/abs/1706.02216).

    Args:
        num_neighbors: fan-out of each hop, or {edge type: fan-outs}. -1 takes all neighbours.
        layer_wise: all nodes of a batch draw in each hop, not only the nodes that the last hop
            added. Default: False.

    Example:
        >>> loader = NeighborLoader(data, NeighborSampling([2, 2]), batch_size=6)
        >>> next(iter(loader)).num_edges  # as with [2, 2]
        12
    """

    name: ClassVar[str] = "neighbor"

    num_neighbors: NumNeighbors
    _: KW_ONLY
    layer_wise: bool = False

    def spec(self) -> MethodSpec:
        return MethodSpec(self.name, layer_wise=bool(self.layer_wise))


NEIGHBOR = MethodSpec()
"""Specification of `NeighborSampling`."""


def as_method(num_neighbors: NumNeighbors | SamplingMethod) -> SamplingMethod:
    """Return a loader's `num_neighbors` as a method. Fan-outs become `NeighborSampling`."""
    if isinstance(num_neighbors, SamplingMethod):
        return num_neighbors
    if isinstance(num_neighbors, type) and issubclass(num_neighbors, SamplingMethod):
        name = num_neighbors.__name__
        raise TypeError(f"num_neighbors is the class {name}: pass an object, {name}([15, 10])")
    return NeighborSampling(num_neighbors)
