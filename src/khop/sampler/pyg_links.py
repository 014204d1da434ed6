"""Conversion of PyG's link inputs and outputs: the torch side of `link`. Runs in the trainer."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.sampler import (
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    SamplerOutput,
)

from khop.data import Graph
from khop.data.arrays import check_range, to_int64
from khop.data.times import seed_time_keys
from khop.sampler.link import Links, LinkSampler, LinkSeeds, link_of_tree
from khop.sampler.link_spec import ExcludeSeedEdges, LinkSpec
from khop.sampler.negative import Candidates, NegativeSampler
from khop.typing import EDGE, EdgeType


class LinkOptions(NamedTuple):
    """Options of a loader's link batches.

    Attributes:
        neg_sampling: PyG's description of negatives, or None.
        strict: negatives are no edges of the graph.
        exclude: edges that are left out of the neighbourhoods.
    """

    neg_sampling: NegativeSampling | None = None
    strict: bool = False
    exclude: ExcludeSeedEdges = False


class _Supervised(NamedTuple):
    wanted: tuple[Any, ...]
    weights: tuple[Tensor | None, Tensor | None]
    sampler: LinkSampler

    def is_for(self, wanted: tuple[Any, ...], weights: tuple[Tensor | None, ...]) -> bool:
        # Tables were made of these very tensors; what is in them is not compared.
        return self.wanted == wanted and all(
            a is b for a, b in zip(self.weights, weights, strict=True)
        )


class LinkSamplers:
    """Factory of link samplers of a graph in memory; keeps the last one, as its tables are costly.

    Args:
        graph: the graph.
        disjoint: each end of a link is the root of a separate tree.
    """

    def __init__(self, graph: Graph, disjoint: bool = False) -> None:
        self._graph = graph
        self._disjoint = disjoint
        self._kept: _Supervised | None = None

    def get(self, link_type: EdgeType | None, options: LinkOptions) -> LinkSampler:
        """Return the sampler of links of one type.

        Args:
            link_type: the edge type of links. If None, the only one, of a homogeneous graph.
            options: options of the batches.

        Raises:
            ValueError: options that contradict one another or the graph.
        """
        neg = options.neg_sampling
        wanted = (link_type, options.strict, options.exclude, neg and (neg.mode, neg.amount))
        weights = (neg.src_weight, neg.dst_weight) if neg else (None, None)
        kept = self._kept  # another thread may replace it
        if kept is None or not kept.is_for(wanted, weights):
            kept = _Supervised(wanted, weights, self._make(link_type, options))
            self._kept = kept
        return kept.sampler

    def _make(self, link_type: EdgeType | None, options: LinkOptions) -> LinkSampler:
        graph, neg = self._graph, options.neg_sampling
        spec = LinkSpec.create(
            graph.node_types,
            graph.edge_types,
            link_type_of(graph, link_type),
            edge_dir=graph.edge_dir,
            disjoint=self._disjoint,
            mode=None if neg is None else neg.mode.value,
            amount=1 if neg is None else neg.amount,
            strict=options.strict,
            exclude=options.exclude,
        )
        if neg is None:
            return LinkSampler(spec)
        dst = self._candidates(spec.dst_type, neg.dst_weight, "dst_weight")
        src = None
        if spec.mode == "binary":
            src = self._candidates(spec.src_type, neg.src_weight, "src_weight")
        return LinkSampler(spec, NegativeSampler(dst, src))

    def _candidates(self, place: int, weight: Tensor | None, what: str) -> Candidates:
        node_type = self._graph.node_types[place]
        weights = None if weight is None else torch.as_tensor(weight).double().cpu().numpy()
        return Candidates(
            self._graph.num_nodes[node_type], weights, self._graph.node_times.get(node_type), what
        )


def link_type_of(graph: Graph, link_type: EdgeType | None) -> EdgeType:
    """Return the edge type of links, in PyG's form.

    Raises:
        ValueError: none is given for a heterogeneous graph, or one that does not name its parts.
    """
    if not graph.is_heterogeneous:
        return EDGE
    if not isinstance(link_type, tuple) or len(link_type) != 3:
        raise ValueError(
            "links of a heterogeneous graph need an edge type (source, relation, target), such as "
            f"one of {graph.edge_types} (got {link_type!r})"
        )
    return link_type


def links_of(index: EdgeSamplerInput, graph: Graph, spec: LinkSpec) -> Links:
    """Return the links of PyG's input, checked.

    Raises:
        IndexError, TypeError, ValueError: ends that do not exist or are no vectors of integers;
            times in a graph without times, or none in one with times.
    """
    ends = []
    for name, value, place in (
        ("sources", index.row, spec.src_type),
        ("destinations", index.col, spec.dst_type),
    ):
        ends.append(to_int64(value, f"{name} of links"))
        check_range(ends[-1], graph.num_nodes[graph.node_types[place]], f"{name} of links")
    src, dst = ends
    if len(src) != len(dst):
        raise ValueError(f"links have {len(src)} sources, but {len(dst)} destinations")
    if graph.is_temporal != (index.time is not None):
        raise ValueError(
            "the graph has times: pass the time of each link ('edge_label_time'), too"
            if graph.is_temporal
            else "links have times ('edge_label_time'), but the graph has none: pass time_attr, too"
        )
    time = None
    if index.time is not None:
        time = seed_time_keys(index.time, graph.floating_times, "times of links")
        if len(time) != len(src):
            raise ValueError(f"{len(time)} times for {len(src)} links")
    return Links(src, dst, time)


def link_metadata(index: EdgeSamplerInput, spec: LinkSpec, seeds: LinkSeeds) -> tuple[Any, ...]:
    """Return the metadata that PyG's `LinkLoader` reads from a sampler's output.

    Returns:
        `(input_id, edge_label_index, edge_label, time)` without negatives and with binary ones,
        `(input_id, src_index, dst_pos_index, dst_neg_index, time)` with triplets.
    """
    places = {name: torch.from_numpy(value) for name, value in seeds.index.items()}
    if spec.mode == "triplet":
        return (index.input_id, *places.values(), index.time)
    label, time = index.label, index.time
    if spec.mode == "binary":
        label = binary_labels(label, seeds.num_links, seeds.num_negatives)
        if time is not None:
            time = repeat_rows(time, seeds.num_links + seeds.num_negatives)
    return (index.input_id, places["edge_label_index"], label, time)


def number_by_link(out: SamplerOutput | HeteroSamplerOutput, num_links: int) -> None:
    """Renumber `batch` of a disjoint batch in place, from links' ends to links."""
    if out.batch is None:
        return
    trees = out.batch.values() if isinstance(out.batch, dict) else [out.batch]
    for tree in trees:
        tree.copy_(link_of_tree(tree, num_links))


def binary_labels(label: Tensor | None, num_links: int, num_negatives: int) -> Tensor:
    """Return labels of links, then zeros for negatives; links without labels have ones."""
    if label is None:
        label = torch.ones(num_links)
    return torch.cat([label, label.new_zeros((num_negatives, *label.shape[1:]))])


def repeat_rows(values: Tensor, count: int) -> Tensor:
    """Repeat values of links until there are `count`."""
    if len(values) == 0:
        return values
    return values[torch.arange(count) % len(values)]
