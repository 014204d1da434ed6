"""`ToLayers`: batches layer by layer. Runs in trainers."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.loader.neighbor_sampler import EdgeIndex


class ToLayers:
    """Transform that splits a batch into one bipartite graph for each layer of a model.

    A batch gets the list `adjs` in place of `edge_index` and `e_id`. For each layer, outermost
    first, it has PyG's `EdgeIndex` (edge_index, e_id, size). `size` is (number of sources, number
    of destinations). Destinations are the first of the sources. The destinations of one layer are
    the sources of the next, and the destinations of the last layer are the seeds. PyG's former
    `NeighborSampler` and DGL's blocks have the same form:

        for conv, (edge_index, _, size) in zip(convs, batch.adjs):
            x = conv((x, x[: size[1]]), edge_index).relu()

    The list `edge_ranges` has, for each layer, the `slice` of its edges among the batch's edges, to
    select attributes: `batch.edge_norm[batch.edge_ranges[0]]`. In heterogeneous batches, entries of
    both lists are dictionaries by edge type.

    If nodes draw their neighbours once (fan-outs, `Labor`), a layer has the edges of all hops up to
    its own. Seeds then get exactly the same output as from the model on the whole batch. If all
    nodes draw anew in each hop, a layer has the edges of its hop alone. Batches of these methods
    have `layer_wise=True`: `NeighborSampling(..., layer_wise=True)`, `PoissonLadies`, `Ladies`,
    `FastGcn`.

    Raises:
        ValueError: the hops of a batch cannot be separated ('induced' or 'bidirectional'
            subgraphs), or nodes draw in several hops without `layer_wise`.

    Example:
        >>> loader = NeighborLoader(data, [2, 2], batch_size=1, transform=ToLayers())
        >>> [adj.size for adj in next(iter(loader)).adjs]
        [(5, 3), (3, 1)]
    """

    def __call__(self, batch: Any) -> Any:
        """Replace `edge_index` and `e_id` of a batch by its layers, and return the batch."""
        if isinstance(batch, HeteroData):
            return self._hetero(batch)
        nodes, edges = _hops(batch, "the batch")
        apart = bool(batch.get("layer_wise"))
        adjs, ranges = _split(batch, nodes, nodes, edges, apart)
        del batch.edge_index
        if "e_id" in batch:
            del batch.e_id
        batch.adjs, batch.edge_ranges = adjs, ranges
        return batch

    def _hetero(self, batch: HeteroData) -> HeteroData:
        counts = {t: _hops(batch[t], t)[0] for t in batch.node_types}
        by_type, apart = {}, bool(getattr(batch, "layer_wise", False))
        for edge_type in batch.edge_types:
            if "edge_index" not in batch[edge_type]:  # links, which have a store
                continue
            store, (src, _, dst) = batch[edge_type], edge_type
            edges = list(_known(store, "num_sampled_edges", edge_type))
            by_type[edge_type] = _split(store, counts[src], counts[dst], edges, apart)
            del store.edge_index
            if "e_id" in store:
                del store.e_id
        layers = range(max(len(adjs) for adjs, _ in by_type.values()))
        batch.adjs = [{t: adjs[i] for t, (adjs, _) in by_type.items()} for i in layers]
        batch.edge_ranges = [{t: ranges[i] for t, (_, ranges) in by_type.items()} for i in layers]
        return batch


def _split(
    store: Any, sources: list[int], destinations: list[int], edges: list[int], apart: bool
) -> tuple[list[EdgeIndex], list[slice]]:
    """Return the layers (bipartite graphs) of an edge type, and the range of edges of each.

    `sources` and `destinations` count the seeds of their type, then the nodes that each hop added.
    If `apart`, a layer has the edges of its hop alone. Then nodes may draw in several hops.
    """
    ends, num_src = [0, *accumulate(edges)], [*accumulate(sources)]
    num_dst = [*accumulate(destinations)]
    edge_index: Tensor = store.edge_index
    if not apart and _is_drawn_anew(edge_index[1], ends, num_dst):
        raise ValueError(
            "nodes of the batch draw in several hops, but the batch has no `layer_wise`: layers "
            "would mix the hops. A sampling method whose nodes all draw in each hop says "
            "`layer_wise = True`; code that makes batches of others has to pass the flag on"
        )
    ids: Tensor | None = store.get("e_id")
    adjs, ranges = [], []
    for hop in reversed(range(len(edges))):
        own = slice(ends[hop] if apart else 0, ends[hop + 1])
        size = num_src[hop + 1], num_dst[hop]
        adjs.append(EdgeIndex(edge_index[:, own], None if ids is None else ids[own], size))
        ranges.append(own)
    return adjs, ranges


def _is_drawn_anew(destinations: Tensor, ends: list[int], num_dst: list[int]) -> bool:
    """Return True if a hop drew neighbours of nodes for which an earlier hop had also drawn.

    `ends` has 0, then the number of edges up to each hop. `num_dst` has the number of seeds, then
    of nodes up to each hop.
    """
    # Edges of a hop are in the order of the nodes that drew them: the first edge decides.
    hops = [hop for hop in range(1, len(ends) - 1) if ends[hop + 1] > ends[hop]]
    return any(int(destinations[ends[hop]]) < num_dst[hop - 1] for hop in hops)


def _known(store: Any, name: str, owner: object) -> Any:
    counts = store.get(name)
    if counts is None:
        raise ValueError(
            f"{owner} has no {name}: layers are those of 'directional' subgraphs, whose hops are "
            "counted"
        )
    return counts


def _hops(store: Any, owner: object) -> tuple[list[int], list[int]]:
    nodes = list(_known(store, "num_sampled_nodes", owner))
    edges = store.get("num_sampled_edges")
    return nodes, [] if edges is None else list(edges)
