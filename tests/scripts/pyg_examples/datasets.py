"""Small stand-ins for the data sets of PyG's examples: seeded, and a model can learn them.

`install` puts them where examples import data sets from. Each has the types, attributes, dtypes and
masks of the data set that it stands for. Nodes belong to classes; edges mostly join nodes of one
class, and features are a noisy vector of the class.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ogb.lsc
import ogb.nodeproppred
import torch
import torch_geometric.datasets
from torch import Tensor
from torch_geometric.data import Data, HeteroData, InMemoryDataset


class StandIn(InMemoryDataset):
    """A data set of graphs that are made in memory."""

    def __init__(self, root: str, graphs: list[Any], transform: Any = None) -> None:
        super().__init__(str(Path("data", Path(root).name)), transform)
        self.data, self.slices = self.collate(graphs)
        Path(self.processed_dir).mkdir(parents=True, exist_ok=True)


class Classes:
    """Nodes of classes, drawn from one seed.

    Args:
        num_classes: number of classes.
        num_features: length of feature vectors.
        noise: standard deviation of features about their class's, whose entries have 1.
        same: probability that an edge joins nodes of one class.
        seed: of all that is drawn.
    """

    def __init__(
        self, num_classes: int, num_features: int, noise: float, same: float = 0.8, seed: int = 1
    ) -> None:
        self.num_classes = num_classes
        self.same, self.noise = same, noise
        self.random = torch.Generator().manual_seed(seed)
        # Those of the classes are the same for every seed: graphs of one data set agree.
        self.centres = torch.randn(
            num_classes, num_features, generator=torch.Generator().manual_seed(0)
        )

    def draw(self, count: int) -> Tensor:
        """Return a class for each node, [count] int64."""
        return torch.randint(self.num_classes, (count,), generator=self.random)

    def features(self, y: Tensor) -> Tensor:
        """Return features of nodes of classes `y`."""
        noise = torch.randn(len(y), self.centres.size(1), generator=self.random)
        return self.centres[y] + self.noise * noise

    def edges(self, src: Tensor, dst: Tensor, degree: int) -> Tensor:
        """Return [2, degree * len(src)] edges between nodes of classes `src` and `dst`."""
        row = torch.arange(len(src)).repeat_interleave(degree)
        col = torch.randint(len(dst), (len(row),), generator=self.random)
        order = dst.argsort(stable=True)
        sizes = torch.bincount(dst, minlength=self.num_classes)
        starts, wanted = sizes.cumsum(0) - sizes, src[row]
        share = torch.rand(len(row), generator=self.random)
        alike = order[starts[wanted] + (share * sizes[wanted]).long()]
        chosen = torch.rand(len(row), generator=self.random) < self.same
        return torch.stack([row, torch.where(chosen, alike, col)])

    def graph(self, count: int, degree: int) -> Data:
        """Return an undirected graph with masks."""
        y = self.draw(count)
        edges = self.edges(y, y, degree)
        data = Data(x=self.features(y), y=y, edge_index=torch.cat([edges, edges.flip(0)], dim=1))
        data.update(self.masks(count))
        return data.coalesce()

    def masks(self, count: int) -> dict[str, Tensor]:
        """Return masks of half, a quarter and a quarter of the nodes."""
        share = torch.rand(count, generator=self.random)
        return {
            "train_mask": share < 0.5,
            "val_mask": (share >= 0.5) & (share < 0.75),
            "test_mask": share >= 0.75,
        }


class Planetoid(StandIn):
    """Cora: 7 classes."""

    def __init__(self, root: str, name: str = "Cora", transform: Any = None) -> None:
        graph = Classes(7, 128, 3.0).graph(1000, 3)
        graph.x = (graph.x > 2).float()  # words that a paper has
        super().__init__(root, [graph], transform)


class Reddit(StandIn):
    """8 classes; features alone tell little."""

    def __init__(self, root: str, transform: Any = None) -> None:
        super().__init__(root, [Classes(8, 32, 3.0).graph(4000, 8)], transform)


class Flickr(StandIn):
    """7 classes."""

    def __init__(self, root: str, transform: Any = None) -> None:
        super().__init__(root, [Classes(7, 32, 3.0).graph(3000, 6)], transform)


class PPI(StandIn):
    """Several graphs; each node has 12 labels, those of its class."""

    def __init__(self, root: str, split: str = "train") -> None:
        count, seed = {"train": (4, 1), "val": (2, 2), "test": (2, 3)}[split]
        classes = Classes(8, 32, 1.0, seed=seed)
        graphs = [classes.graph(300, 6) for _ in range(count)]
        labels = torch.rand(8, 12, generator=torch.Generator().manual_seed(5)) < 0.5
        for graph in graphs:
            graph.y = labels[graph.y].float()
        super().__init__(root, graphs)


def academic_graph(num_papers: int, classes: Classes, all_features: bool) -> HeteroData:
    """Return papers, their authors, the authors' institutions, and the papers' fields of study.

    Args:
        num_papers: number of papers.
        classes: those of the papers.
        all_features: nodes of all types have features, not only papers.
    """
    data, y = HeteroData(), {}
    sizes = {"paper": 1.0, "author": 0.75, "institution": 0.05, "field_of_study": 0.1}
    for node_type, share in sizes.items():
        y[node_type] = classes.draw(int(num_papers * share))
        if all_features or node_type == "paper":
            data[node_type].x = classes.features(y[node_type])
        else:
            data[node_type].num_nodes = len(y[node_type])
    data["paper"].y = y["paper"]
    data["paper"].year = torch.randint(2010, 2020, (num_papers, 1), generator=classes.random)
    data["paper"].update(classes.masks(num_papers))
    for src, relation, dst, degree in (
        ("author", "affiliated_with", "institution", 1),
        ("author", "writes", "paper", 4),
        ("paper", "cites", "paper", 5),
        ("paper", "has_topic", "field_of_study", 2),
    ):
        data[src, relation, dst].edge_index = classes.edges(y[src], y[dst], degree)
    return data


class OgbMag(StandIn):
    """OGB's MAG, with features for all types."""

    def __init__(self, root: str, preprocess: Any = None, transform: Any = None) -> None:
        super().__init__(root, [academic_graph(2000, Classes(8, 32, 3.0), True)], transform)

    @property
    def num_classes(self) -> int:
        """Number of classes of papers."""
        return int(self._data["paper"].y.max()) + 1


