"""`ToLayers`: batches layer by layer. Runs in trainers."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader.neighbor_sampler import EdgeIndex


class ToLayers:
    """Transform that splits a batch into a model's layers, each with fewer nodes than the last.

    A batch gets `adjs`, a list with an entry for each layer, outermost first, in place of
    `edge_index` and `e_id`: PyG's `EdgeIndex` (edge_index, e_id, size), of sizes (sources,
    destinations). Destinations are the first of the sources, and those of one layer the
    sources of the next; those of the last are the seeds. It is the form of PyG's former
    `NeighborSampler` and of DGL's blocks:

        for conv, (edge_index, _, size) in zip(convs, batch.adjs):
            x = conv((x, x[: size[1]]), edge_index).relu()

    `edge_ranges` has a `slice` of the batch's edges for each layer, which cuts attributes of edges:
    `batch.edge_norm[batch.edge_ranges[0]]`. In heterogeneous batches entries are {edge type:
    `EdgeIndex`} and {edge type: `slice`}.

    If nodes draw their neighbours once (lists, `Labor`), a layer has the edges of all hops up to
    its own, and the result is exactly the model's on the whole batch. If all nodes draw anew in
    each hop (`NeighborSampling(..., layer_wise=True)`, `PoissonLadies`, `Ladies`), a layer has the
    edges of its hop alone: pass `layer_wise=True`.

    Args:
        layer_wise: all nodes of the batch drew in each hop; default: False.

    Raises:
        ValueError: a batch whose hops cannot be told apart ('induced' or 'bidirectional'
            subgraphs), or, without `layer_wise`, one in which all nodes drew in each hop.

    Example:
        >>> loader = NeighborLoader(data, [2, 2], batch_size=1, transform=ToLayers())
        >>> [adj.size for adj in next(iter(loader)).adjs]
        [(5, 3), (3, 1)]
    """

    def __init__(self, layer_wise: bool = False) -> None:
        self.layer_wise = layer_wise

    def __call__(self, batch: Any) -> Any:
        """Return a batch with layers."""
        if isinstance(batch, HeteroData):
            return self._hetero(batch)
        nodes, edges = _hops(batch, "the batch")
        adjs, ranges = self._split(batch, nodes, nodes, edges)
        del batch.edge_index
        if "e_id" in batch:
            del batch.e_id
        batch.adjs, batch.edge_ranges = adjs, ranges
        return batch

    def _hetero(self, batch: HeteroData) -> HeteroData:
        counts = {t: _hops(batch[t], t)[0] for t in batch.node_types}
        by_type = {}
        for edge_type in batch.edge_types:
            if "edge_index" not in batch[edge_type]:  # links, which have a store
                continue
            store, (src, _, dst) = batch[edge_type], edge_type
            edges = list(_known(store, "num_sampled_edges", edge_type))
            by_type[edge_type] = self._split(store, counts[src], counts[dst], edges)
            del store.edge_index
            if "e_id" in store:
                del store.e_id
        layers = range(max(len(adjs) for adjs, _ in by_type.values()))
        batch.adjs = [{t: adjs[i] for t, (adjs, _) in by_type.items()} for i in layers]
        batch.edge_ranges = [{t: ranges[i] for t, (_, ranges) in by_type.items()} for i in layers]
        return batch

    def _split(
        self, store: Any, sources: list[int], destinations: list[int], edges: list[int]
    ) -> tuple[list[EdgeIndex], list[slice]]:
        """Return the layers of an edge type, and which edges each has.

        Args:
            store: the edges.
            sources: number of seeds of the sources' type, then of nodes that each hop added.
            destinations: likewise.
            edges: number of edges of each hop.
        """
        ends, num_src = [0, *accumulate(edges)], [*accumulate(sources)]
        num_dst = [*accumulate(destinations)]
        edge_index: Tensor = store.edge_index
        ids: Tensor | None = store.get("e_id")
        adjs, ranges = [], []
        for hop in reversed(range(len(edges))):
            begin = ends[hop] if self.layer_wise else 0
            own = edge_index[1, ends[hop] : ends[hop + 1]]
            if hop and not self.layer_wise and own.numel() and int(own.min()) < num_dst[hop - 1]:
                raise ValueError(
                    "all nodes of this batch drew in each hop: split it with "
                    "ToLayers(layer_wise=True)"
                )
            place = slice(begin, ends[hop + 1])
            size = num_src[hop + 1], num_dst[hop]
            e_id = None if ids is None else ids[place]
            adjs.append(EdgeIndex(edge_index[:, place], e_id, size))
            ranges.append(place)
        return adjs, ranges


def _known(store: Any, name: str, what: Any) -> Any:
    counts = store.get(name)
    if counts is None:
        raise ValueError(
            f"{what} has no {name}: layers are those of 'directional' subgraphs, whose hops are "
            "counted"
        )
    return counts


def _hops(store: Data | Any, what: Any) -> tuple[list[int], list[int]]:
    nodes = list(_known(store, "num_sampled_nodes", what))
    edges = store.get("num_sampled_edges")
    return nodes, [] if edges is None else list(edges)
