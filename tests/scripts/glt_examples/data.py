"""Small data in the formats of the data sets that GraphLearn-for-PyTorch's examples read.

Nodes belong to a few groups, which features and edges give away, so that a model that works is far
above chance. All of it is drawn with one seed.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

SEED = 7


def planted(
    num_nodes: int, num_groups: int, num_features: int, degree: int = 5, within: float = 0.9
) -> tuple[Tensor, Tensor, Tensor]:
    """Return features, edges and groups: edges mostly stay in a group, features are near its mean.

    Args:
        num_nodes: number of nodes.
        num_groups: number of groups.
        num_features: length of a feature.
        degree: edges of a node.
        within: share of edges that stay in a group.
    """
    random = torch.Generator().manual_seed(SEED)
    groups = torch.randint(num_groups, (num_nodes,), generator=random)
    means = torch.randn(num_groups, num_features, generator=random)
    features = means[groups] + 4 * torch.randn(num_nodes, num_features, generator=random)
    edges = edges_between(groups, groups, degree, within, random)
    return features, edges, groups


def edges_between(
    first: Tensor, second: Tensor, degree: int, within: float, random: torch.Generator
) -> Tensor:
    """Return [2, n] edges from each node of `first`, mostly to nodes of `second` in its group."""
    sources = torch.arange(len(first)).repeat_interleave(degree)
    order = torch.argsort(second)
    starts = torch.searchsorted(second[order], first[sources])
    ends = torch.searchsorted(second[order], first[sources], right=True)
    drawn = starts + (torch.rand(len(sources), generator=random) * (ends - starts)).long()
    stays = (torch.rand(len(sources), generator=random) < within) & (ends > starts)
    anywhere = torch.randint(len(second), (len(sources),), generator=random)
    return torch.stack(
        [sources, torch.where(stays, order[drawn.clamp(max=len(order) - 1)], anywhere)]
    )


def _thirds(num_nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids of training (60%), validation (20%) and test nodes (20%)."""
    order = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(SEED))
    train, test = num_nodes * 6 // 10, num_nodes * 8 // 10
    return order[:train], order[train:test], order[test:]


def _csv(path: Path, rows: Tensor) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        np.savetxt(file, rows.numpy(), "%.4f" if rows.is_floating_point() else "%d", ",")


def products(root: Path) -> None:
    """Write ogbn-products as OGB has it after the download: text files."""
    features, edges, groups = planted(3000, 47, 100)
    folder = root / "data/products/ogbn_products"
    tables = {
        "edge": edges.t(),
        "node-feat": features,
        "node-label": groups.view(-1, 1),
        "num-node-list": torch.tensor([[3000]]),
        "num-edge-list": torch.tensor([[edges.size(1)]]),
    }
    for name, rows in tables.items():
        _csv(folder / "raw" / f"{name}.csv.gz", rows)
    for name, ids in zip(("train", "valid", "test"), _thirds(3000), strict=True):
        _csv(folder / "split/sales_ranking" / f"{name}.csv.gz", ids.view(-1, 1))
    (folder / "processed").mkdir()
    (folder / "RELEASE_v1.txt").touch()


def papers(root: Path) -> None:
    """Write ogbn-papers100M as OGB's binary files."""
    features, edges, groups = planted(3000, 172, 128)
    folder = root / "data/papers100M-bin"
    (folder / "raw").mkdir(parents=True)
    (folder / "split/time").mkdir(parents=True)
    np.savez(folder / "raw/node-label.npz", node_label=groups.view(-1, 1).float().numpy())
    np.savez(folder / "raw/data.npz", edge_index=edges.numpy(), node_feat=features.half().numpy())
    np.savetxt(folder / "split/time/train.csv", _thirds(3000)[0].numpy(), "%d")


def arxiv(root: Path) -> None:
    """Write arXiv's citations of 2023 as tables with a header."""
    folder = root / "examples/data/arxiv_2023/raw"
    folder.mkdir(parents=True)
    _, edges, _ = planted(40, 4, 2)
    texts = {
        "titles": ["title", *(f"On the matter of {i}" for i in range(40))],
        "ids": ["id", *map(str, range(40))],
        "edges": ["src,dst", *(f"{src},{dst}" for src, dst in edges.t().tolist())],
    }
    for name, lines in texts.items():
        with gzip.open(folder / f"{name}.csv.gz", "wt") as file:
            file.write("\n".join(lines) + "\n")


def igbh(root: Path) -> None:
    """Write IGBH, size tiny, as its download has it: arrays of NumPy."""
    random = torch.Generator().manual_seed(SEED)
    counts = {"paper": 2000, "author": 1500, "institute": 60, "fos": 200}
    means = torch.randn(19, 32, generator=random)
    groups = {t: torch.randint(19, (n,), generator=random) for t, n in counts.items()}
    folder = root / "data/igbh/tiny/processed"
    for node_type, own in groups.items():
        (folder / node_type).mkdir(parents=True)
        noise = torch.randn(len(own), 32, generator=random)
        np.save(folder / node_type / "node_feat.npy", (means[own] + 2 * noise).numpy())
    np.save(folder / "paper/node_label_19.npy", groups["paper"].float().numpy())
    links = {
        ("paper", "cites", "paper"): 5,
        ("paper", "written_by", "author"): 2,
        ("author", "affiliated_to", "institute"): 1,
        ("paper", "topic", "fos"): 2,
    }
    for (src, relation, dst), degree in links.items():
        place = folder / f"{src}__{relation}__{dst}"
        place.mkdir()
        edges = edges_between(groups[src], groups[dst], degree, 0.9, random)
        np.save(place / "edge_index.npy", edges.t().numpy())


