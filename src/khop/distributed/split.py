"""Dividing seeds among trainers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from khop.distributed.context import require_context
from khop.distributed.dataset import DistDataset, last_loaded, seeds_of
from khop.partition.book import RangeBook
from khop.typing import ArrayLike, Int64Array, NodeType


def node_split(
    nodes: ArrayLike | str,
    dataset: DistDataset | None = None,
    *,
    node_type: NodeType | None = None,
    rank: int | None = None,
    homes: Sequence[int] | None = None,
) -> Tensor:
    """This trainer's share of some nodes: even counts, mostly local, the same on every run.

    Counts of trainers differ by at most one. Each trainer gets nodes of its home partition as far
    as its count allows; what is left over goes to trainers with too few at home. Every node goes
    to exactly one trainer. All trainers must call it with the same nodes.

    Args:
        nodes: [n] original ids, a boolean mask over all nodes, or the name of a boolean node
            attribute of the folder, 'train_mask' for example.
        dataset: default: the dataset that was loaded last.
        node_type: their node type; needed if the graph has several.
        rank: whose share; default: this trainer's.
        homes: home partition of each trainer; default: what the trainers of the group have loaded.

    Returns:
        [m] int64 original ids, in the order of the folder's numbering.

    Raises:
        KeyError: no such boolean attribute.
        IndexError, TypeError, ValueError: ids that do not exist or are no integers.
    """
    dataset = dataset or last_loaded()
    node_type, _ = dataset.seed_type(node_type, "node_type")
    if isinstance(nodes, str):
        new_ids = dataset.opened.split(node_type, nodes).astype(np.int64)
    else:
        ids, _ = seeds_of(dataset, nodes, "nodes", node_type)
        new_ids = np.sort(dataset.to_new_ids(ids, "nodes", node_type))
    if homes is None:
        homes = dataset.service().homes
    rank = require_context().rank if rank is None else rank
    if not 0 <= rank < len(homes):
        raise ValueError(f"rank {rank} is not one of {len(homes)} trainers")
    share = deal(new_ids, dataset.meta.node_type(node_type).book, homes)[rank]
    return torch.from_numpy(_original_ids(dataset, share, node_type))


def deal(new_ids: Int64Array, book: RangeBook, homes: Sequence[int]) -> list[Int64Array]:
    """Deals ids out to trainers.

    Args:
        new_ids: [n] ids, ascending.
        book: who owns which id.
        homes: home partition of each trainer.

    Returns:
        The ids of each trainer, ascending.
    """
    world = len(homes)
    quota = [len(new_ids) // world + (r < len(new_ids) % world) for r in range(world)]
    shares: list[list[Int64Array]] = [[] for _ in homes]
    left = []
    starts = np.searchsorted(new_ids, book.bounds)
    for part in range(book.num_parts):
        ids = new_ids[starts[part] : starts[part + 1]]
        residents = [r for r, home in enumerate(homes) if home == part]
        for i, r in enumerate(residents):  # residents of a part share it evenly
            count = min(quota[r], -(-len(ids) // (len(residents) - i)))
            shares[r].append(ids[:count])
            quota[r] -= count
            ids = ids[count:]
        left.append(ids)
    rest = np.concatenate(left) if left else new_ids[:0]
    for r in range(world):
        shares[r].append(rest[: quota[r]])
        rest = rest[quota[r] :]
    return [np.sort(np.concatenate(share)) for share in shares]


def _original_ids(dataset: DistDataset, new_ids: Int64Array, node_type: NodeType) -> Int64Array:
    """Original ids of new ones; the map is small enough to be inverted where it is needed."""
    id_map = dataset.opened.id_map(node_type)
    original = np.empty(len(id_map), id_map.dtype)
    original[id_map] = np.arange(len(id_map), dtype=id_map.dtype)
    return original[new_ids].astype(np.int64)
