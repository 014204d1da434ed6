"""`StepMethod`: a user's own method, step by step, in NumPy. Imports no torch.

A subclass defines how many steps there are, how many neighbours each step draws, and which. The
engine asks the owners of rows for neighbours and adds the picks to the batch.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from khop.sampler.methods.access import GraphAccess, Rows, Waiting, add_all_seeds
from khop.sampler.methods.base import ProgramMethod
from khop.sampler.methods.entries import numbered, ranges
from khop.sampler.methods.transits import Sample, Transits
from khop.typing import Array, Float64Array, Int64Array, IntArray

_MOST_STEPS, _LARGEST_SAMPLE = 1000, 1 << 24
_NO_IDS = np.empty(0, np.int64)

StepPicks: TypeAlias = IntArray | tuple[IntArray, npt.NDArray[np.floating]]
"""Entries (see `Transits`) that a step picks. With `edge_values`: (entries, their values)."""


class StepMethod(ProgramMethod):
    """Base of users' own methods: steps that pick among the neighbours of nodes, in NumPy.

    The batch is one `Sample`. In each step `step_transits` chooses the *transits*, nodes whose
    neighbours are drawn, and `next` picks among the neighbours, for all transits at once.
    Subclasses are frozen dataclasses with the decorator `register`. Their fields are sent to
    sampler processes and graph servers, which need the module that defines them
    (`khop serve --methods`). The batches are the same over any number of partitions if all random
    numbers come from methods of `Transits` and `Sample`.

    Individual steps pick `sample_size` neighbours for each transit, and each pick is an edge of the
    batch. Collective steps pick `sample_size` neighbours for all transits together, and the batch
    gets all edges from the picks to the transits. Whole rows are read. A node can be a transit in
    several steps. Edges of a step lead to nodes of earlier steps, which are a prefix of the batch's
    nodes. Graphs must be homogeneous and without times.

    Method: the interface of NextDoor (https://dl.acm.org/doi/10.1145/3447786.3456244).

    Attributes:
        sampling_type: 'individual' or 'collective'.
        needs_degrees: True if the method reads `Transits.degrees`, which are requested from the
            neighbours' owners.
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
    _is_homogeneous: ClassVar[bool] = True

    @abstractmethod
    def steps(self) -> int:
        """Return the number of steps, 1 to 1,000."""

    @abstractmethod
    def sample_size(self, step: int) -> int:
        """Return the number of picks of a step, 1 to 2^24: per transit, or of all if collective."""

    @abstractmethod
    def next(self, transits: Transits, step: int) -> StepPicks:
        """Pick neighbours for all transits of a step.

        Args:
            transits: the transits and their neighbours.
            step: number of the step, from 0.

        Returns:
            [t, sample_size] int64 entries of the transits' own rows, or [sample_size] entries of
            all rows if the step is collective. -1 picks none. With `edge_values`: (entries, array
            of the same shape with their values). If a collective step picks a node several times,
            its values are added.
        """

    def unique(self, step: int) -> bool:
        """Return whether a step takes a neighbour at most once per transit.

        A collective step then takes a neighbour at most once in total. Repeated picks are dropped.
        Default: False.
        """
        del step
        return False

    def step_transits(self, step: int, sample: Sample) -> Int64Array:
        """Return the transits of a step: nodes of the sample, [t] int64.

        Default: the nodes that the previous step added (in step 0 the seeds), so that each node
        draws once. For walks that stay separate when they meet, return the previous picks.
        Collective steps take each transit once.
        """
        del step
        return sample.new

    @property
    def num_neighbors(self) -> list[int]:
        """Fan-out of each step: its sample size, after checks.

        Raises:
            TypeError, ValueError: an invalid number of steps, sample size or attribute of the
                class, which the message names.
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

    def draw(self, graph: GraphAccess) -> Waiting[None]:
        add_all_seeds(graph)
        batch = _BatchNodes(*numbered(graph.subgraph.frontier(0)[0]))
        nodes = yield from graph.original_ids(0, batch.ids)
        sample = Sample(nodes, nodes, key=graph.key)
        values: list[Array] = []
        for step, size in enumerate(self.num_neighbors):
            ids = self._checked_transits(step, sample)
            in_order = np.argsort(sample.nodes)
            numbers = in_order[np.searchsorted(sample.nodes, ids, sorter=in_order)]
            rows = yield from graph.neighbors(0, batch.ids[numbers])
            # Neighbours by the engine's ids, each once, and as methods see them.
            neighbors, of_entry = np.unique(rows[1], return_inverse=True)
            original = yield from graph.original_ids(0, neighbors)
            degrees = None
            if self.needs_degrees:
                degrees = (yield from graph.degrees(0, neighbors))[of_entry]
            transits = Transits.of(ids, rows[0], original[of_entry], degrees, sample)
            picks, entries, norms = self._pick(transits, step, size)
            order = batch.add_hop(graph, numbers[transits.rows[entries]], rows, entries)
            values.append(norms[order])
            num_known, batch = len(batch.ids), batch.after_hop(graph)
            new = original[np.searchsorted(neighbors, batch.ids[num_known:])]
            sample = sample.after(new, ids, picks)
        for name in self.edge_values:
            graph.values[f"e0.{name}"] = np.concatenate(values).astype(np.float32)

    def _checked_transits(self, step: int, sample: Sample) -> Int64Array:
        """Return the result of `step_transits`, checked.

        Raises:
            TypeError, ValueError: they are no nodes of the sample.
        """
        name = f"{type(self).__name__}.step_transits"
        transits = _checked_integers(self.step_transits(step, sample), name)
        if transits.ndim != 1 or not np.isin(transits, sample.nodes).all():
            raise ValueError(
                f"{name} must return a vector of nodes that are in the sample (got "
                f"{_shown(transits)} in step {step})"
            )
        ids = transits.astype(np.int64)
        return numbered(ids)[0] if self.sampling_type == "collective" else ids

    def _pick(
        self, transits: Transits, step: int, size: int
    ) -> tuple[Int64Array, Int64Array, Float64Array]:
        """Call the user's `next`, and check its result.

        Returns the picked nodes, the entries that become edges, and their values.
        """
        name = f"{type(self).__name__}.next"
        returned: object = self.next(transits, step)
        values: object = None
        if self.edge_values:
            if not isinstance(returned, tuple) or len(returned) != 2:
                raise TypeError(
                    f"{name} must return picks and their values, as {type(self).__name__} has "
                    f"edge_values (got {_shown(returned)})"
                )
            returned, values = returned
        collective = self.sampling_type == "collective"
        shape = (size,) if collective else (len(transits.ids), size)
        entries = _checked_integers(returned, name)
        if entries.shape != shape:
            raise ValueError(
                f"{name} must return picks of shape {shape} in step {step}: "
                f"{'sample_size' if collective else 'transits, sample_size'} (got {entries.shape})"
            )
        if values is None:
            values = np.ones(shape)
        if not isinstance(values, np.ndarray) or values.dtype.kind != "f":
            raise TypeError(f"{name} must return values as array of floats (got {_shown(values)})")
        if values.shape != shape:
            raise ValueError(
                f"{name} must return values of the shape of picks, {shape} (got {values.shape})"
            )
        picks = entries.astype(np.int64)
        _check_entries(picks, transits, collective, f"{name} in step {step}")
        if self.unique(step):
            picks = _without_repeats(picks, transits)
        nodes = np.full(shape, -1, np.int64)
        nodes[picks >= 0] = transits.neighbors[picks[picks >= 0]]
        if collective:
            return nodes, *_all_edges(nodes, values, transits)
        return nodes, picks[picks >= 0], values[picks >= 0].astype(np.float64)


class _BatchNodes(NamedTuple):
    """Nodes of a batch. A seed that occurs k times among the seeds has k positions.

    Attributes:
        ids: [m] int64 engine's ids, each once.
        numbers: [n] int64, index in `ids` of the node at each position of the batch.
    """

    ids: Int64Array
    numbers: Int64Array

    def add_hop(
        self, graph: GraphAccess, numbers: Int64Array, rows: Rows, entries: Int64Array
    ) -> Int64Array:
        """Add edges to the batch. A node with several positions gets its edges at each position.

        Args:
            graph: the graph. Its frontier is the whole batch.
            numbers: [k] int64, index in `ids` of the node whose neighbour each entry is.
            rows: the rows.
            entries: [k] int64, entries of the rows.

        Returns:
            For each added edge, the index of its entry in `entries`.
        """
        by_node = np.argsort(numbers, kind="stable")
        counts = np.bincount(numbers, minlength=len(self.ids))
        begins = np.cumsum(counts) - counts
        order = by_node[ranges(begins[self.numbers], counts[self.numbers])]
        added = entries[order]
        edges = None if rows[2] is None else rows[2][added]
        graph.add_hop(0, (counts[self.numbers].astype(np.int32), rows[1][added], edges))
        graph.subgraph.end_hop(all=True)
        return order

    def after_hop(self, graph: GraphAccess) -> _BatchNodes:
        """Return the batch's nodes, with their ids and positions, after `add_hop` added some."""
        added = graph.subgraph.frontier(0)[0][len(self.numbers) :]
        own = np.arange(len(self.ids), len(self.ids) + len(added))
        return _BatchNodes(np.concatenate([self.ids, added]), np.concatenate([self.numbers, own]))


def _checked_count(value: object, most: int, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer (got {value!r})")
    if not 1 <= value <= most:
        raise ValueError(f"{name} must be from 1 to {most:,} (got {value})")
    return int(value)


def _checked_integers(array: object, name: str) -> IntArray:
    """Return the result of a user's method. Raise TypeError unless it is an array of integers."""
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu":
        raise TypeError(f"{name} must return a NumPy array of integers (got {_shown(array)})")
    return array


def _shown(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    return f"a {type(value).__name__}"


def _check_entries(picks: Int64Array, transits: Transits, collective: bool, name: str) -> None:
    """Raise ValueError unless picks are entries of their transit's row, or of any if collective."""
    low, high = np.int64(0), np.int64(len(transits.neighbors))
    if not collective:
        low, high = transits.begins[:, None], (transits.begins + transits.counts)[:, None]
    wrong = (picks != -1) & ((picks < low) | (picks >= high))
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        row = "all rows" if collective else f"transit {index[0]}"
        first, end = (int(np.broadcast_to(bound, picks.shape)[index]) for bound in (low, high))
        entries = f"{first} to {end - 1}" if end > first else "none: it has no neighbours"
        raise ValueError(
            f"{name} picked the entry {picks[index]} at {index}, which is not a neighbour: the "
            f"entries of {row} are {entries}; -1 picks none"
        )


def _without_repeats(picks: Int64Array, transits: Transits) -> Int64Array:
    """Replace picks that a row has picked before by -1. A collective step's picks are one row."""
    rows = np.atleast_2d(picks)
    nodes = np.where(rows >= 0, np.append(transits.neighbors, -1)[rows], -1)
    order = np.argsort(nodes, axis=1, kind="stable")
    ordered = np.take_along_axis(nodes, order, axis=1)
    repeated = np.zeros(rows.shape, bool)
    repeated[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    first = np.empty_like(rows)
    np.put_along_axis(first, order, np.where(repeated, -1, np.take_along_axis(rows, order, 1)), 1)
    return first.reshape(picks.shape)


def _all_edges(
    nodes: Int64Array, values: Array, transits: Transits
) -> tuple[Int64Array, Float64Array]:
    """Return all entries whose neighbour was picked, and the sum of the picks' values for each.

    A collective step makes edges of all these entries.
    """
    picked, inverse = np.unique(nodes[nodes >= 0], return_inverse=True)
    if not len(picked):
        return _NO_IDS, np.empty(0)
    sums = np.zeros(len(picked))
    np.add.at(sums, inverse, values[nodes >= 0])  # in the order of the picks
    of_entry = np.minimum(np.searchsorted(picked, transits.neighbors), len(picked) - 1)
    entries = np.flatnonzero(picked[of_entry] == transits.neighbors).astype(np.int64)
    return entries, sums[of_entry[entries]]
