"""Draws of batches over several partitions, each on the GPU of its trainer. Runs in trainers.

A hop has four calls of all trainers: numbers of rows, ids of rows, counts of neighbours, and
neighbours. The ids of a frontier go to the trainers that have their rows. A trainer draws all rows
that it receives at once. Replies are merged in the order of the frontier. Random numbers depend on
original ids, so batches equal the CPU's.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from khop import _native
from khop.data.tickets import Ticket
from khop.distributed.loaders.device_exchange import (
    MOST_ROWS,
    DeviceExchange,
    Shares,
    Split,
    by_trainer,
    sums,
)
from khop.errors import ProtocolError
from khop.sampler.drawing.view import GraphView
from khop.sampler.pyg.device import TorchDevice
from khop.sampler.requests import Exclusion, SeedSet
from khop.sampler.spec import SamplingSpec


class _Hop(NamedTuple):
    """One hop of a batch.

    Attributes:
        depth: index of the hop.
        relations: edge types that it draws from, in the order of the batch's rows.
        splits: for each of them, the frontier in the order of owners.
        shares: rows that trainers ask each other for. Each edge type is a set.
    """

    depth: int
    relations: list[int]
    splits: list[Split]
    shares: Shares


class ExchangedEngine:
    """Engine that draws batches together with the engines of all other trainers.

    The caller holds the device's lock, and torch works on the device's stream.

    Args:
        view: this trainer's partition.
        spec: how neighbours are drawn.
        device: this trainer's device.
        graphs: the partition on the device, for each edge type.
        exchange: the exchange with other trainers.
        batch_size: maximum number of seeds in a batch of any trainer.

    Attributes:
        most_rows: for each node type, maximum number of this trainer's nodes in any batch.
    """

    def __init__(
        self,
        view: GraphView,
        spec: SamplingSpec,
        device: TorchDevice,
        graphs: list[_native.DeviceGraph],
        exchange: DeviceExchange,
        batch_size: int,
    ) -> None:
        self._view, self._spec, self._device, self._exchange = view, spec, device, exchange
        relations = range(len(view.relations))
        self._options = [[r.options() for r in spec.hop_requests(i)] for i in relations]
        named = [spec.records_edge(r) for r in relations]
        names = [(0, 8, 0) for _ in relations]  # edges are called by their numbers in the folder
        self._plan = _native.DevicePlan(device.native, graphs, self._options, False, names, named)
        num_nodes = [view.num_nodes[destination] for _, destination in view.relations]
        self._draw = _native.DeviceRowDraw(device.native, graphs, num_nodes, spec.disjoint)
        self._order = sorted(relations, key=lambda r: view.relations[r][0])
        self._bounds = [torch.tensor(b, device=device.torch_device) for b in view.bounds]
        # A node is in a frontier once, or once in each tree. Seeds may be repeated.
        trees = batch_size if spec.disjoint else 1
        own = [bounds[view.part + 1] - bounds[view.part] for bounds in view.bounds]
        self.most_rows = [min(trees * count + batch_size, MOST_ROWS) for count in own]
        self._idle: list[_native.DeviceSubgraph] = []

    def sample(
        self, seeds: Sequence[SeedSet], run_key: int, batch: int, exclude: Sequence[Exclusion] = ()
    ) -> Generator[list[Ticket], None, Any]:
        """Draw a batch, while all other trainers draw theirs. See `Engine.sample`.

        Returns:
            A `DeviceSubgraph`, to be given back with `release`.

        Raises:
            ProtocolError: another trainer sent counts that its rows cannot have.
            IndexError: a row or a neighbour does not exist.
        """
        yield from ()
        assert not exclude
        subgraph = self._idle.pop() if self._idle else self._new_subgraph()
        subgraph.draw(self._plan, seeds, run_key, batch, (), merged=True)
        for index in range(self._spec.num_hops):
            relations = [r for r in self._order if self._options[r][index].fanout != 0]
            if not relations:
                subgraph.merge(0, 0, 0, 0, ())
                continue
            hop, rows = self._begin_hop(subgraph, run_key, batch, index, relations)
            self._merge(subgraph, hop, *self._exchange_draws(hop, rows))
        if self._spec.subgraph_type == "bidirectional":
            subgraph.add_reverses(self._spec.reversals, self._spec.keep_edge)
        return subgraph

    def release(self, subgraph: Any) -> None:
        """Take back the buffers of a subgraph that `sample` returned, to be reused."""
        self._idle.append(subgraph)

    def _new_subgraph(self) -> _native.DeviceSubgraph:
        view, spec = self._view, self._spec
        return _native.DeviceSubgraph(
            self._device.native, view.num_nodes, view.relations, spec.with_edge, spec.disjoint
        )

    def _begin_hop(
        self, subgraph: Any, run_key: int, batch: int, index: int, relations: list[int]
    ) -> tuple[_Hop, list[Tensor]]:
        """Split a hop's frontiers among their owners, and announce them.

        Returns:
            The hop, and the rows of each edge type in the order of owners.
        """
        types = [self._view.relations[r][1] for r in relations]
        frontiers = {t: self._frontier(subgraph, t) for t in dict.fromkeys(types)}
        splits = [frontiers[t][1] for t in types]
        most = [self.most_rows[t] for t in types]
        shares = self._exchange.announce(splits, most, _signed(run_key), batch)
        return _Hop(index, relations, splits, shares), [frontiers[t][0] for t in types]

    def _frontier(self, subgraph: Any, node_type: int) -> tuple[Tensor, Split]:
        """Return the newest nodes of a type in the order of owners, and this order.

        Nodes are [n] keys, with temporal sampling [n, 2] keys and times.
        """
        keys = self._device.empty([subgraph.frontier_size(node_type)])
        times = torch.empty_like(keys) if self._spec.temporal else None
        address = 0 if times is None else times.data_ptr()
        subgraph.write_frontier(node_type, keys.data_ptr(), address)
        count = self._view.num_nodes[node_type]
        ids = keys & ((1 << max(0, count - 1).bit_length()) - 1) if self._spec.disjoint else keys
        split = self._exchange.split(ids, self._bounds[node_type])
        return (keys if times is None else torch.stack([keys, times], 1))[split.order], split

    def _exchange_draws(self, hop: _Hop, rows: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Draw the rows that trainers ask for, and exchange what is drawn.

        Args:
            hop: the hop.
            rows: the rows that this trainer asks for, of each edge type in the order of owners.

        Returns:
            Number of edges of each row that this trainer asked for, where they begin, and [n, 1]
            neighbours, or [n, 2] neighbours and edges.
        """
        exchange, device, shares = self._exchange, self._device, hop.shares
        asked = exchange.ask(shares, rows)
        keys, times = asked.t().contiguous() if self._spec.temporal else (asked, None)
        drawn = device.empty([len(keys)])
        totals = self._draw.draw(self._sets(hop, keys, times), drawn.data_ptr())
        entries = device.empty([sum(totals), 1 + self._spec.with_edge])
        self._draw.write(entries.data_ptr(), self._spec.with_edge)
        counts = exchange.send(drawn, sums(shares.asking), sums(shares.asked), shares.step)
        begins, expected = self._spans(hop, counts)
        sent = _grouped(totals, exchange.size)
        return counts, begins, exchange.send(entries, sent, expected, shares.step)

    def _sets(
        self, hop: _Hop, keys: Tensor, times: Tensor | None
    ) -> list[tuple[int, _native.HopOptions, int, int, int]]:
        """Return the sets of rows that trainers ask for, as `DeviceRowDraw.draw` takes them."""
        sets, begin = [], 0
        for counts, (signed, batch) in zip(hop.shares.asking, hop.shares.others, strict=True):
            for relation, count in zip(hop.relations, counts, strict=True):
                source, word = self._view.relations[relation][0], signed % (1 << 64)
                options = self._options[relation][hop.depth]
                options = options.at(word, batch, hop.depth, relation, source)
                time = 0 if times is None else times.data_ptr() + 8 * begin
                sets.append((relation, options, keys.data_ptr() + 8 * begin, time, count))
                begin += count
        return sets

    def _spans(self, hop: _Hop, counts: Tensor) -> tuple[Tensor, list[int]]:
        """Return where the edges of each row begin, and how many each trainer sends. Waits.

        Raises:
            ProtocolError: a trainer announced counts that its rows cannot have.
        """
        if not len(counts):
            return counts, [0] * self._exchange.size
        ends = counts.cumsum(0)
        sets = [
            (rank, relation, num_rows)
            for rank, asked in enumerate(hop.shares.asked)
            for relation, num_rows in zip(hop.relations, asked, strict=True)
        ]
        rows = [0, *itertools.accumulate(num_rows for _, _, num_rows in sets)]
        before = torch.cat([ends.new_zeros(1), ends])[torch.tensor(rows, device=ends.device)]
        low, high, *bounds = torch.cat([torch.stack([*torch.aminmax(counts)]), before]).tolist()
        if low < 0 or high > MOST_ROWS:  # otherwise sums may have overflowed
            raise ProtocolError(f"a trainer announced {low} to {high} neighbours of a row")
        edges = [b - a for a, b in itertools.pairwise(bounds)]
        for (rank, relation, num_rows), count in zip(sets, edges, strict=True):
            most = min(num_rows * self._most_edges(hop, rank, relation), MOST_ROWS)
            if count > most:
                raise ProtocolError(f"trainer {rank} announced {count} neighbours, not 0 to {most}")
        return ends - counts, _grouped(edges, self._exchange.size)

    def _most_edges(self, hop: _Hop, rank: int, relation: int) -> int:
        """Return the maximum number of edges that a trainer draws of a row."""
        fanout, part = self._options[relation][hop.depth].fanout, self._exchange.parts[rank]
        low, high = self._view.edge_bounds[relation][part : part + 2]
        return high - low if fanout < 0 else fanout

    def _merge(
        self, subgraph: Any, hop: _Hop, counts: Tensor, begins: Tensor, entries: Tensor
    ) -> None:
        """Put replies in the order of the frontiers, and merge them. Does not wait."""
        lengths = [len(split.order) for split in hop.splits]
        firsts = [0, *itertools.accumulate(lengths)]
        positions = [split.order + first for split, first in zip(hop.splits, firsts, strict=False)]
        order = torch.cat(by_trainer(positions, hop.shares.asked))
        in_order = torch.empty_like(counts), torch.empty_like(begins)
        in_order[0][order], in_order[1][order] = counts, begins
        kept = (*in_order, entries)
        subgraph.merge(*(tensor.data_ptr() for tensor in kept), firsts[-1], kept)


def _grouped(counts: Sequence[int], num_groups: int) -> list[int]:
    """Return sums of counts, divided into equally long groups."""
    each = len(counts) // num_groups
    return [sum(counts[i : i + each]) for i in range(0, len(counts), each)]


def _signed(word: int) -> int:
    """Return an unsigned 64-bit word as the int64 of the same bits."""
    return word - (1 << 64) if word >> 63 else word
