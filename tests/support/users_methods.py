"""Sampling methods as users write them, each with a reference in plain Python, and wrong ones."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from khop.codec import Between
from khop.sampler import Sample, StepMethod, Transits, register
from support.programs import PROGRAM_HOP, word_of
from support.reference import oracle

# As khop numbers what words are for: of samples, of neighbours, of transits (and of each that is
# there again).
OF_SAMPLES, OF_NEIGHBORS, OF_TRANSITS = 1, 2, 3


@register
@dataclass(frozen=True)
class TopDegree(StepMethod):
    """Method that takes, from each node, the neighbours with most neighbours.

    New nodes are the next frontier.
    """

    needs_degrees: ClassVar[bool] = True

    fanout: Annotated[int, Between(1, 100)]
    hops: Annotated[int, Between(1, 10)] = 2

    def steps(self) -> int:
        return self.hops

    def sample_size(self, step: int) -> int:
        return self.fanout

    def next(self, transits: Transits, step: int) -> Any:
        return transits.smallest(-transits.degrees, self.fanout)


@register
@dataclass(frozen=True)
class LayerImportance(StepMethod):
    """Method that draws layers by number of edges to the layer before, with replacement."""

    sampling_type: ClassVar[Literal["individual", "collective"]] = "collective"
    edge_values: ClassVar[tuple[str, ...]] = ("edge_norm",)
    layer_wise: ClassVar[bool] = True

    size: Annotated[int, Between(1, 1000)]
    layers: Annotated[int, Between(1, 10)] = 2

    def steps(self) -> int:
        return self.layers

    def sample_size(self, step: int) -> int:
        return self.size

    def step_transits(self, step: int, sample: Sample) -> Any:
        return sample.nodes

    def next(self, transits: Transits, step: int) -> Any:
        num_entries = len(transits.neighbors)
        if not num_entries:
            return np.full(self.size, -1), np.zeros(self.size)
        words = transits.sample.words(np.arange(self.size)) >> np.uint64(32)
        picks = (words * np.uint64(num_entries) >> np.uint64(32)).astype(np.int64)
        _, node, times = np.unique(transits.neighbors, return_inverse=True, return_counts=True)
        return picks, num_entries / (self.size * times[node[picks]])


@register
@dataclass(frozen=True)
class Walks(StepMethod):
    """Method that follows random walks from the seeds, which stay separate where they meet."""

    length: Annotated[int, Between(1, 100)]

    def steps(self) -> int:
        return self.length

    def sample_size(self, step: int) -> int:
        return 1

    def step_transits(self, step: int, sample: Sample) -> Any:
        if step == 0:
            return sample.nodes
        last = sample.picks[-1][:, 0]
        return last[last >= 0]

    def next(self, transits: Transits, step: int) -> Any:
        return transits.uniform(1)


@register
@dataclass(frozen=True)
class Shared(StepMethod):
    """Method that takes, from each node, the neighbours of smallest word. A node has one word."""

    fanout: Annotated[int, Between(1, 100)]
    repeated: bool = False

    def steps(self) -> int:
        return 1

    def sample_size(self, step: int) -> int:
        return 2 * self.fanout if self.repeated else self.fanout

    def unique(self, step: int) -> bool:
        return self.repeated

    def next(self, transits: Transits, step: int) -> Any:
        least = transits.smallest(transits.neighbor_words(), self.fanout)
        return np.concatenate([least, least], 1) if self.repeated else least


@register
@dataclass(frozen=True)
class Wrong(StepMethod):
    """Method that does the wrong thing that its fields name."""

    mistake: str

    def steps(self) -> int:
        return {"steps": 0, "float steps": 1.0}.get(self.mistake, 1)

    def sample_size(self, step: int) -> int:
        return {"size": 0}.get(self.mistake, 2)

    def step_transits(self, step: int, sample: Sample) -> Any:
        if self.mistake == "transits":
            return np.array([10**6])
        return [1, 2] if self.mistake == "list of transits" else sample.nodes

    def next(self, transits: Transits, step: int) -> Any:
        picks = transits.uniform(2)
        beyond = picks.copy()
        beyond[1, 0] = transits.begins[1] + transits.counts[1]
        return {
            "none": None,
            "list": picks.tolist(),
            "float": picks.astype(float),
            "shape": picks[:, :1],
            "beyond": beyond,
            "before": picks - 10**6,
        }[self.mistake]


@register
@dataclass(frozen=True)
class WrongValues(Wrong):
    """Method that delivers invalid values of edges."""

    edge_values: ClassVar[tuple[str, ...]] = ("edge_norm",)

    def next(self, transits: Transits, step: int) -> Any:
        picks = transits.uniform(2)
        values = {"alone": None, "integers": picks, "values' shape": np.ones(2)}[self.mistake]
        return picks if values is None else (picks, values)


@register
@dataclass(frozen=True)
class Raises(StepMethod):
    """Method that raises an error in the batch of a node as long as a file exists."""

    file: str
    node: int

    def steps(self) -> int:
        return 1

    def sample_size(self, step: int) -> int:
        return 2

    def next(self, transits: Transits, step: int) -> Any:
        if self.node in transits.ids and Path(self.file).exists():
            raise LookupError(f"a mistake of the user's at {self.node}")
        return transits.uniform(2)


# The same in plain Python -----------------------------------------------------------------------


def rows_of(edge_index):
    """Return {node: [(edge, neighbour), ...]} in the order of the edges."""
    rows = {}
    for edge, (u, v) in enumerate(edge_index.T.tolist()):
        rows.setdefault(v, []).append((edge, u))
    return rows


def key_of(run_key, batch, purpose, step, index=0):
    """Return the key of a step's random words."""
    return oracle.step_key(oracle.step_key(run_key, batch, PROGRAM_HOP, purpose), 0, step, index)


