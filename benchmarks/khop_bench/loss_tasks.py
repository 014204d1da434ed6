"""Five training tasks, each with PyG's loader or khop's, for `benchmarks/losses.py`."""

from __future__ import annotations

import abc
import statistics
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkLoader, NodeLoader
from torch_geometric.nn import GraphSAGE, HeteroConv, SAGEConv
from torch_geometric.utils import to_undirected

from khop.datasets import DebianPackages, DebianPackagesHetero
from khop.loader import LinkNeighborLoader, NeighborLoader
from khop_bench.plain_sampler import pyg_sampler

NUM_SECTIONS = 58


class Task(abc.ABC):
    """A graph, a model, a loss and a score.

    Attributes:
        name: name of the task.
        metric: unit of `score`, 'accuracy' or 'AUC'.
        lr: learning rate of Adam.
    """

    name: str
    metric: str
    lr = 0.004

    @abc.abstractmethod
    def model(self) -> nn.Module:
        """Return a new model, drawn from torch's generator."""

    @abc.abstractmethod
    def loader(self, library: str, seed: int) -> Any:
        """Return the loader of training batches.

        Args:
            library: 'PyG' or 'khop'.
            seed: seed of khop's draws. PyG's come from torch's generator.
        """

    @abc.abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss of a batch."""

    @abc.abstractmethod
    def score(self, model: nn.Module) -> float:
        """Return the model's score on test data, of all neighbours, by PyG alone."""


def train_epoch(
    task: Task, model: nn.Module, loader: Any, optimizer: torch.optim.Optimizer
) -> float:
    """Train on all batches of a loader, and return the mean of their losses."""
    model.train()
    losses = []
    for batch in loader:
        optimizer.zero_grad()
        loss = task.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    return statistics.fmean(losses)


class Sections(Task):
    """Sections of Debian's packages, from their descriptions and relations."""

    name, metric = "nodes", "accuracy"
    fan_outs = (10, 10)
    batch_size = 512

    def __init__(self) -> None:
        self.data: Data = DebianPackages(undirected=True)[0]

    def model(self) -> nn.Module:
        """Return a GraphSAGE of two layers."""
        made: nn.Module = GraphSAGE(self.data.num_features, 64, 2, NUM_SECTIONS, dropout=0.3)
        return made

    def loader(self, library: str, seed: int) -> Any:
        """Return the loader of training packages."""
        seeds = self.data.train_mask
        if library == "khop":
            return NeighborLoader(
                self.data, self.fan_outs, seeds, batch_size=self.batch_size, shuffle=True, seed=seed
            )
        sampler = pyg_sampler(self.data, list(self.fan_outs))
        return NodeLoader(self.data, sampler, seeds, batch_size=self.batch_size, shuffle=True)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the cross-entropy of the seeds."""
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        return F.cross_entropy(out, batch.y[: batch.batch_size])

    def score(self, model: nn.Module) -> float:
        """Return the accuracy on test packages."""
        data = self.data
        is_right = model(data.x, data.edge_index).argmax(1) == data.y
        return float(is_right[data.test_mask].float().mean())


class TypedModel(nn.Module):
    """Two layers of SAGE for each edge type, and learned rows where a type has no features."""

    def __init__(self, data: HeteroData, hidden: int) -> None:
        super().__init__()
        self.start = nn.Linear(data["package"].num_features, hidden)
        others = [t for t in data.node_types if t not in ("package", "source")]
        self.rows = nn.ModuleDict({t: nn.Embedding(data[t].num_nodes, hidden) for t in others})
        self.convs = nn.ModuleList(
            HeteroConv({t: SAGEConv((hidden, hidden), hidden) for t in data.edge_types})
            for _ in range(2)
        )
        self.classify = nn.Linear(hidden, NUM_SECTIONS)

    def forward(self, data: HeteroData) -> Tensor:
        """Return logits of all packages [num_nodes, NUM_SECTIONS]."""
        package = self.start(data["package"].x)
        x = {"package": package}
        x["source"] = package.new_zeros(data["source"].num_nodes, package.size(1))
        for node_type, table in self.rows.items():
            ids = data[node_type].get("n_id")
            x[node_type] = table.weight if ids is None else table(ids)
        for conv in self.convs:
            x |= {t: F.relu(h) for t, h in conv(x, data.edge_index_dict).items()}
        logits: Tensor = self.classify(x["package"])
        return logits


class TypedSections(Task):
    """Sections of Debian's packages, with their sources, maintainers and tags."""

    name, metric = "nodes of several types", "accuracy"
    fan_outs = (8, 4)

    def __init__(self) -> None:
        self.data: HeteroData = DebianPackagesHetero(undirected=True)[0]

    def model(self) -> nn.Module:
        """Return a `TypedModel`."""
        return TypedModel(self.data, 32)

    def loader(self, library: str, seed: int) -> Any:
        """Return the loader of training packages."""
        seeds = ("package", self.data["package"].train_mask)
        if library == "khop":
            return NeighborLoader(
                self.data, self.fan_outs, seeds, batch_size=512, shuffle=True, seed=seed
            )
        sampler = pyg_sampler(self.data, list(self.fan_outs))
        return NodeLoader(self.data, sampler, seeds, batch_size=512, shuffle=True)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the cross-entropy of the seeds."""
        count = batch["package"].batch_size
        return F.cross_entropy(model(batch)[:count], batch["package"].y[:count])

    def score(self, model: nn.Module) -> float:
        """Return the accuracy on test packages."""
        package = self.data["package"]
        is_right = model(self.data).argmax(1) == package.y
        return float(is_right[package.test_mask].float().mean())


class Dependencies(Task):
    """Links: which of two random packages a package depends on. A tenth of the pairs is tested."""

    name, metric = "links", "AUC"
    fan_outs = (8, 4)

    def __init__(self) -> None:
        data = DebianPackages()[0]
        generator = torch.Generator().manual_seed(0)
        strong = data.edge_kind < 2  # needs it, before it can be unpacked or later
        links = data.edge_index[:, strong]
        links = links[:, torch.randperm(links.size(1), generator=generator)]
        held_out = links.size(1) // 10
        self.test, self.links = links[:, :held_out], links[:, held_out : held_out + 60_000]
        kept = torch.cat([data.edge_index[:, ~strong], links[:, held_out:]], 1)
        self.data = Data(x=data.x, edge_index=to_undirected(kept, num_nodes=data.num_nodes))
        self.other = torch.randint(data.num_nodes, (held_out,), generator=generator)

    def model(self) -> nn.Module:
        """Return a GraphSAGE of two layers."""
        made: nn.Module = GraphSAGE(self.data.num_features, 64, 2, 64)
        return made

    def loader(self, library: str, seed: int) -> Any:
        """Return the loader of training links, each with a random negative one."""
        options = {"edge_label_index": self.links, "batch_size": 1024, "shuffle": True}
        if library == "khop":
            return LinkNeighborLoader(
                self.data, self.fan_outs, neg_sampling="binary", seed=seed, **options
            )
        sampler = pyg_sampler(self.data, list(self.fan_outs))
        return LinkLoader(self.data, sampler, neg_sampling="binary", **options)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the cross-entropy of links and negative links."""
        h = model(batch.x, batch.edge_index)
        return F.binary_cross_entropy_with_logits(
            _scores(h, batch.edge_label_index), batch.edge_label.float()
        )

    def score(self, model: nn.Module) -> float:
        """Return how often a test link scores above one to another package."""
        h = model(self.data.x, self.data.edge_index)
        others = torch.stack([self.test[0], self.other])
        return auc(_scores(h, self.test), _scores(h, others))


