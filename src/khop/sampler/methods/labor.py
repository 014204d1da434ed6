"""`Labor`: neighbours that rows of a hop agree on. Imports no torch."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from khop.sampler.methods.base import MethodSpec, SamplingMethod, register


@register
@dataclass(frozen=True)
class Labor(SamplingMethod):
    """Neighbours that rows of a hop agree on where they can, so that a batch has fewer nodes.

    Each neighbour t has one uniform number r_t in a hop, and a row takes the k neighbours of
    smallest r_t (by weight: r_t / w_t), or all if it has no more than k. Each row by itself draws
    exactly min(k, degree) neighbours, every k-subset as likely as any other; rows that share
    neighbours tend to take the same ones. Partitions need the neighbours' original ids: partition
    with `neighbor_ids=True` (`khop partition --neighbor-ids`).

    Cost: whole rows are read, where a list's sampling reads k entries of each. Seeds with 40
    neighbours take about three times as long to draw, and hubs with thousands tens of times (20 ms
    a batch against less than 1 ms); fewer nodes save time in gathering, copying and the model.
    `docs/extending.md` has measurements.

    Method: LABOR-0 with sequential Poisson sampling (https://arxiv.org/abs/2210.13339).

    Args:
        num_neighbors: fan-out of each hop, or {edge type: fan-outs}; -1 takes all neighbours.
        importance: iterations of importance sampling; 0, none, is what there is.
        layer_dependency: use the same numbers in all hops, so that hops, too, tend to take the same
            nodes; False: each hop has numbers of its own, and hops are independent.
        replace: False; draws with replacement are not supported.
        weight_attr: edge attribute to draw by; edges of weight 0 are never drawn. As the loader's
            own `weight_attr`.

    Raises:
        ValueError: an option that is not supported.

    Example:
        >>> loader = NeighborLoader(data, Labor([2, 2]), torch.tensor([0, 3]), batch_size=2)
        >>> batch = next(iter(loader))
        >>> batch.num_edges  # two for each of the six nodes, as with [2, 2]
        12
    """

    name: ClassVar[str] = "labor"
    needs_neighbor_ids: ClassVar[bool] = True

    num_neighbors: Any
    _: KW_ONLY
    importance: int = 0
    layer_dependency: bool = True
    replace: bool = False
    weight_attr: str | None = None

    def __post_init__(self) -> None:
        """Checks options."""
        if self.importance != 0:
            raise ValueError(
                "Labor has importance=0 alone (LABOR-0), no iterations of importance sampling (got "
                f"{self.importance!r})"
            )
        if self.replace:
            raise ValueError("Labor draws without replacement alone: leave replace=True out")

    def spec(self) -> MethodSpec:
        """See `SamplingMethod`."""
        return MethodSpec(self.name, bool(self.layer_dependency))

    def settle(self, replace: bool, weight_attr: str | None) -> tuple[bool, str | None]:
        """See `SamplingMethod`."""
        if replace:
            raise ValueError("Labor draws without replacement: leave replace=True out")
        if None not in (weight_attr, self.weight_attr) and weight_attr != self.weight_attr:
            raise ValueError(
                f"weight_attr is '{weight_attr}' of the loader and '{self.weight_attr}' of Labor: "
                "name it once"
            )
        return replace, weight_attr if self.weight_attr is None else self.weight_attr

    def check_strategy(self, temporal_strategy: str) -> None:
        """See `SamplingMethod`."""
        if temporal_strategy == "last":
            raise ValueError(
                "Labor draws at random among the neighbours that a seed may see: with "
                "temporal_strategy='last', which takes the latest, pass a list"
            )
