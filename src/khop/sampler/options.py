"""Users' options of neighbour sampling, and their check. Imports no torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from khop.data.info import GraphInfo
from khop.sampler.methods import as_method
from khop.sampler.spec import SamplingSpec


@dataclass(frozen=True)
class SamplingOptions:
    """Options of samplers and loaders beside `num_neighbors`, in PyG's words.

    Attributes:
        replace: draw with replacement.
        with_edge: record which edges were drawn.
        subgraph_type: 'directional', 'bidirectional' or 'induced', or PyG's `SubgraphType`.
        disjoint: give each seed a separate subgraph. Temporal sampling always does.
        temporal_strategy: 'uniform' or 'last'.
        time_attr: attribute that holds times. If None, draws do not depend on times.
        weight_attr: attribute of edges to draw by. If None, uniformly.
    """

    replace: bool = False
    with_edge: bool = True
    subgraph_type: Any = "directional"
    disjoint: bool = False
    temporal_strategy: str = "uniform"
    time_attr: str | None = None
    weight_attr: str | None = None

    def settled(self, num_neighbors: Any) -> SamplingOptions:
        """Return the options with those that a sampling method brings.

        Args:
            num_neighbors: fan-outs or a method, as users pass them.

        Raises:
            ValueError: an option and the method's differ, or the method knows no such.
        """
        method = as_method(num_neighbors)
        replace, weight_attr = method.settle(self.replace, self.weight_attr)
        return dataclasses.replace(
            self,
            replace=replace,
            with_edge=self.with_edge and method.draws_edges,
            weight_attr=weight_attr,
            subgraph_type=method.settle_subgraph_type(self.subgraph_type),
        )

    def spec(self, num_neighbors: Any, info: GraphInfo) -> SamplingSpec:
        """Return the checked specification of draws from a graph.

        Args:
            num_neighbors: fan-outs or a method, as users pass them.
            info: the graph, with the times and weights that are to matter.

        Raises:
            TypeError, ValueError: as `SamplingSpec.create`. No weights to draw by.
        """
        options = self.settled(num_neighbors)
        as_method(num_neighbors).check_node_types(info.node_types)
        if options.weight_attr is not None and not any(info.weighted):
            raise ValueError(
                f"the graph has no weights '{options.weight_attr}' to draw by: make a sampler with "
                "them"
            )
        return SamplingSpec.create(
            num_neighbors,
            info.edge_types,
            options.replace,
            options.with_edge,
            subgraph_type=options.subgraph_type,
            disjoint=options.disjoint,
            temporal_strategy=options.temporal_strategy,
            temporal=info.is_temporal,
            weighted=info.weighted,
            heterogeneous=info.heterogeneous,
        )