class Citations(Task):
    """Temporal links: citations of new papers in a synthetic graph, within topics.

    A paper's topic hardly follows from its own noisy features, but from the features of papers that
    cited it before. A batch draws for each link the graph before its time.
    """

    name, metric = "temporal links", "AUC"
    fan_outs = (10, 5)
    num_papers, num_topics, width = 6_000, 12, 24

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        count = self.num_papers
        topics = torch.randint(self.num_topics, (count,), generator=generator)
        means = torch.randn(self.num_topics, self.width, generator=generator)
        x = means[topics] + 3 * torch.randn(count, self.width, generator=generator)
        edges = [*self._cited(topics, generator)]
        # Messages go from the paper that cites to the one that is cited. Papers are 2 units apart.
        self.data = Data(x=x, edge_index=torch.tensor(edges).T.contiguous())
        self.data.time = 2 * torch.arange(count)
        late = self.data.edge_index[0] >= count * 17 // 20
        self.links, self.test = self.data.edge_index[:, ~late], self.data.edge_index[:, late]
        draws = torch.rand(self.test.size(1), generator=generator)
        self.other = (draws * self.test[0]).long()

    def _cited(self, topics: Tensor, generator: torch.Generator) -> Iterator[tuple[int, int]]:
        earlier: list[list[int]] = [[] for _ in range(self.num_topics)]
        for paper, topic in enumerate(topics.tolist()):
            known = earlier[topic]
            for draw in torch.rand(8, generator=generator).tolist() if known else ():
                yield paper, known[int(len(known) * draw)]
            known.append(paper)

    def model(self) -> nn.Module:
        """Return a GraphSAGE of two layers."""
        made: nn.Module = GraphSAGE(self.width, 32, 2, 32)
        return made

    def loader(self, library: str, seed: int) -> Any:
        """Return the loader of early links, each just before the paper that cites."""
        options = {
            "edge_label_index": self.links,
            "edge_label_time": 2 * self.links[0] - 1,
            "neg_sampling": "binary",
            "batch_size": 512,
            "shuffle": True,
        }
        if library == "khop":
            return LinkNeighborLoader(
                self.data, self.fan_outs, time_attr="time", seed=seed, **options
            )
        sampler = pyg_sampler(self.data, list(self.fan_outs), time_attr="time")
        return LinkLoader(self.data, sampler, **options)

    loss = Dependencies.loss

    def score(self, model: nn.Module) -> float:
        """Return how often a late link scores above one to a random earlier paper."""
        known = self.data.edge_index[:, self.data.edge_index[0] < int(self.test[0].min())]
        h = model(self.data.x, known)
        return auc(_scores(h, self.test), _scores(h, torch.stack([self.test[0], self.other])))


def _scores(h: Tensor, links: Tensor) -> Tensor:
    return (h[links[0]] * h[links[1]]).sum(1)


def auc(of_links: Tensor, of_others: Tensor) -> float:
    """Return how often one of the first scores above one of the second. Ties count half."""
    others = of_others.sort().values
    below = torch.searchsorted(others, of_links) + torch.searchsorted(others, of_links, right=True)
    return float(below.double().mean() / 2 / len(others))
