"""`StepMethod`: a user's own method, step by step, in NumPy. Imports no torch.

A subclass says how many steps there are, how many neighbours each draws, and which: the engine asks
the owners of rows for neighbours and adds what was picked to the batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from typing import Any, ClassVar, Literal

import numpy as np

from khop.sampler.methods.access import GraphAccess
from khop.sampler.methods.base import ProgramMethod
from khop.sampler.methods.places import Names, Places, find_places
from khop.sampler.methods.transits import Sample, Transits
from khop.typing import Array, Float64Array, Int64Array

_MOST_STEPS, _LARGEST_SAMPLE = 1000, 1 << 24
_NO_IDS = np.empty(0, np.int64)


class StepMethod(ProgramMethod):
    """Base of users' own methods: steps that pick among the neighbours of nodes, in NumPy.

    The batch is one sample. In each step `step_transits` says whose neighbours are drawn, and
    `next` picks among them, for all transits at once. Subclasses are frozen dataclasses with the
    decorator `register`; their fields travel to sampler processes and graph servers, which need the
    module that defines them (`khop serve --methods`). The batches are the same over any number of
    partitions as long as random numbers are the words of `Transits` and `Sample`.

    Individual steps pick `sample_size` neighbours for each transit, and each pick is an edge of the
    batch. Collective ones pick `sample_size` neighbours for all transits together, and the batch
    gets all edges from these to the transits. Whole rows are read. Nodes may draw in several steps:
    edges of a step lead to nodes of all steps before it, which are a prefix of the batch's nodes.
    Homogeneous graphs without times.

    Method: the interface of NextDoor (https://dl.acm.org/doi/10.1145/3447786.3456244).

    Attributes:
        sampling_type: 'individual' or 'collective'.
        needs_degrees: `Transits.degrees` are wanted, which owners of neighbours are asked for.
        edge_values: the name of the edges' values, such as ('edge_norm',), if `next` returns any.

    Example:
        >>> class Walk(StepMethod):
        ...     def steps(self): return 3
        ...     def sample_size(self, step): return 1
        ...     def next(self, transits, step): return transits.uniform(1)
        >>> loader = NeighborLoader(data, register(dataclass(frozen=True)(Walk))(), batch_size=2)
    """

    sampling_type: ClassVar[Literal["individual", "collective"]] = "individual"
    needs_degrees: ClassVar[bool] = False

    @abstractmethod
    def steps(self) -> int:
        """Return the number of steps, 1 to 1,000."""

    @abstractmethod
    def sample_size(self, step: int) -> int:
        """Return how many neighbours a step picks, 1 to 2^24: for each transit, or for all."""

    @abstractmethod
    def next(self, transits: Transits, step: int) -> Any:
        """Pick neighbours for all transits of a step.

        Args:
            transits: the transits and their neighbours.
            step: from 0.

        Returns:
            [t, sample_size] int64 entries of the transits' own rows, or [sample_size] of all rows
            if the step is collective; -1 for none. With `edge_values`: these and an array of the
            same shape, the values of the picks. If a collective step picks a node several times,
            its values are added.
        """

    def unique(self, step: int) -> bool:
        """Return whether a step takes a neighbour once for a transit, or, if collective, at all.

        Further picks of it are dropped then. By default False.
        """
        del step
        return False

    def step_transits(self, step: int, sample: Sample) -> Int64Array:
        """Return the nodes whose neighbours a step draws: nodes of the sample, [t] int64.

        By default those that the previous step added, so that each node draws once; in step 0 the
        seeds. A method of walks that go on separately where they meet returns the previous picks.
        Collective steps take each transit once.
        """
        del step
        return sample.new

    @property
    def num_neighbors(self) -> list[int]:
        """Sample sizes of all steps, checked.

        Raises:
            TypeError, ValueError: the class's number of steps, a sample size or an attribute is
                none; the message names the class.
        """
        name = type(self).__name__
        if self.sampling_type not in ("individual", "collective"):
            raise ValueError(
                f"{name}.sampling_type must be 'individual' or 'collective' "
                f"(got {self.sampling_type!r})"
            )
        if len(self.edge_values) > 1 or self.node_values:
            raise ValueError(
                f"{name} may name one value of edges and none of nodes (got edge_values="
                f"{self.edge_values!r}, node_values={self.node_values!r})"
            )
        num_steps = _checked_count(self.steps(), _MOST_STEPS, f"{name}.steps()")
        return [
            _checked_count(self.sample_size(step), _LARGEST_SAMPLE, f"{name}.sample_size({step})")
            for step in range(num_steps)
        ]

    def check_form(self, heterogeneous: bool, disjoint: bool) -> None:
        """See `SamplingMethod`."""
        super().check_form(heterogeneous, disjoint)
        if heterogeneous:
            raise ValueError(
                f"{type(self).__name__} draws from graphs of one node and edge type: this one is "
                "heterogeneous"
            )

    def draw(self, graph: GraphAccess) -> Generator[list[Any], None, None]:
        """See `ProgramMethod`."""
        for node_type, seeds, _ in graph.seeds:
            graph.subgraph.add_seeds(node_type, seeds)
        batch = Places.of(graph)
        nodes = yield from graph.original_ids(0, batch.ids)
        sample = Sample(nodes, nodes, key=graph.key)
        values: list[Array] = []
        for step, size in enumerate(self.num_neighbors):
            wanted = self._checked_transits(step, sample)
            where = find_places(sample.nodes, wanted)
            rows = yield from graph.neighbors(0, batch.ids[where])
            names = yield from Names.of(graph, rows[1])
            degrees = None
            if self.needs_degrees:
                degrees = (yield from graph.degrees(0, names.ids))[names.entries]
            transits = Transits.of(wanted, rows[0], names.of_entries, degrees, sample)
            picks, kept, norms = self._pick(transits, step, size)
            order = batch.add_hop(graph, where[transits.rows[kept]], rows, kept)
            values.append(norms[order])
            known, batch = len(batch.ids), batch.after_hop(graph)
            sample = sample.after(names.lookup(batch.ids[known:]), wanted, picks)
        for name in self.edge_values:
            graph.values[f"e0.{name}"] = np.concatenate(values).astype(np.float32)

    def _checked_transits(self, step: int, sample: Sample) -> Int64Array:
        """Return the nodes of `step_transits`.

        Raises:
            TypeError, ValueError: they are no nodes of the sample.
        """
        wanted, what = self.step_transits(step, sample), f"{type(self).__name__}.step_transits"
        _check_integers(wanted, what)
        if wanted.ndim != 1 or not np.isin(wanted, sample.nodes).all():
            raise ValueError(
                f"{what} must return a vector of nodes that are in the sample (got "
                f"{_shown(wanted)} in step {step})"
            )
        wanted = wanted.astype(np.int64)
        if self.sampling_type == "collective":
            _, first = np.unique(wanted, return_index=True)
            wanted = wanted[np.sort(first)]
        return wanted

    def _pick(
        self, transits: Transits, step: int, size: int
    ) -> tuple[Int64Array, Int64Array, Float64Array]:
        """Call `next`; return the picked nodes, the batch's entries and their values."""
        what = f"{type(self).__name__}.next"
        picks = self.next(transits, step)
        values = None
        if self.edge_values:
            if not isinstance(picks, tuple) or len(picks) != 2:
                raise TypeError(
                    f"{what} must return picks and their values, as {type(self).__name__} has "
                    f"edge_values (got {_shown(picks)})"
                )
            picks, values = picks
        collective = self.sampling_type == "collective"
        shape = (size,) if collective else (len(transits.ids), size)
        _check_integers(picks, what)
        if picks.shape != shape:
            raise ValueError(
                f"{what} must return picks of shape {shape} in step {step}: "
                f"{'sample_size' if collective else 'transits, sample_size'} (got {picks.shape})"
            )
        if values is None:
            values = np.ones(shape)
        elif not isinstance(values, np.ndarray) or values.dtype.kind != "f":
            raise TypeError(f"{what} must return values as array of floats (got {_shown(values)})")
        elif values.shape != shape:
            raise ValueError(
                f"{what} must return values of the shape of picks, {shape} (got {values.shape})"
            )
        picks = picks.astype(np.int64)
        _check_entries(picks, transits, collective, f"{what} in step {step}")
        if self.unique(step):
            picks = _without_repeats(picks, transits)
        nodes = np.full(shape, -1, np.int64)
        nodes[picks >= 0] = transits.neighbors[picks[picks >= 0]]
        if collective:
            return nodes, *_all_edges(nodes, values, transits)
        return nodes, picks[picks >= 0], values[picks >= 0].astype(np.float64)


def _checked_count(value: Any, most: int, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{what} must be an integer (got {value!r})")
    if not 1 <= value <= most:
        raise ValueError(f"{what} must be from 1 to {most:,} (got {value})")
    return int(value)


def _check_integers(array: Any, what: str) -> None:
    """Raises TypeError unless a method returned an array of integers."""
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu":
        raise TypeError(f"{what} must return a NumPy array of integers (got {_shown(array)})")


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    return f"a {type(value).__name__}"


def _check_entries(picks: Int64Array, transits: Transits, collective: bool, what: str) -> None:
    """Raises ValueError unless picks are entries, of the transits' own rows unless collective."""
    low, high = np.int64(0), np.int64(len(transits.neighbors))
    if not collective:
        low, high = transits.begins[:, None], (transits.begins + transits.counts)[:, None]
    wrong = (picks != -1) & ((picks < low) | (picks >= high))
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        row = "all rows" if collective else f"transit {place[0]}"
        first, end = (int(np.broadcast_to(bound, picks.shape)[place]) for bound in (low, high))
        entries = f"{first} to {end - 1}" if end > first else "none: it has no neighbours"
        raise ValueError(
            f"{what} picked the entry {picks[place]} at {place}, which is not a neighbour: the "
            f"entries of {row} are {entries}; -1 picks none"
        )


def _without_repeats(picks: Int64Array, transits: Transits) -> Int64Array:
    """Return picks with -1 where a row (a collective step has one) picked a neighbour before."""
    rows = np.atleast_2d(picks)
    found = np.where(rows >= 0, np.append(transits.neighbors, -1)[rows], -1)
    order = np.argsort(found, axis=1, kind="stable")
    ordered = np.take_along_axis(found, order, axis=1)
    repeated = np.zeros(rows.shape, bool)
    repeated[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    first = np.empty_like(rows)
    np.put_along_axis(first, order, np.where(repeated, -1, np.take_along_axis(rows, order, 1)), 1)
    return first.reshape(picks.shape)


def _all_edges(
    nodes: Int64Array, values: Array, transits: Transits
) -> tuple[Int64Array, Float64Array]:
    """Return all entries whose neighbour was picked, and the sums of its picks' values."""
    picked, which = np.unique(nodes[nodes >= 0], return_inverse=True)
    sums = np.zeros(len(picked))
    np.add.at(sums, which, values[nodes >= 0])  # in the order of the picks
    if not len(picked):
        return _NO_IDS, np.empty(0)
    places = np.minimum(np.searchsorted(picked, transits.neighbors), len(picked) - 1)
    kept: Int64Array = np.flatnonzero(picked[places] == transits.neighbors).astype(np.int64)
    return kept, sums[places[kept]]
