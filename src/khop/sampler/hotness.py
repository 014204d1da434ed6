"""How likely a node is to be touched by a batch.

Two estimates in one. A formula (`independent_prob`) follows the probabilities hop by hop as if all
draws were independent; it is exact on trees and where everything is taken, and knows about nodes of
any rarity, but is far too high in dense clusters, where one seed reaches a node along many paths.
So batches are drawn, as in the pre-sampling of GNNLab (Yang et al., EuroSys 2022), and the formula
serves as their prior: it stands for a few batches more. On Debian's package graph (fan-outs
[10, 10], batches of 256) the correlation with the true frequencies is 0.977 for the formula and
0.996 for 512 batches with it as prior.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from khop import _native
from khop.sampler.plan import EpochPlan, epoch_order, seeds_of
from khop.typing import Int64Array

_NUM_BATCHES = 512
# Nodes and edges to draw at most, some seconds of work; then fewer batches must do.
_MAX_DRAWN = 1 << 28
_PRIOR_BATCHES = 16
_SEED = 0x686F746E657373


def sample_prob(
    csr: _native.Csr,
    fanouts: Sequence[int],
    seeds: Int64Array,
    num_nodes: int,
    batch_size: int | None = None,
    replace: bool = False,
) -> npt.NDArray[np.float64]:
    """Probability of each node being touched by a batch.

    Args:
        csr: the graph, of `num_nodes` rows.
        fanouts: fan-out of each hop.
        seeds: [num_seeds] ids that batches are drawn from; a node may stand more than once.
        num_nodes: number of nodes.
        batch_size: seeds in a batch, drawn at random; default: all of them.
        replace: draw neighbours with replacement.

    Returns:
        [num_nodes] float64, the same for the same arguments.

    Raises:
        ValueError: a batch size below 1.
    """
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be at least 1 (got {batch_size})")
    prior = independent_prob(csr, fanouts, seeds, num_nodes, batch_size, replace)
    is_certain = batch_size is None or batch_size >= len(seeds)
    if is_certain and all(fanout <= 0 for fanout in fanouts):
        return prior
    size = max(1, min(batch_size or len(seeds), len(seeds)))
    touched, drawn, batches = np.zeros(num_nodes), 0, 0
    subgraph = _native.Subgraph([num_nodes], [(0, 0)], False)
    for run_key, batch, ids in _random_batches(seeds, size):
        if batches == _NUM_BATCHES or drawn > _MAX_DRAWN:
            break
        subgraph.begin()
        subgraph.add_seeds(0, ids)
        for hop, fanout in enumerate(fanouts):
            subgraph.hop(0, csr, fanout, replace, _native.step_key(run_key, batch, hop, 0))
            subgraph.end_hop()
        nodes = np.empty(subgraph.num_nodes(0), np.int64)
        subgraph.write_nodes(0, nodes)
        touched[nodes] += 1  # once, where seeds repeat
        batches += 1
        drawn += len(nodes) + subgraph.num_edges(0)
    return (touched + _PRIOR_BATCHES * prior) / (batches + _PRIOR_BATCHES)


def independent_prob(
    csr: _native.Csr,
    fanouts: Sequence[int],
    seeds: Int64Array,
    num_nodes: int,
    batch_size: int | None = None,
    replace: bool = False,
) -> npt.NDArray[np.float64]:
    """Probability of each node being touched by a batch, if all draws were independent.

    Hop by hop, a node v that joined the subgraph with probability f(v) draws each of its
    neighbours with probability f(v) min(1, k / degree(v)). Linear in the number of edges a hop.

    Takes the arguments of `sample_prob` and returns [num_nodes] float64.
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


def _random_batches(seeds: Int64Array, size: int) -> Iterator[tuple[int, int, Int64Array]]:
    """Full batches of epoch after epoch: key of the epoch, number in it, seeds."""
    plan = EpochPlan(len(seeds), size, drop_last=True)
    for epoch in range(_NUM_BATCHES if plan.num_batches else 0):
        run_key = _native.run_key(_SEED, epoch, 0)
        order = epoch_order(len(seeds), run_key, True)
        for batch in range(plan.num_batches):
            yield run_key, batch, seeds[seeds_of(order, *plan.bounds(batch))]
