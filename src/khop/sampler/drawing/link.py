"""Sampling of link batches: from links to seeds, and to the positions of their ends in a batch.

A batch of links is sampled in four steps, the third by the engine, the others here and in
`negative`:

1. Negatives are drawn, if the loader has any.
2. The ends of all links become seeds, laid out as in PyG: without repetition and ascending by id,
   or, in a disjoint batch, a separate tree for each end.
3. The engine draws their neighbourhoods, on request without the links themselves.
4. Index arrays get the positions of the ends in the batch.

Links name nodes by their original ids, which determine the order of seeds. A function of the caller
converts them to the engine's ids, which differ in a partition. Imports no torch and needs no graph
in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from khop import _native
from khop.data.arrays import distinct
from khop.sampler.drawing.engine import Engine
from khop.sampler.drawing.negative import Candidates, NegativeSampler
from khop.sampler.link_spec import LinkSpec
from khop.sampler.methods.access import Waiting
from khop.sampler.requests import Exclusion, SeedSet
from khop.typing import BoolArray, Int64Array

if TYPE_CHECKING:
    from torch import Tensor

_Trees = TypeVar("_Trees", "Int64Array", "Tensor")

ToEngine: TypeAlias = Callable[[int, Int64Array], Int64Array]
"""Function from the index of a node type and original ids to the engine's ids."""


@dataclass(frozen=True)
class Links:
    """The links of a batch: pairs of nodes, by original ids.

    Attributes:
        src: [n] int64 sources.
        dst: [n] int64 destinations.
        time: [n] int64 times of the links, or None.
    """

    src: Int64Array
    dst: Int64Array
    time: Int64Array | None = None

    def __len__(self) -> int:
        return len(self.src)


@dataclass(frozen=True)
class LinkSeeds:
    """The seeds of a batch, and the positions of its links' ends among the nodes of their types.

    Attributes:
        sets: seeds, sampled in this order, by original ids. Tree i of a disjoint batch begins at
            seed i.
        index: int64 arrays, or tensors if a device makes the seeds. Without negatives or with
            binary ones `edge_label_index` [2, num_links + num_negatives]. With triplets `src_index`
            [num_links], `dst_pos_index` [num_links] and `dst_neg_index` [num_links] or [num_links,
            amount].
        num_links: number of links.
        num_negatives: number of negatives.
    """

    sets: list[SeedSet]
    index: dict[str, Any] = field(default_factory=dict)
    num_links: int = 0
    num_negatives: int = 0


def link_of_tree(trees: _Trees, num_links: int) -> _Trees:
    """Return the index of the link that each tree (end of a link) of a disjoint batch belongs to.

    As in PyG. With a fractional amount of binary negatives, a link's two ends belong to different
    links.
    """
    return trees % num_links if num_links else trees


def negative_sources(spec: LinkSpec, links: Links) -> Int64Array | None:
    """Return the source of each triplet negative. None for binary ones, whose sources are drawn."""
    if spec.mode != "triplet":
        return None
    amount = int(spec.amount)
    return np.tile(links.src, amount) if spec.disjoint else np.repeat(links.src, amount)


def repeated(values: Int64Array, spec: LinkSpec) -> Int64Array:
    """Repeat values of links, such as times, until each link and negative of `spec` has one."""
    rounds = 0 if spec.mode is None else math.ceil(spec.amount)
    return np.tile(values, 1 + rounds)[: len(values) + spec.num_negatives(len(values))]


def lay_out(
    spec: LinkSpec, links: Links, negatives: tuple[Int64Array, Int64Array] | None
) -> LinkSeeds:
    """Return the seeds of a link batch, in PyG's order, and the positions of its links' ends.

    Args:
        spec: properties of the batches.
        links: the links.
        negatives: sources and destinations of the negatives. If None, there are none.

    Raises:
        ValueError: links with times in batches that are not disjoint.
    """
    if links.time is not None and not spec.disjoint:
        raise ValueError("links with times need disjoint sampling: each has a time of its own")
    src, dst = links.src, links.dst
    if negatives is not None:
        dst = np.concatenate([dst, negatives[1]])
        if spec.mode == "binary":
            src = np.concatenate([src, negatives[0]])
    if spec.disjoint:
        sets, src_at, dst_at = _trees(spec, links, src, dst)
    else:
        sets, src_at, dst_at = _distinct(spec, src, dst)
    count = len(links)
    if spec.mode == "triplet" and spec.disjoint:  # those of a link side by side
        rest = dst_at[count:].reshape(int(spec.amount), count).T
        dst_at = np.concatenate([dst_at[:count], rest.ravel()])
    index = named_index(spec, np.concatenate([src_at, dst_at]), count)
    return LinkSeeds(sets, index, count, spec.num_negatives(count))