def add(nodes, hop):
    """Add a hop's edges, (neighbour, node, edge), for each node in turn. Return the new nodes.

    Repeated seeds have their edges twice.
    """
    hop = [edge for v in nodes for edge in hop if edge[1] == v]
    for u, _, _ in hop:
        nodes += [] if u in nodes else [u]
    return hop


def top_degree(rows, seeds, method, run_key, batch):
    """Return what `TopDegree` draws: nodes, and (neighbour, node, edge) of each hop."""
    nodes, hops, new = list(seeds), [], dict.fromkeys(seeds)
    for _ in range(method.hops):
        known, hop = len(nodes), []
        for v in new:
            best = sorted(rows.get(v, []), key=lambda entry: -len(rows.get(entry[1], [])))
            hop += [(u, v, edge) for edge, u in best[: method.fanout]]
        hops.append(add(nodes, hop))
        new = nodes[known:]
    return nodes, hops, None


def layer_importance(rows, seeds, method, run_key, batch):
    """Return what `LayerImportance` draws, with the edges' norms."""
    nodes, hops, norms = list(seeds), [], []
    for layer in range(method.layers):
        entries = [(u, v, edge) for v in dict.fromkeys(nodes) for edge, u in rows.get(v, [])]
        key, times = key_of(run_key, batch, OF_SAMPLES, layer), Counter(u for u, _, _ in entries)
        norm = Counter()
        for draw in range(method.size if entries else 0):
            u, _, _ = entries[(word_of(key, draw) >> 32) * len(entries) >> 32]
            norm[u] += len(entries) / (method.size * times[u])
        hops.append(add(nodes, [entry for entry in entries if entry[0] in norm]))
        norms += [norm[u] for u, _, _ in hops[-1]]
    return nodes, hops, norms


def walks(rows, seeds, method, run_key, batch):
    """Return what `Walks` draws."""
    nodes, hops = list(seeds), []
    walkers = list(dict.fromkeys(seeds))
    for step in range(method.length):
        hop, there = [], Counter()
        for v in walkers:
            row = rows.get(v, [])
            word = word_of(key_of(run_key, batch, OF_TRANSITS + there[v], step), v)
            there[v] += 1
            hop += [(row[at][1], v, row[at][0]) for at in [word * len(row) >> 64] if row]
        walkers = [u for u, _, _ in hop]
        hops.append(add(nodes, hop))
    return nodes, hops, None


def shared(rows, seeds, method, run_key, batch):
    """Return what `Shared` draws."""
    nodes, key = list(seeds), key_of(run_key, batch, OF_NEIGHBORS, 0)
    hop = []
    for v in dict.fromkeys(nodes):
        least = sorted(rows.get(v, []), key=lambda entry: word_of(key, entry[1]))
        kept = least[: method.fanout]
        if method.repeated:  # a neighbour once, though parallel edges lead to it
            kept = list({u: (edge, u) for edge, u in reversed(kept)}.values())[::-1]
        hop += [(u, v, edge) for edge, u in kept]
    return nodes, [add(nodes, hop)], None


ORACLES = {TopDegree: top_degree, LayerImportance: layer_importance, Walks: walks, Shared: shared}
EXAMPLES = [TopDegree(3, 3), LayerImportance(12, 2), Walks(6), Shared(2), Shared(3, repeated=True)]
