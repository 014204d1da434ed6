"""A folder read back by brute force, and small graphs to write."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from khop.partition import PartitionFolder
from khop.storage.folder import edge_attr_path, edge_path


@dataclass
class Union:
    """All parts put together, in original ids."""

    edges: dict[tuple[str, str, str], np.ndarray] = field(default_factory=dict)
    node_attrs: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)
    edge_attrs: dict[tuple[tuple[str, str, str], str], np.ndarray] = field(default_factory=dict)
    rows: list[np.ndarray] = field(default_factory=list)  # edge ids of every row of every part


def _union(root: Any) -> Union:
    """Reads every array of a folder and puts each row where its original id says."""
    folder = PartitionFolder(root)
    parts, union = range(folder.num_parts), Union()
    original = {}
    for node_type in folder.meta.node_types:
        name = node_type.name
        ids = np.concatenate([folder.node_ids(p, name) for p in parts])
        assert np.array_equal(np.sort(ids), np.arange(node_type.count))
        assert np.array_equal(folder.id_map(name)[ids], np.arange(node_type.count))
        original[name] = ids
        for attr in node_type.attrs:
            rows = np.concatenate([folder.node_feature(p, name, attr).array for p in parts])
            union.node_attrs[name, attr] = np.empty_like(rows)
            union.node_attrs[name, attr][ids] = rows
    for edge_type in folder.meta.edge_types:
        pairs, edge_ids = [], []
        incoming = folder.meta.edge_dir == "in"
        row_type = edge_type.name[2 if incoming else 0]
        neighbor_type = edge_type.name[0 if incoming else 2]
        for part in parts:
            arrays = [
                folder.open(edge_path(part, edge_type.name, name))
                for name in ("indptr", "indices", "edge_id")
            ]
            indptr, indices, ids = arrays
            degree = np.diff(indptr)
            rows = np.repeat(folder.node_ids(part, row_type), degree)
            neighbors = original[neighbor_type][indices]
            pairs.append(np.stack([neighbors, rows] if incoming else [rows, neighbors]))
            edge_ids.append(ids)
            union.rows += np.split(ids, indptr[1:-1]) if len(degree) else []
        flat = np.concatenate(edge_ids)
        union.edges[edge_type.name] = np.empty((2, len(flat)), np.int64)
        union.edges[edge_type.name][:, flat] = np.concatenate(pairs, axis=1)
        for attr in edge_type.attrs:
            rows = np.concatenate(
                [folder.open(edge_attr_path(p, edge_type.name, attr)) for p in parts]
            )
            union.edge_attrs[edge_type.name, attr] = np.empty_like(rows)
            union.edge_attrs[edge_type.name, attr][flat] = rows
    return union


@pytest.fixture
def union():
    return _union


def _data(num_nodes: int = 30, num_edges: int = 100, seed: int = 0) -> Data:
    """Random edges (loops and doubles included), features that tell their node or edge."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.arange(num_nodes)
    return Data(
        edge_index=torch.randint(max(1, num_nodes), (2, num_edges), generator=generator),
        x=ids[:, None] + torch.tensor([0.25, 0.5, 0.75]),
        y=ids % 4,
        train_mask=ids % 3 == 0,
        edge_attr=torch.arange(num_edges, dtype=torch.float64)[:, None] * 2,
        num_nodes=num_nodes,
    )


@pytest.fixture
def make_data():
    return _data


@pytest.fixture
def hetero() -> HeteroData:
    """Users and items; tags have no features; one edge type is empty, one joins a type to itself.

    user -likes-> item (12 edges), user -knows-> user (20), item -has-> tag (none)
    """
    data = HeteroData()
    data["user"].x = torch.arange(10.0)[:, None].repeat(1, 2)
    data["user"].train_mask = torch.arange(10) < 4
    data["item"].x = torch.arange(7, dtype=torch.int16)
    data["tag"].num_nodes = 3
    generator = torch.Generator().manual_seed(1)
    likes = torch.stack(
        [
            torch.randint(10, (12,), generator=generator),
            torch.randint(7, (12,), generator=generator),
        ]
    )
    data["user", "likes", "item"].edge_index = likes
    data["user", "likes", "item"].edge_attr = torch.arange(12.0)
    data["user", "knows", "user"].edge_index = torch.randint(10, (2, 20), generator=generator)
    data["item", "has", "tag"].edge_index = torch.empty(2, 0, dtype=torch.long)
    return data