def named_index(spec: LinkSpec, positions: _Trees, num_links: int) -> dict[str, _Trees]:
    """Return the positions of ends by the names of `LinkSeeds.index`.

    `positions` are [n] int64: of sources, then of destinations. Negatives are behind the links.
    Negatives of one link of triplets are side by side.
    """
    if spec.mode != "triplet":
        return {"edge_label_index": positions.reshape(2, -1)}
    negatives, amount = positions[2 * num_links :], int(spec.amount)
    return {
        "src_index": positions[:num_links],
        "dst_pos_index": positions[num_links : 2 * num_links],
        "dst_neg_index": negatives if amount == 1 else negatives.reshape(num_links, amount),
    }


def _trees(
    spec: LinkSpec, links: Links, src: Int64Array, dst: Int64Array
) -> tuple[list[SeedSet], Int64Array, Int64Array]:
    """Make each end of a link a separate seed: sources, then destinations.

    Returns the seeds, and the positions of sources and of destinations among them.
    """
    src_time = dst_time = None
    if links.time is not None:
        dst_time = repeated(links.time, spec)
        src_time = dst_time if spec.mode == "binary" else links.time
    src_at, dst_at = np.arange(len(src)), np.arange(len(dst))
    if spec.src_type != spec.dst_type:
        sets = [SeedSet(spec.src_type, src, src_time), SeedSet(spec.dst_type, dst, dst_time)]
        return sets, src_at, dst_at
    time = None
    if src_time is not None and dst_time is not None:
        time = np.concatenate([src_time, dst_time])
    sets = [SeedSet(spec.src_type, np.concatenate([src, dst]), time)]
    return sets, src_at, dst_at + len(src)


def _distinct(
    spec: LinkSpec, src: Int64Array, dst: Int64Array
) -> tuple[list[SeedSet], Int64Array, Int64Array]:
    """Make one seed of each distinct node, ascending by id. Returns seeds and positions."""
    if spec.src_type != spec.dst_type:
        src_ids, src_at = _numbered(src)
        dst_ids, dst_at = _numbered(dst)
        return ([SeedSet(spec.src_type, src_ids), SeedSet(spec.dst_type, dst_ids)], src_at, dst_at)
    ids, at = _numbered(np.concatenate([src, dst]))
    return [SeedSet(spec.src_type, ids)], at[: len(src)], at[len(src) :]


def _numbered(values: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the distinct values, ascending, and the position of each value among them.

    As `np.unique` with `return_inverse`, in half its time for few values.
    """
    ids = distinct(values)
    return ids, np.searchsorted(ids, values)


class LinkSampler:
    """Sampler of link batches: draws negatives, makes seeds, and has an engine draw neighbours.

    Args:
        spec: properties of the batches.
        negatives: draws negatives. Required for a spec with negatives.
        to_engine: maps original ids to the engine's. If None, they are the same.
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
    ) -> Waiting[tuple[_native.Subgraph, LinkSeeds]]:
        """Draw one batch.

        Args:
            engine: draws the neighbourhoods, and checks which edges exist.
            links: the batch's links.
            run_key: key of the epoch.
            batch: index of the batch.

        Returns:
            The subgraph, to be given back with `engine.release`, and the seeds.

        Raises:
            ValueError: no strict negative exists.
            IndexError: an end of a link does not exist.
        """
        negatives = yield from self._draw_negatives(engine, links, run_key, batch)
        seeds = lay_out(self.spec, links, negatives)
        sets = [SeedSet(t, self._to_engine(t, ids), times) for t, ids, times in seeds.sets]
        exclude = [
            Exclusion(relation, *self._rows_and_neighbors(links.src, links.dst, turned))
            for relation, turned in self.spec.excluded
        ]
        subgraph = yield from engine.sample(sets, run_key, batch, exclude)
        return subgraph, seeds

    @property
    def candidates(self) -> tuple[Candidates | None, Candidates | None]:
        """Nodes that sources and destinations of negatives are drawn from, if they are drawn."""
        return (None, None) if self._negatives is None else self._negatives.ends

    def _draw_negatives(
        self, engine: Engine, links: Links, run_key: int, batch: int
    ) -> Waiting[tuple[Int64Array, Int64Array] | None]:
        spec = self.spec
        if self._negatives is None or spec.mode is None:
            return None
        time = None if links.time is None else repeated(links.time, spec)[len(links) :]

        def are_edges(src: Int64Array, dst: Int64Array) -> Waiting[BoolArray]:
            assert spec.relation is not None
            ends = self._rows_and_neighbors(src, dst, turned=False)
            return engine.rows.has_edges(spec.relation, *ends)

        return (
            yield from self._negatives.sample(
                spec.num_negatives(len(links)),
                negative_sources(spec, links),
                time,
                run_key,
                batch,
                are_edges if spec.strict else None,
            )
        )

    def _rows_and_neighbors(
        self, src: Int64Array, dst: Int64Array, turned: bool
    ) -> tuple[Int64Array, Int64Array]:
        """Return the ends of links as (rows, neighbours) of an edge type, in the engine's ids.

        Args:
            src: sources of links.
            dst: their destinations.
            turned: True if the edges of the type run from destinations to sources.
        """
        src = self._to_engine(self.spec.src_type, src)
        dst = self._to_engine(self.spec.dst_type, dst)
        return (dst, src) if turned == (self.spec.edge_dir == "out") else (src, dst)
