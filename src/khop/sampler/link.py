"""Link batches: from links to seeds, and back to where a batch has their ends.

A batch of links is sampled in four steps, all but the third here or in `negative`:

1. negatives are drawn, if there shall be any;
2. the ends of all links become seeds, laid out as PyG lays them out: without repetition and
   ascending by id, or, in a disjoint batch, each end a tree of its own;
3. the engine draws their neighbourhoods, on request without the links themselves;
4. index arrays say where in the batch the ends are.

Links name nodes by their original ids, which decide the order of seeds. What the engine takes may
be other ids (a partition's): a mapping given by the caller translates. Nothing here needs torch or
a graph in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from khop import _native
from khop.sampler.engine import Engine
from khop.sampler.link_spec import LinkSpec
from khop.sampler.negative import NegativeSampler
from khop.sampler.requests import Exclusion, SeedSet, Ticket
from khop.typing import BoolArray, Int64Array

ToEngine: TypeAlias = Callable[[int, Int64Array], Int64Array]
"""The engine's ids of nodes, from the index of their type and their original ids."""


@dataclass(frozen=True)
class Links:
    """The links of a batch, by original ids.

    Attributes:
        src: [n] int64.
        dst: [n] int64.
        time: [n] int64 or None.
    """

    src: Int64Array
    dst: Int64Array
    time: Int64Array | None = None

    def __len__(self) -> int:
        return len(self.src)


@dataclass(frozen=True)
class LinkSeeds:
    """The seeds of a batch, and where its links' ends are among the nodes of their types.

    Attributes:
        sets: what to sample from, in this order, by original ids; tree i of a disjoint batch is
            that of seed i.
        index: without or with binary negatives `edge_label_index` [2, num_links + num_negatives];
            with triplets `src_index` [num_links], `dst_pos_index` [num_links] and `dst_neg_index`
            [num_links] or [num_links, amount]; all int64.
        num_links: number of links.
        num_negatives: number of negatives.
    """

    sets: list[SeedSet]
    index: dict[str, Int64Array] = field(default_factory=dict)
    num_links: int = 0
    num_negatives: int = 0


def link_of_tree(trees: Any, num_links: int) -> Any:
    """Which link each tree of a disjoint batch counts for, as PyG numbers `batch`.

    With a fractional amount of binary negatives, destinations count for other links than sources:
    so they do in PyG.
    """
    return trees % num_links if num_links else trees


def negative_sources(spec: LinkSpec, links: Links) -> Int64Array | None:
    """Whom each negative belongs to, by its place: its source. None: nobody, they are pairs."""
    if spec.mode != "triplet":
        return None
    amount = int(spec.amount)
    return np.tile(links.src, amount) if spec.disjoint else np.repeat(links.src, amount)


def repeated(values: Int64Array, spec: LinkSpec) -> Int64Array:
    """Values of links, such as times, for links and negatives, which count on round by round."""
    rounds = 0 if spec.mode is None else math.ceil(spec.amount)
    return np.tile(values, 1 + rounds)[: len(values) + spec.num_negatives(len(values))]


def lay_out(
    spec: LinkSpec, links: Links, negatives: tuple[Int64Array, Int64Array] | None
) -> LinkSeeds:
    """The seeds of a batch, in PyG's order.

    Args:
        spec: what batches are.
        links: the links.
        negatives: sources and destinations of the negatives; None: there are none.

    Raises:
        ValueError: links with times in batches that are not disjoint.
    """
    if links.time is not None and not spec.disjoint:
        raise ValueError("links with times need disjoint sampling: each sees a time of its own")
    src, dst = links.src, links.dst
    if negatives is not None:
        dst = np.concatenate([dst, negatives[1]])
        if spec.mode == "binary":
            src = np.concatenate([src, negatives[0]])
    if spec.disjoint:
        sets, src_places, dst_places = _trees(spec, links, src, dst)
    else:
        sets, src_places, dst_places = _distinct(spec, src, dst)
    count = len(links)
    if spec.mode == "triplet":
        rest = dst_places[count:]
        amount = int(spec.amount)
        shaped = rest.reshape(amount, count).T if spec.disjoint else rest.reshape(count, amount)
        index = {
            "src_index": src_places,
            "dst_pos_index": dst_places[:count],
            "dst_neg_index": np.ascontiguousarray(shaped[:, 0] if amount == 1 else shaped),
        }
    else:
        index = {"edge_label_index": np.concatenate([src_places, dst_places]).reshape(2, -1)}
    return LinkSeeds(sets, index, count, spec.num_negatives(count))


