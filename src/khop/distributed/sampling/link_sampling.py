"""Sampling of links of a partitioned graph. Callers use original ids, the engine new ids.

Run by samplers, and by trainers that sample in their own process.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from khop.sampler.drawing.link import LinkSampler
from khop.sampler.drawing.negative import Candidates, NegativeSampler
from khop.sampler.link_spec import LinkSpec
from khop.storage.part import Part
from khop.typing import Array, Int64Array


def link_sampler(
    part: Part, spec: LinkSpec, temporal: bool, weights: Mapping[str, Array]
) -> LinkSampler:
    """Make a sampler of batches of links, for an engine over a part.

    Args:
        part: the local part. It has id maps and times of the nodes of all parts.
        spec: specification of the links.
        temporal: True if negatives must be nodes that exist at the time of their link.
        weights: sampling weights of negative endpoints, by original id: 'src_weight' and
            'dst_weight', [num_nodes] float64, both optional.
    """
    types = part.meta.node_types
    maps = {i: part.folder.id_map(types[i].name) for i in {spec.src_type, spec.dst_type}}

    def to_engine(node_type: int, ids: Int64Array) -> Int64Array:
        return np.ascontiguousarray(maps[node_type][ids], np.int64)

    def candidates(node_type: int, side: str) -> Candidates:
        times = part.node_times(node_type) if temporal else None
        original = None if times is None else times[maps[node_type]]
        return Candidates(types[node_type].count, weights.get(side), original, side)

    negatives = None
    if spec.mode is not None:
        src = candidates(spec.src_type, "src_weight") if spec.mode == "binary" else None
        negatives = NegativeSampler(candidates(spec.dst_type, "dst_weight"), src)
    return LinkSampler(spec, negatives, to_engine)
