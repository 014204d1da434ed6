"""Conversion of PyG's link inputs and outputs, with torch, for `drawing.link`. Runs in trainers."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling

from khop.data.arrays import check_range, to_int64
from khop.data.info import GraphInfo
from khop.sampler.arguments import check_times, given_times
from khop.sampler.drawing.link import Links, LinkSeeds
from khop.sampler.link_spec import ExcludeSeedEdges, LinkSpec
from khop.typing import EDGE, Array, EdgeType


class LinkOptions(NamedTuple):
    """Options of a loader's link batches: negatives, and edges that are excluded.

    Attributes:
        neg_sampling: PyG's description of negatives, or None.
        strict: negatives are no edges of the graph.
        exclude: edges that are left out of the neighbourhoods, as `exclude_seed_edges` of
            `khop.loader.LinkNeighborLoader`.
    """

    neg_sampling: NegativeSampling | None = None
    strict: bool = False
    exclude: ExcludeSeedEdges = False


def link_spec(
    info: GraphInfo, link_type: EdgeType | None, options: LinkOptions, disjoint: bool
) -> LinkSpec:
    """Return the checked specification of batches of links. See `LinkSpec.create`.

    Args:
        info: the graph.
        link_type: the edge type of links. A homogeneous graph has one.
        options: options of the batches.
        disjoint: each end of a link is the root of a separate tree.
    """
    neg = options.neg_sampling
    if not info.heterogeneous:
        link_type = EDGE
    if not isinstance(link_type, tuple) or len(link_type) != 3:
        raise ValueError(
            "links of a heterogeneous graph need an edge type (source, relation, target), such as "
            f"one of {list(info.edge_types)} (got {link_type!r})"
        )
    return LinkSpec.create(
        info.node_types,
        info.edge_types,
        link_type,
        edge_dir=info.edge_dir,
        disjoint=disjoint,
        mode=None if neg is None else neg.mode.value,
        amount=1 if neg is None else neg.amount,
        strict=options.strict,
        exclude=options.exclude,
    )


def negative_weights(neg_sampling: NegativeSampling | None) -> dict[str, Array]:
    """Return the sampling weights of nodes as ends of negatives, unchecked.

    Returns:
        'src_weight' (of binary negatives) and 'dst_weight', if set: [num_nodes] float64 each.
    """
    if neg_sampling is None:
        return {}
    weights = {"dst_weight": neg_sampling.dst_weight}
    if neg_sampling.is_binary():
        weights["src_weight"] = neg_sampling.src_weight
    return {
        side: torch.as_tensor(weight).double().cpu().numpy()
        for side, weight in weights.items()
        if weight is not None
    }


def links_of(index: EdgeSamplerInput, info: GraphInfo, spec: LinkSpec) -> Links:
    """Return the links of PyG's input `index`, checked against the graph (`info`) and `spec`.

    Raises:
        IndexError, TypeError, ValueError: ends that do not exist or are no vectors of integers.
            Links have times and the graph has none, or the reverse.
    """
    ends = []
    for name, value, node_type in (
        ("sources", index.row, spec.src_type),
        ("destinations", index.col, spec.dst_type),
    ):
        ends.append(to_int64(value, f"{name} of links"))
        check_range(ends[-1], info.node_counts[info.node_types[node_type]], f"{name} of links")
    src, dst = ends
    if len(src) != len(dst):
        raise ValueError(f"links have {len(src)} sources, but {len(dst)} destinations")
    check_times("edge_label_time", index.time is not None, info.is_temporal, required=True)
    time = None
    if index.time is not None:
        time = given_times(info, index.time, len(src), "edge_label_time", "links")
    return Links(src, dst, time)


def link_metadata(index: EdgeSamplerInput, spec: LinkSpec, seeds: LinkSeeds) -> tuple[Any, ...]:
    """Return metadata for PyG's `LinkLoader`, of its input `index` and the drawn ends `seeds`.

    Returns:
        `(input_id, edge_label_index, edge_label, time)` without negatives and with binary ones,
        `(input_id, src_index, dst_pos_index, dst_neg_index, time)` with triplets.
    """
    positions = {name: torch.as_tensor(value) for name, value in seeds.index.items()}
    if spec.mode == "triplet":
        return (index.input_id, *positions.values(), index.time)
    label, time = index.label, index.time
    if spec.mode == "binary":
        label = binary_labels(label, seeds.num_links, seeds.num_negatives)
        if time is not None:
            time = repeat_rows(time, seeds.num_links + seeds.num_negatives)
    return (index.input_id, positions["edge_label_index"], label, time)


def binary_labels(label: Tensor | None, num_links: int, num_negatives: int) -> Tensor:
    """Return the labels of a batch's links, followed by a zero for each negative.

    If the links have no labels (None), theirs are ones.
    """
    if label is None:
        label = torch.ones(num_links)
    return torch.cat([label, label.new_zeros((num_negatives, *label.shape[1:]))])


def repeat_rows(values: Tensor, count: int) -> Tensor:
    """Repeat values of links, in order, until there are `count` rows."""
    if len(values) == 0:
        return values
    return values[torch.arange(count) % len(values)]