def _trees(
    spec: LinkSpec, links: Links, src: Int64Array, dst: Int64Array
) -> tuple[list[SeedSet], Int64Array, Int64Array]:
    """Each end a seed of its own: sources, then destinations."""
    src_time = dst_time = None
    if links.time is not None:
        dst_time = repeated(links.time, spec)
        src_time = dst_time if spec.mode == "binary" else links.time
    src_places, dst_places = np.arange(len(src)), np.arange(len(dst))
    if spec.src_type != spec.dst_type:
        sets = [SeedSet(spec.src_type, src, src_time), SeedSet(spec.dst_type, dst, dst_time)]
        return sets, src_places, dst_places
    time = None
    if src_time is not None and dst_time is not None:
        time = np.concatenate([src_time, dst_time])
    sets = [SeedSet(spec.src_type, np.concatenate([src, dst]), time)]
    return sets, src_places, dst_places + len(src)


def _distinct(
    spec: LinkSpec, src: Int64Array, dst: Int64Array
) -> tuple[list[SeedSet], Int64Array, Int64Array]:
    """Each node a seed, ascending by id."""
    if spec.src_type != spec.dst_type:
        src_ids, src_places = _numbered(src)
        dst_ids, dst_places = _numbered(dst)
        return (
            [SeedSet(spec.src_type, src_ids), SeedSet(spec.dst_type, dst_ids)],
            src_places,
            dst_places,
        )
    ids, places = _numbered(np.concatenate([src, dst]))
    return [SeedSet(spec.src_type, ids)], places[: len(src)], places[len(src) :]


def _numbered(values: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The distinct values, ascending, and the place of each value among them.

    As `np.unique` with `return_inverse`, in half its time for few values.
    """
    ids = np.unique(values)
    return ids, np.searchsorted(ids, values)


class LinkSampler:
    """Samples batches of links.

    Args:
        spec: what they are.
        negatives: draws negatives; needed if the spec asks for some.
        to_engine: the engine's ids of nodes; default: their original ids.
    """

    def __init__(
        self,
        spec: LinkSpec,
        negatives: NegativeSampler | None = None,
        to_engine: ToEngine | None = None,
    ) -> None:
        if spec.mode is not None and negatives is None:
            raise ValueError("links with negatives need a sampler of negatives")
        self.spec = spec
        self._negatives = negatives
        self._to_engine = to_engine or (lambda node_type, ids: ids)

    def sample(
        self, engine: Engine, links: Links, run_key: int, batch: int
    ) -> Generator[list[Ticket], None, tuple[_native.Subgraph, LinkSeeds]]:
        """Draws a batch; yields the tickets that it waits for.

        Args:
            engine: draws the neighbourhoods, and says which edges there are.
            links: the batch's links.
            run_key: key of the epoch.
            batch: index of the batch.

        Returns:
            The subgraph, to be handed back with `engine.release`, and the seeds.

        Raises:
            ValueError: there is no strict negative.
            IndexError: an end of a link does not exist.
        """
        negatives = yield from self._draw_negatives(engine, links, run_key, batch)
        seeds = lay_out(self.spec, links, negatives)
        sets = [SeedSet(t, self._to_engine(t, ids), times) for t, ids, times in seeds.sets]
        exclude = self._exclusions(links)
        subgraph = yield from engine.sample(sets, run_key, batch, exclude)
        return subgraph, seeds

    def _draw_negatives(
        self, engine: Engine, links: Links, run_key: int, batch: int
    ) -> Generator[list[Ticket], None, tuple[Int64Array, Int64Array] | None]:
        spec = self.spec
        if self._negatives is None or spec.mode is None:
            return None
        time = None if links.time is None else repeated(links.time, spec)[len(links) :]
        drawn = yield from self._negatives.sample(
            spec.num_negatives(len(links)),
            negative_sources(spec, links),
            time,
            run_key,
            batch,
            (lambda src, dst: self._are_edges(engine, src, dst)) if spec.strict else None,
        )
        return drawn

    def _are_edges(
        self, engine: Engine, src: Int64Array, dst: Int64Array
    ) -> Generator[list[Ticket], None, BoolArray]:
        assert self.spec.relation is not None
        found = yield from engine.has_edges(
            self.spec.relation, *self._rows_and_neighbors(src, dst, turned=False)
        )
        return found

    def _exclusions(self, links: Links) -> list[Exclusion]:
        return [
            Exclusion(relation, *self._rows_and_neighbors(links.src, links.dst, turned))
            for relation, turned in self.spec.excluded
        ]

    def _rows_and_neighbors(
        self, src: Int64Array, dst: Int64Array, turned: bool
    ) -> tuple[Int64Array, Int64Array]:
        """The nodes whose neighbours an edge type holds, and the neighbours, in the engine's ids.

        Args:
            src: sources of links.
            dst: their destinations.
            turned: the edges of the type run from destinations to sources.
        """
        src = self._to_engine(self.spec.src_type, src)
        dst = self._to_engine(self.spec.dst_type, dst)
        return (dst, src) if turned == (self.spec.edge_dir == "out") else (src, dst)
