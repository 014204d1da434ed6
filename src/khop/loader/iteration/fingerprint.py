"""Fingerprints of a loader's input, to check that a saved state fits it. Runs in the trainer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from khop import codec
from khop.data.arrays import to_array
from khop.sampler.link_spec import LinkSpec
from khop.sampler.spec import SamplingSpec
from khop.typing import EdgeType, NodeType

# All other fields of a spec enter the digest, future ones, too. It costs less to refuse a valid
# state than to accept the state of another sampling method.
_DECIDE_NO_DRAW = ("with_edge", "keep_edge")


def describe_sampling(
    sampling: SamplingSpec,
    num_nodes: Mapping[NodeType, int],
    num_edges: Mapping[EdgeType, int],
    link: LinkSpec | None = None,
    weights: Sequence[Any] = (),
    *,
    by_time: bool = False,
) -> str:
    """Return a digest of all that determines a batch's draws, except its seeds and keys.

    The digest is equal for a graph in memory and in any number of partitions. `link` has the
    options of link batches, and `weights` the weights of nodes as ends of negatives. `by_time`
    states that each node's edges are sorted by time, even if draws do not read times.
    """
    drawn = {
        "sampling": {
            **{k: v for k, v in codec.to_json(sampling).items() if k not in _DECIDE_NO_DRAW},
            "weighted": [sampling.is_weighted(i) for i in range(len(num_edges))],
        },
        "by_time": by_time,
        "nodes": sorted(num_nodes.items()),
        "edges": list(num_edges.items()),
        "link": None if link is None else {**codec.to_json(link), "amount": float(link.amount)},
    }
    return digest([json.dumps(drawn, sort_keys=True), *weights])


def digest(parts: Iterable[Any]) -> str:
    """Return a fingerprint of values: 32 hexadecimal digits.

    Args:
        parts: tensors and arrays, which enter with dtype, shape and content, or values that JSON
            can hold.
    """
    result = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, Tensor | np.ndarray):
            array, dtype = to_array(part.cpu() if isinstance(part, Tensor) else part, "values")
            result.update(json.dumps([dtype, array.shape]).encode())
            result.update(np.ascontiguousarray(array).data)
        else:
            result.update(json.dumps(part).encode())
    return result.hexdigest()
