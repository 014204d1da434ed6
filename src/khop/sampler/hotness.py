"""How likely a node is to be touched by a batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from khop import _native
from khop.typing import Int64Array


def sample_prob(
    csr: _native.Csr,
    fanouts: Sequence[int],
    seeds: Int64Array,
    num_nodes: int,
    batch_size: int | None = None,
    replace: bool = False,
) -> npt.NDArray[np.float64]:
    """Probability of each node being touched by a batch.

    Hop by hop, a node v that joined the subgraph with probability f(v) draws each of its
    neighbours with probability f(v) min(1, k / degree(v)); draws of different nodes are taken as
    independent. Linear in the number of edges a hop.

    Args:
        csr: the graph, of `num_nodes` rows.
        fanouts: fan-out of each hop.
        seeds: [num_seeds] ids that batches are drawn from; a node may stand more than once.
        num_nodes: number of nodes.
        batch_size: seeds in a batch, drawn at random; default: all of them.
        replace: draw neighbours with replacement.

    Returns:
        [num_nodes] float64.
    """
    share = 1.0 if batch_size is None else min(1.0, batch_size / max(1, len(seeds)))
    occurrences = np.bincount(seeds, minlength=num_nodes)
    touched = -np.expm1(occurrences * np.log1p(-share)) if share < 1 else (occurrences > 0) * 1.0
    frontier = touched.copy()
    for fanout in fanouts:
        log_missed = np.zeros(num_nodes)
        _native.accumulate_hotness(csr, frontier, fanout, replace, log_missed)
        # log_missed is 0 where nobody draws and -inf where somebody always does.
        frontier = (1 - touched) * -np.expm1(log_missed)
        touched = touched + frontier
    return np.clip(touched, 0.0, 1.0)