def _written(kind: type, items: dict[int, object], *args: object, **kwargs: object) -> None:
    """Write PyG's processed files of a data set: {place in its list of files: graphs}."""

    def download(self: object) -> None:
        for path in self.raw_paths:  # type: ignore[attr-defined]
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).touch()

    def process(self: object) -> None:
        for place, graphs in items.items():
            self.save(graphs, self.processed_paths[place])  # type: ignore[attr-defined]

    made = type(kind.__name__, (kind,), {"download": download, "process": process})
    made(*args, **kwargs)


def mag(root: Path) -> None:
    """Write ogbn-mag as PyG has it."""
    from torch_geometric.data import HeteroData
    from torch_geometric.datasets import OGB_MAG

    random = torch.Generator().manual_seed(SEED)
    counts = {"paper": 1500, "author": 1000, "institution": 40, "field_of_study": 100}
    means = torch.randn(10, 128, generator=random)
    groups = {t: torch.randint(10, (n,), generator=random) for t, n in counts.items()}
    data = HeteroData()
    for node_type, own in groups.items():
        data[node_type].x = means[own] + 2 * torch.randn(len(own), 128, generator=random)
    data["paper"].y = groups["paper"]
    for name, ids in zip(("train", "val", "test"), _thirds(1500), strict=True):
        data["paper"][f"{name}_mask"] = torch.zeros(1500, dtype=torch.bool).index_fill(0, ids, True)
    for src, relation, dst in (
        ("author", "affiliated_with", "institution"),
        ("author", "writes", "paper"),
        ("paper", "cites", "paper"),
        ("paper", "has_topic", "field_of_study"),
    ):
        edges = edges_between(groups[src], groups[dst], 3, 0.9, random)
        data[src, relation, dst].edge_index = edges
    _written(OGB_MAG, {0: [data]}, str(root / "data"), preprocess="metapath2vec")


def taobao(root: Path) -> None:
    """Write Taobao's users, items and categories as PyG has them."""
    from torch_geometric.data import HeteroData
    from torch_geometric.datasets import Taobao

    random = torch.Generator().manual_seed(SEED)
    users = torch.randint(6, (400,), generator=random)
    items = torch.randint(6, (150,), generator=random)
    data = HeteroData()
    for node_type, count in (("user", 400), ("item", 150), ("category", 6)):
        data[node_type].num_nodes = count
    edges = edges_between(users, items, 12, 0.97, random)
    data["user", "to", "item"].edge_index = edges
    data["user", "to", "item"].time = torch.zeros(edges.size(1), dtype=torch.long)
    data["user", "to", "item"].behavior = torch.zeros(edges.size(1), dtype=torch.long)
    data["item", "to", "category"].edge_index = torch.stack([torch.arange(150), items])
    _written(Taobao, {0: [data]}, str(root / "data/Taobao"))


def ppi(root: Path) -> None:
    """Write PPI as PyG has it: graphs for training, validation and test."""
    from torch_geometric.data import Data
    from torch_geometric.datasets import PPI

    graphs = []
    kinds = (torch.arange(8).view(-1, 1) + torch.arange(121)) % 8 < 3  # no label has one value
    features, edges, groups = planted(400, 8, 50, degree=8)
    for shift in range(4):
        order = torch.randperm(400, generator=torch.Generator().manual_seed(shift))
        place = torch.argsort(order)
        labels = kinds[groups[order]].float()
        graphs.append(Data(features[order], place[edges], y=labels))
    parts = {0: graphs[:2], 1: graphs[2:3], 2: graphs[3:]}
    _written(PPI, parts, str(root / "data/PPI"))


def cora(root: Path) -> None:
    """Write Cora as PyG has it, with cliques: two nodes with an edge have common neighbours."""
    from torch_geometric.data import Data
    from torch_geometric.datasets import Planetoid

    pairs = torch.combinations(torch.arange(6))
    cliques = torch.cat([pairs + 6 * i for i in range(30)]).t()
    ring = torch.stack([torch.arange(0, 180, 6), torch.arange(6, 186, 6) % 180])
    edges = torch.cat([cliques, ring], dim=1)
    data = Data(torch.eye(180), torch.cat([edges, edges.flip(0)], dim=1), y=torch.arange(180) % 7)
    masks = {"train_mask": 0, "val_mask": 1, "test_mask": 2}
    for name, third in masks.items():
        data[name] = torch.arange(180) % 3 == third
    _written(Planetoid, {0: [data]}, str(root / "data/Planetoid"), "Cora")
