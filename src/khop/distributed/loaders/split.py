"""Division of seeds among trainers. Runs in trainers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from khop.data.arrays import to_int64
from khop.distributed.dataset import last_loaded
from khop.distributed.graph import PartitionedGraph
from khop.distributed.job.context import get_context
from khop.distributed.remote.client.client_context import ClientContext
from khop.loader.inputs import checked_links, checked_nodes, split_links, split_nodes
from khop.storage.book import RangeBook
from khop.typing import ArrayLike, EdgeType, Int64Array, IntArray, NodeType


def node_split(
    nodes: ArrayLike | str,
    dataset: PartitionedGraph | None = None,
    *,
    node_type: NodeType | None = None,
    rank: int | None = None,
    homes: Sequence[int] | None = None,
) -> Tensor:
    """Return this trainer's share of some nodes: even counts, mostly local, the same on every run.

    Counts of trainers differ by at most one. Each trainer gets nodes of its home partition as far
    as its count allows. The other nodes go to trainers whose home has too few. Every node goes to
    exactly one trainer. All trainers must call it with the same nodes.

    Args:
        nodes: [n] original ids, a boolean mask over all nodes, or the name of a boolean node
            attribute of the folder, 'train_mask' for example.
        dataset: the graph. If None, the dataset that was loaded last. For clients of graph servers,
            None means the graph that these serve.
        node_type: their node type. Required if the graph has several.
        rank: rank of the trainer whose share is returned. If None, this trainer's.
        homes: home partition of every trainer, by rank. If None, the partition that each trainer
            has loaded. For clients, None means the servers' partitions, assigned round-robin.

    Returns:
        [m] int64 original ids, by partition and ascending in each.

    Raises:
        KeyError: no such boolean attribute.
        IndexError, TypeError, ValueError: ids do not exist or are not integers.

    Example:
        >>> dataset = DistDataset().load(folder, partition_idx=0)
        >>> [node_split("train_mask", dataset, rank=r, homes=[0, 0]).tolist() for r in (0, 1)]
        [[0, 1], [2, 3]]
    """
    dataset = dataset or _default_graph()
    info = dataset.info
    node_type, _ = split_nodes(info, node_type, "node_type")
    if isinstance(nodes, str):
        new_ids = dataset.split(node_type, nodes)
        originals = dataset.to_original_ids(new_ids, node_type)
    else:
        ids = checked_nodes(info, node_type, nodes, "nodes").ids.cpu()
        new_ids = dataset.to_new_ids(ids, "nodes", node_type)
        originals = to_int64(ids, "nodes")
    rank, homes = _trainer(dataset, rank, homes)
    book = dataset.meta.node_type(node_type).book
    return torch.from_numpy(originals[shares_of_nodes(new_ids, originals, book, homes)[rank]])


def link_split(
    edge_label_index: ArrayLike,
    dataset: PartitionedGraph | None = None,
    *,
    link_type: EdgeType | None = None,
    rank: int | None = None,
    homes: Sequence[int] | None = None,
) -> Tensor:
    """Return this trainer's share of some links, divided as by `node_split`.

    A link belongs to the partition of the node whose neighbours the folder holds: its destination,
    or its source in a folder of out-neighbours. All trainers must call it with the same links.

    Args:
        edge_label_index: [2, n] original ids of sources and destinations.
        link_type: their edge type. Required if the graph has several.
        dataset: the graph, as for `node_split`.
        rank: rank of the trainer whose share is returned. If None, this trainer's.
        homes: home partition of every trainer, as for `node_split`.

    Returns:
        [m] int64 positions of this trainer's links: `edge_label_index[:, positions]`, and
        `edge_label[positions]`.

    Raises:
        IndexError, TypeError, ValueError: ends do not exist or are not integers.

    Example:
        >>> dataset = DistDataset().load(folder, partition_idx=0)
        >>> links = data.edge_index[:, :6]
        >>> [len(link_split(links, dataset, rank=r, homes=[0, 0])) for r in (0, 1)]
        [3, 3]
    """
    dataset = dataset or _default_graph()
    info = dataset.info
    link_type, _ = split_links(info, link_type, "link_type")
    ends = checked_links(info, link_type, edge_label_index).cpu()
    rank, homes = _trainer(dataset, rank, homes)
    links = np.stack([to_int64(ends[side], "edge_label_index") for side in (0, 1)])
    return torch.from_numpy(shares_of_links(dataset, link_type, links, homes)[rank])


def shares_of_links(
    dataset: PartitionedGraph, link_type: EdgeType, ends: Int64Array, homes: Sequence[int]
) -> list[Int64Array]:
    """Return the positions of each trainer's links, ascending, divided as by `link_split`.

    Args:
        dataset: the graph.
        link_type: their edge type.
        ends: [2, n] int64 original ids of sources and destinations.
        homes: home partition of each trainer.
    """
    side = 1 if dataset.edge_dir == "in" else 0
    node_type, originals = link_type[2 * side], ends[side]
    new_ids = dataset.to_new_ids(originals, "edge_label_index", node_type)
    book = dataset.meta.node_type(node_type).book
    return [np.sort(share) for share in shares_of_nodes(new_ids, originals, book, homes)]


def shares_of_nodes(
    new_ids: Int64Array, originals: Int64Array, book: RangeBook, homes: Sequence[int]
) -> list[Int64Array]:
    """Return the positions of each trainer's nodes, by part and ascending original id.

    The new ids do not decide the division: the order of rows in a part has no influence on it.

    Args:
        new_ids: [n] int64 ids of the nodes in the folder's numbering.
        originals: [n] int64 their original ids.
        book: the parts of new ids.
        homes: home partition of each trainer.
    """
    owners = book.owner(new_ids)
    return divide(owners, np.lexsort((originals, owners)), book.num_parts, homes)


def divide(
    owners: IntArray, order: Int64Array, num_parts: int, homes: Sequence[int]
) -> list[Int64Array]:
    """Divide items (nodes, links or clusters) among trainers: even counts, mostly local ones.

    Args:
        owners: [n] partition of each item.
        order: [n] positions of the items, sorted by partition.
        num_parts: number of partitions.
        homes: home partition of each trainer.

    Returns:
        For each trainer the positions of its items, in their order.
    """
    count, world = len(order), len(homes)
    quota = [count // world + (r < count % world) for r in range(world)]
    shares: list[list[Int64Array]] = [[] for _ in homes]
    rest = []
    ends = np.cumsum(np.bincount(owners, minlength=num_parts))
    for part, of_part in enumerate(np.split(np.arange(count), ends[:-1])):
        first, residents = 0, [r for r, home in enumerate(homes) if home == part]
        for i, r in enumerate(residents):  # residents of a part share it evenly
            size = min(quota[r], -(-(len(of_part) - first) // (len(residents) - i)))
            shares[r].append(of_part[first : first + size])
            quota[r] -= size
            first += size
        rest.append(of_part[first:])
    left = np.concatenate(rest)
    for r in range(world):
        shares[r].append(left[: quota[r]])
        left = left[quota[r] :]
    return [order[np.sort(np.concatenate(share))] for share in shares]


def _default_graph() -> PartitionedGraph:
    """Return the graph that this client's servers serve, else the dataset loaded last.

    Raises:
        RuntimeError: there is neither.
    """
    context = get_context()
    return context.graph if isinstance(context, ClientContext) else last_loaded()


def _trainer(
    dataset: PartitionedGraph, rank: int | None, homes: Sequence[int] | None
) -> tuple[int, Sequence[int]]:
    """Return a trainer's rank and the home partitions of all. None takes the values of the job."""
    if homes is None:
        homes = dataset.homes
    rank = dataset.context.rank if rank is None else rank
    if not 0 <= rank < len(homes):
        raise ValueError(f"rank {rank} is not one of {len(homes)} trainers")
    return rank, homes