class Mag240M:
    """OGB's MAG240M: papers with half-precision features, authors and institutions without."""

    num_classes = 8

    def to_pyg_hetero_data(self) -> HeteroData:
        """Return the graph, with reverse edge types."""
        data = academic_graph(2000, Classes(8, 32, 1.0), False)
        del data["field_of_study"], data["paper", "has_topic", "field_of_study"]
        data["paper"].x = data["paper"].x.half()
        data["paper"].y = data["paper"].y.float()
        for src, relation, dst in (
            ("author", "writes", "paper"),
            ("author", "affiliated_with", "institution"),
        ):
            ends = data[src, relation, dst].edge_index
            data[dst, f"rev_{relation}", src].edge_index = ends.flip(0)
        data.num_classes = self.num_classes
        return data


class MovieLens(StandIn):
    """Users rate movies from 0 to 5: higher if these are of a better class, or of their own."""

    def __init__(self, root: str, model_name: str = "") -> None:
        classes = Classes(4, 16, 1.0, same=0.5)
        users, movies = classes.draw(200), classes.draw(300)
        edges = classes.edges(users, movies, 30)
        rating = 2 * (users[edges[0]] == movies[edges[1]]) + 2 * (movies[edges[1]] >= 2)
        rating = rating + torch.randint(2, rating.shape, generator=classes.random)
        data = HeteroData()
        data["movie"].x = classes.features(movies)
        data["user"].num_nodes = len(users)
        data["user", "rates", "movie"].edge_index = edges
        data["user", "rates", "movie"].edge_label = rating
        time = torch.randperm(edges.size(1), generator=classes.random) + 1
        data["user", "rates", "movie"].time = time
        super().__init__(root, [data])


class Taobao(StandIn):
    """Users and the items that they buy, mostly of their own class; the items' categories."""

    def __init__(self, root: str, transform: Any = None, pre_transform: Any = None) -> None:
        classes = Classes(4, 1, 0.0, same=0.95)
        users, items = classes.draw(600), classes.draw(200)
        edges = classes.edges(users, items, 20).unique(dim=1)
        data = HeteroData()
        data["user"].num_nodes, data["item"].num_nodes = len(users), len(items)
        data["category"].num_nodes = 4
        data["user", "to", "item"].edge_index = edges
        data["user", "to", "item"].time = torch.arange(edges.size(1))
        data["user", "to", "item"].behavior = torch.zeros(edges.size(1), dtype=torch.long)
        data["item", "to", "category"].edge_index = torch.stack([torch.arange(len(items)), items])
        super().__init__(root, [data if pre_transform is None else pre_transform(data)], transform)


class NodePropPred(StandIn):
    """OGB's data sets for node prediction: labels in a column, splits as ids."""

    def __init__(self, name: str, root: str = "dataset", transform: Any = None) -> None:
        data = _proteins() if name == "ogbn-proteins" else Classes(8, 32, 3.0).graph(3000, 6)
        masks = [data.pop(f"{split}_mask") for split in ("train", "val", "test")]
        ids = [mask.nonzero().view(-1) for mask in masks]
        self._split = dict(zip(("train", "valid", "test"), ids, strict=True))
        if data.y.dim() == 1:
            data.y = data.y.view(-1, 1)
        super().__init__(name, [data], transform)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return int(self._data.y.max()) + 1

    def get_idx_split(self) -> dict[str, Tensor]:
        """Return ids of nodes by split."""
        return {split: ids.clone() for split, ids in self._split.items()}


def _proteins() -> Data:
    """Return nodes with 112 binary labels; only features of their edges tell what they are."""
    classes = Classes(8, 8, 1.0)
    data = classes.graph(600, 6)
    data.edge_attr = classes.features(data.y[data.edge_index[1]]).sigmoid()
    labels = torch.rand(8, 112, generator=torch.Generator().manual_seed(5)) < 0.5
    data.y = labels[data.y].long()
    data.num_nodes, data.x = 600, None
    data.node_species = torch.zeros(600, 1, dtype=torch.long)
    return data


def install() -> None:
    """Replace the data sets that examples import."""
    for stand_in in (Planetoid, Reddit, Flickr, PPI, MovieLens, Taobao):
        setattr(torch_geometric.datasets, stand_in.__name__, stand_in)
    torch_geometric.datasets.OGB_MAG = OgbMag
    ogb.nodeproppred.PygNodePropPredDataset = NodePropPred
    ogb.lsc.MAG240MDataset = Mag240M
