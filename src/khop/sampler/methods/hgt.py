"""`Hgt`: a number of nodes of each type per iteration, drawn by their edges to the batch.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from khop import _native
from khop.sampler.methods.access import GraphAccess, Waiting, together
from khop.sampler.methods.base import ProgramMethod, counts_within, register
from khop.sampler.methods.border import Border
from khop.sampler.methods.normal import log_of
from khop.typing import Float64Array, Int64Array, UInt64Array

_RACES = 19  # purpose of keys
_MOST_ITERATIONS, _MOST_NODES, _MOST_TYPES = 64, 1 << 24, 4096


@register
@dataclass(frozen=True)
class Hgt(ProgramMethod):
    """A number of nodes of each type per iteration, preferably nodes joined to the batch.

    A node outside the batch has a budget. For each edge type, each node of the batch adds 1 / (its
    number of neighbours) to the budget of each neighbour. In every iteration, `num_samples` nodes
    of each type are drawn without replacement, or all nodes with a budget, if these are no more.
    Chances are proportional to the square of the budget before the iteration. A batch has the
    seeds, then the nodes of each type in the order in which they were drawn, and all edges among
    them. Rows of drawn nodes are read whole, also rows of hubs. Types that no edge leads to stay
    empty. Batches are not disjoint, and times are not supported. A homogeneous graph has one node
    type.

    Method: HGSampling (https://arxiv.org/abs/2003.01332), in PyG's form: draws of different types
    in an iteration are independent. Budgets are sums of integers, and draws are exponential races
    keyed by original ids, so that batches do not depend on partitions.

    Args:
        num_samples: list of the nodes of each type per iteration, or {node type: list} of all node
            types, with lists of equal lengths. 0 draws none.

    Raises:
        ValueError: malformed numbers. When the loader is made: a node type that is missing or does
            not exist, a `disjoint` batch, or an option of draws by hop, such as `replace`.

    Example:
        >>> loader = NeighborLoader(data, Hgt([2, 1]), torch.tensor([0, 3]), batch_size=2, seed=0)
        >>> batch = next(iter(loader))
        >>> batch.n_id[:2].tolist(), batch.num_nodes
        ([0, 3], 5)
    """

    name: ClassVar[str] = "hgt"
    subgraph_type: ClassVar[str | None] = "induced"

    num_samples: Any

    def __post_init__(self) -> None:
        samples = self.num_samples
        if isinstance(samples, Mapping):
            if not samples or len(samples) > _MOST_TYPES:
                raise ValueError(
                    f"num_samples must name 1 to {_MOST_TYPES:,} node types (got {len(samples)})"
                )
            if not all(isinstance(name, str) for name in samples):
                raise ValueError(f"num_samples must name node types by texts (got {list(samples)})")
            by_type = {name: _counts(samples[name]) for name in sorted(samples)}
            lengths = {name: len(counts) for name, counts in by_type.items()}
            if len(set(lengths.values())) > 1:
                raise ValueError(
                    "num_samples must have as many iterations for each node type: add 0s (got "
                    f"{lengths})"
                )
            object.__setattr__(self, "num_samples", by_type)
        else:
            object.__setattr__(self, "num_samples", _counts(samples))

    @property
    def num_neighbors(self) -> list[int]:
        """Fan-out of each iteration: -1, as all neighbours of a node are read."""
        samples = self.num_samples
        return [-1] * len(next(iter(samples.values())) if isinstance(samples, dict) else samples)

    def check_node_types(self, node_types: Sequence[str]) -> None:
        if not isinstance(self.num_samples, dict):
            return
        unknown = [name for name in self.num_samples if name not in node_types]
        missing = [name for name in node_types if name not in self.num_samples]
        if unknown or missing:
            raise ValueError(
                f"num_samples must name the graph's node types {list(node_types)}; it names "
                f"{unknown}, which do not exist, and lacks {missing}: 0s draw none"
            )

    def draw(self, graph: GraphAccess) -> Waiting[None]:
        borders = []
        for node_type in range(len(graph.num_nodes)):
            seeds = [ids for seed_type, ids, _ in graph.seeds if seed_type == node_type]
            first = np.concatenate([np.empty(0, np.int64), *seeds])
            borders.append(Border(graph, node_type, first))
        for iteration in range(len(self.num_neighbors)):
            yield from _give_budgets(graph, borders)
            for node_type, border in enumerate(borders):
                words = _native.draw_words(graph.key(_RACES, iteration, node_type), border.original)
                samples = self.num_samples
                if isinstance(samples, dict):  # servers meet types that the loader did not check
                    samples = samples.get(graph.node_types[node_type])
                border.take(_race(words, border.budgets), samples[iteration] if samples else 0)
        for node_type, border in enumerate(borders):
            if len(border.members):
                graph.subgraph.add_seeds(node_type, border.members)


def _give_budgets(graph: GraphAccess, borders: list[Border]) -> Waiting[None]:
    """Add to the budgets of neighbours of the nodes that joined in the last iteration."""
    # A node gives `scale` for each edge type, so that no budget leaves 63 bits.
    givers = sum(graph.num_nodes) * max(len(graph.relations), 1)
    scale = 1 << min(40, 62 - givers.bit_length())
    giving = [r for r, (_, row_type) in enumerate(graph.relations) if len(borders[row_type].joined)]
    rows = yield from together(
        graph.neighbors(relation, borders[graph.relations[relation][1]].joined, with_edge=False)
        for relation in giving
    )
    none = np.empty(0, np.int64)
    neighbors, amounts = [[none] for _ in borders], [[none] for _ in borders]
    for relation, (counts, ids, _) in zip(giving, rows, strict=True):
        source, degrees = graph.relations[relation][0], counts.astype(np.int64)
        neighbors[source].append(ids)
        amounts[source].append(np.repeat(np.maximum(scale // np.maximum(degrees, 1), 1), degrees))
    for border in borders:
        border.joined = none
    yield from together(
        border.extend(np.concatenate(ids), np.concatenate(shares))
        for border, ids, shares in zip(borders, neighbors, amounts, strict=True)
    )


def _race(words: UInt64Array, budgets: Int64Array) -> Float64Array:
    """Return exponential variates of rates proportional to the squares of budgets, [n] float64.

    The smallest variates are a draw without replacement, with chances proportional to the rates.
    """
    uniform = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52  # exact, below 1
    weights = budgets.astype(np.float64)
    return -log_of(uniform) / (weights * weights)


def _counts(values: object) -> list[int]:
    counts = counts_within(values, _MOST_ITERATIONS, 0, _MOST_NODES)
    if counts is None:
        raise ValueError(
            f"num_samples must hold 1 to {_MOST_ITERATIONS} integers from 0 to {_MOST_NODES:,}, or "
            f"such a list for each node type (got {values!r})"
        )
    return counts
