"""A trainer's share of a cooperative batch: its own nodes, while they are drawn. Runs in trainers.

All of it are operations on tensors, on the CPU or on the trainer's device.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from khop.distributed.loaders.cooperative_part import OwnPart
from khop.distributed.loaders.device_exchange import DeviceExchange, check_ids
from khop.sampler.requests import HopRequest


class HopEdges(NamedTuple):
    """Edges that a trainer has drawn in a hop.

    Attributes:
        destinations: [n] positions among its own nodes.
        edges: [n] numbers in the folder.
        ranks: [n] ranks of the trainers that own the sources.
        positions: [n] positions of the sources: among this trainer's own nodes, or among the rows
            that it receives from another.
    """

    destinations: Tensor
    edges: Tensor
    ranks: Tensor
    positions: Tensor


class LayerNodes(NamedTuple):
    """Nodes of a layer.

    Attributes:
        num_src: number of this trainer's nodes among the sources.
        num_dst: number of destinations.
        rows: [n] positions of the nodes whose activations it sends, trainer by trainer.
        sent: number of activations for each trainer.
        received: number of activations from each trainer.
    """

    num_src: int
    num_dst: int
    rows: Tensor
    sent: list[int]
    received: list[int]


class Share:
    """Part of a batch that one trainer draws.

    Args:
        part: the trainer's partition.
        exchange: sends ids of nodes to their owners.
        bounds: [num_parts + 1] int64 range bounds of the partitions, on the part's device.
        own: first id of the trainer's nodes, and one past the last.
        table: [number of own nodes] int64 of -1 each, which `end` restores: positions in `nodes`.
        seeds: new ids of the batch's seeds, on the part's device.

    Attributes:
        nodes: new ids of the trainer's own nodes: the seeds, then the nodes that each hop adds.
        hops: the edges of each hop.
        num_seeds: number of seeds among them. A repeated seed is a separate node each time.
    """

    def __init__(
        self,
        part: OwnPart,
        exchange: DeviceExchange,
        bounds: Tensor,
        own: tuple[int, int],
        table: Tensor,
        seeds: Tensor,
    ) -> None:
        self._part, self._exchange, self._bounds = part, exchange, bounds
        self._low, self._high = own
        self._table = table
        self.nodes = seeds[self._are_own(seeds)]
        ids, firsts = _first_positions(self.nodes - self._low)
        table[ids] = firsts
        self.num_seeds = len(self.nodes)
        self.hops: list[HopEdges] = []
        self._counts = [0, self.num_seeds]  # of own nodes after seeds and after each hop
        # Nodes of other trainers by id, with their owners and positions in the rows from them.
        self._away = torch.stack([self.nodes[:0]] * 3)
        self._received = [[0] * exchange.size]  # after each hop
        self._sent: list[list[Tensor]] = [[] for _ in range(exchange.size)]  # in each hop

    def _are_own(self, ids: Tensor) -> Tensor:
        return (ids >= self._low) & (ids < self._high)

    def hop(self, request: HopRequest) -> None:
        """Draw neighbours of this trainer's newest nodes, and send them to trainers that own them.

        `request` describes the draws. The nodes that other trainers send become this trainer's.

        Raises:
            ProtocolError: another trainer sent a node that this one does not own.
        """
        first, end = self._counts[-2:]
        counts, neighbors, edges = self._part.draw(self.nodes[first:], request)
        numbers = torch.arange(first, end, device=counts.device)
        destinations = torch.repeat_interleave(numbers, counts)
        are_own = self._are_own(neighbors)
        requested = self._send(torch.unique(neighbors[~are_own]))
        self._add(torch.cat([neighbors[are_own], *requested]))
        for rank, ids in enumerate(requested):
            self._sent[rank].append(self._table[ids - self._low])
        ranks = torch.full_like(neighbors, self._exchange.rank)
        positions = torch.empty_like(neighbors)
        positions[are_own] = self._table[neighbors[are_own] - self._low]
        at = torch.searchsorted(self._away[0], neighbors[~are_own])
        ranks[~are_own], positions[~are_own] = self._away[1:, at]
        self.hops.append(HopEdges(destinations, edges, ranks, positions))

    def _send(self, ids: Tensor) -> tuple[Tensor, ...]:
        """Send nodes to their owners, unless they know of them. `ids` are distinct, ascending.

        Returns:
            The nodes that each trainer has sent to this one.
        """
        exchange = self._exchange
        new = ids[~torch.isin(ids, self._away[0])]
        split = exchange.split(new, self._bounds)
        shares = exchange.announce([split], [self._high - self._low])
        new = new[split.order]
        requested = exchange.ask(shares, [new])
        check_ids([requested], [(self._low, self._high)], ["nodes"])
        asked = torch.tensor([of for (of,) in shares.asked], device=new.device)
        before = torch.tensor(self._received[-1], device=new.device)
        ranks = torch.repeat_interleave(torch.arange(len(asked), device=new.device), asked)
        rows = torch.arange(len(new), device=new.device)
        rows += (before - asked.cumsum(0) + asked)[ranks]
        away = torch.cat([self._away, torch.stack([new, ranks, rows])], 1)
        self._away = away[:, torch.argsort(away[0])]
        self._received.append((before + asked).tolist())
        return requested.split_with_sizes([of for (of,) in shares.asking])

    def _add(self, ids: Tensor) -> None:
        """Add own nodes in the order of their first appearance, unless they are there."""
        ids = ids - self._low
        new, firsts = _first_positions(ids[self._table[ids] < 0])
        new = new[torch.argsort(firsts)]
        self.nodes = torch.cat([self.nodes, new + self._low])
        self._table[new] = torch.arange(self._counts[-1], len(self.nodes), device=new.device)
        self._counts.append(len(self.nodes))

    def layer(self, hop: int) -> tuple[LayerNodes, Tensor, Tensor]:
        """Return a layer: its nodes, its edge index [2, n], and numbers of edges.

        It has the edges of the hops up to `hop`.
        """
        received = self._received[hop + 1]
        num_src, num_dst = self._counts[hop + 2], self._counts[hop + 1]
        starts = [num_src + count for count in itertools.accumulate([0, *received[:-1]])]
        starts[self._exchange.rank] = 0
        first = torch.tensor(starts, device=self.nodes.device)
        hops = self.hops[: hop + 1]
        sources = torch.cat([first[edges.ranks] + edges.positions for edges in hops])
        ends = torch.stack([sources, torch.cat([edges.destinations for edges in hops])])
        sent = [torch.cat(of[: hop + 1]) for of in self._sent]
        nodes = LayerNodes(num_src, num_dst, torch.cat(sent), [*map(len, sent)], received)
        return nodes, ends, torch.cat([edges.edges for edges in hops])

    def end(self) -> None:
        """Restore the table of positions for the next batch."""
        self._table[self.nodes - self._low] = -1


def _first_positions(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return distinct ids, and the position at which each appears first."""
    distinct, inverse = torch.unique(ids, return_inverse=True)
    positions = torch.arange(len(ids), device=ids.device)
    firsts = torch.full_like(distinct, len(ids)).scatter_reduce_(0, inverse, positions, "amin")
    return distinct, firsts
