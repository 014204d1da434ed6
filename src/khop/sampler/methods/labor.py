"""`Labor`: neighbours that rows of a hop agree on. Imports no torch."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from khop.sampler.methods.base import MethodSpec, SamplingMethod, register
from khop.sampler.methods.labor_importance import MAX_ITERATIONS, LaborImportance
from khop.typing import EdgeNorm


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
    neighbours take up to twice as long to draw, and hubs with thousands twenty times (13 ms a batch
    against less than 1 ms); fewer nodes save time in gathering, copying and the model.
    `docs/benchmarks.md` has measurements.

    Importance sampling (LABOR-i) gives each neighbour a mass pi_t besides, which is larger the more
    rows it serves, so that batches have fewer nodes still. This and the options after it are drawn
    by a program, in NumPy: rows travel whole to whoever asks for them, with weights in requests of
    their own, and no neighbours' ids are needed; devices do not run it. So are draws with
    replacement.

    In disjoint batches each seed's subgraph has numbers of its own. With times, neighbours that a
    seed must not see are left out first, and the others race. All edge types whose neighbours are
    of one node type share numbers and masses.

    Method: LABOR (https://arxiv.org/abs/2210.13339). Sequential Poisson sampling, replacement and
    dependent batches are as in GraphBolt's `LayerNeighborSampler`.

    Args:
        num_neighbors: fan-out k of each hop, or {edge type: fan-outs}; -1 takes all neighbours.
        importance: iterations that compute the masses pi_t: 0, all are 1 (LABOR-0); i, LABOR-i; -1,
            until fewer than 1 in 10,000 expected nodes are saved (LABOR-*). At most 100.
        layer_dependency: use the same numbers in all hops, so that hops, too, tend to take the same
            nodes; False: each hop has numbers of its own, and hops are independent.
        replace: draw with replacement: each neighbour has k numbers, and a row takes the k smallest
            of all its neighbours', so that it has exactly k edges, some of them twice. A fan-out
            of -1 takes each once. Without importance sampling and in sequential draws alone; the
            loader's own `replace` stays False.
        weight_attr: edge attribute A to draw by; edges of weight 0 are never drawn, and do not
            count for a row's degree. As the loader's own `weight_attr`. Importance sampling begins
            with pi = A, and needs one iteration more for it; c_s gives a row's weighted sum the
            variance of uniform draws' (degree^2 / k - degree^2 / degree + sum A^2, with A scaled to
            the mean 1). Poisson draws without importance sampling take t if r_t < k A / sum A.
        sequential: take the min(k, degree) neighbours of smallest r_t / pi_t. False: Poisson
            sampling, the paper's: all with r_t < c_s pi_t, where c_s gives a row's mean the
            variance of k uniform draws. Their number varies; its mean is min(k, degree) without
            importance sampling, and more with it.
        edge_norm: weights of edges, `batch.edge_norm`, [num_edges] float32. 'ht' (Horvitz and
            Thompson): A / chance, with A = 1 unless draws are by weight, so that a row's weighted
            sum is that over all its neighbours, without bias if hops are independent. 'hajek':
            these, scaled so that they add up to the number of edges of the row: for means. If None,
            none.
        batch_dependency: K: numbers change slowly, over K batches, so that successive batches share
            nodes, and caches of attributes are hit more often. Each batch by itself is drawn as
            with K = 1. 0: the numbers of an epoch never change.
        layer_wise: all nodes of a batch draw in each hop, as with this option of
            `NeighborSampling`: the paper's batches. Not on devices.

    Raises:
        TypeError: a number that is no integer.
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
    sequential: bool = True
    edge_norm: EdgeNorm | None = None
    batch_dependency: int = 1
    layer_wise: bool = False

    def __post_init__(self) -> None:
        """Checks options."""
        for option, low, high, meaning in (
            ("importance", -1, MAX_ITERATIONS, "iterations, or -1 for as many as it takes"),
            ("batch_dependency", 0, 2**31, "batches, or 0 for the same numbers in all"),
        ):
            value = getattr(self, option)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"Labor: {option} must be an integer (got {value!r})")
            if not low <= value <= high:
                raise ValueError(
                    f"Labor: {option} must be from {low} to {high}: {meaning} (got {value})"
                )
        if self.edge_norm not in (None, "ht", "hajek"):
            raise ValueError(
                f"Labor: edge_norm must be 'ht', 'hajek' or None (got {self.edge_norm!r})"
            )
        if self.replace and (self.importance or not self.sequential):
            raise ValueError(
                "Labor draws with replacement without importance sampling and in sequential draws "
                f"alone (got importance={self.importance}, sequential={self.sequential}): leave "
                "these out, or replace=True"
            )

    def spec(self) -> MethodSpec:
        """See `SamplingMethod`."""
        program = LaborImportance(
            self.importance,
            bool(self.layer_dependency),
            bool(self.sequential),
            self.edge_norm,
            self.batch_dependency,
            bool(self.replace),
            bool(self.layer_wise),
        )
        same, anew = program.layer_dependency, program.layer_wise
        if program == LaborImportance(layer_dependency=same, layer_wise=anew):
            return MethodSpec(self.name, same, layer_wise=anew)  # the kernels draw it
        return MethodSpec(program.name, program=program, layer_wise=anew)

    def settle(self, replace: bool, weight_attr: str | None) -> tuple[bool, str | None]:
        """See `SamplingMethod`."""
        if replace and not self.replace:
            raise ValueError(
                "replace=True is the loader's, and Labor draws without replacement: pass "
                "Labor(..., replace=True) instead"
            )
        if None not in (weight_attr, self.weight_attr) and weight_attr != self.weight_attr:
            raise ValueError(
                f"weight_attr is '{weight_attr}' of the loader and '{self.weight_attr}' of Labor: "
                "name it once"
            )
        # Rows travel whole: replacement is the program's, and no option of a hop.
        return False, weight_attr if self.weight_attr is None else self.weight_attr

    def settle_subgraph_type(self, subgraph_type: Any) -> Any:
        """See `SamplingMethod`; weights belong to the edges that were drawn."""
        asked = getattr(subgraph_type, "value", subgraph_type)
        if self.edge_norm is not None and asked != "directional":
            raise ValueError(
                f"Labor with edge_norm makes 'directional' subgraphs (got subgraph_type={asked!r}):"
                " leave one or the other out"
            )
        return super().settle_subgraph_type(subgraph_type)

    def check_strategy(self, temporal_strategy: str) -> None:
        """See `SamplingMethod`."""
        if temporal_strategy == "last":
            raise ValueError(
                "Labor draws at random among the neighbours that a seed may see: with "
                "temporal_strategy='last', which takes the latest, pass a list"
            )
