"""GLT's loaders of graphs in memory: seeds from torch's `DataLoader`, subgraphs from khop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from khop.glt.data import Dataset
from khop.glt.loader.transform import to_data, to_hetero_data
from khop.glt.sampler import (
    BaseSampler,
    EdgeIndex,
    EdgeSamplerInput,
    NegativeSampling,
    NeighborSampler,
    NodeSamplerInput,
    SamplerOutput,
)
from khop.glt.sampler.base import Negatives
from khop.glt.typing import (
    Device,
    EdgeType,
    InputEdges,
    InputNodes,
    NodeType,
    NumNeighbors,
    reverse_edge_type,
)
from khop.glt.utils import convert_to_tensor, get_available_device


class _Loader:
    """Base of GLT's loaders: torch's `DataLoader` yields seeds, and a sampler makes batches.

    Attributes:
        data: the data set.
        device: device of the batches. Without a GPU it is the CPU.
    """

    def __init__(self, data: Dataset, positions: Any, device: Device, **kwargs: Any) -> None:
        self.data = data
        chosen = get_available_device(device)
        self.device = chosen if torch.cuda.is_available() else torch.device("cpu")
        self._seed_loader = DataLoader(positions, **kwargs)

    def __len__(self) -> int:
        return len(self._seed_loader)

    def __iter__(self) -> Iterator[Any]:
        for positions in self._seed_loader:
            batch = self._make(positions)
            yield batch.to(self.device) if hasattr(batch, "to") else batch

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def _make(self, positions: Any) -> Any:
        raise NotImplementedError

    def _collate_fn(self, sampler_out: Any, label_type: NodeType | None = None) -> Any:
        """Make a batch: a sampled subgraph with the attributes of its nodes and edges.

        Args:
            sampler_out: the subgraph.
            label_type: the node type whose labels the batch gets.
        """
        data = self.data
        if isinstance(sampler_out, SamplerOutput):
            node, edge = sampler_out.node.cpu(), sampler_out.edge
            features, labels = data.get_node_feature(), data.get_node_label()
            edge_attr = None
            if edge is not None and (edge_features := data.get_edge_feature()) is not None:
                edge_attr = edge_features[edge]
            x = None if features is None else features[node]
            return to_data(sampler_out, None if labels is None else labels[node], x, edge_attr)
        x_dict, y_dict, attrs = {}, {}, {}
        for node_type, ids in sampler_out.node.items():
            if (feature := data.get_node_feature(node_type)) is not None:
                x_dict[node_type] = feature[ids]
        if label_type is not None and (labels := data.get_node_label(label_type)) is not None:
            y_dict[label_type] = labels[sampler_out.node[label_type].cpu()]
        for edge_type, ids in (sampler_out.edge or {}).items():
            own = edge_type if data.edge_dir == "in" else reverse_edge_type(edge_type)
            if (feature := data.get_edge_feature(own)) is not None:
                attrs[edge_type] = feature[ids]
        return to_hetero_data(sampler_out, y_dict, x_dict, attrs, data.edge_dir)


def _sampler(
    data: Dataset,
    num_neighbors: NumNeighbors | None,
    with_edge: bool,
    with_weight: bool,
    strategy: str,
    seed: int | None,
) -> NeighborSampler:
    if not isinstance(data, Dataset):
        raise TypeError(
            f"data must be a khop.glt.data.Dataset (got '{type(data).__name__}'): PyG's Data has "
            "its loaders in khop.loader"
        )
    if data.graph is None:
        raise ValueError("the data set has no graph: call init_graph() first")
    counts: dict[NodeType, int] = {}
    for node_type in data.get_node_types() or ["node"]:
        for held in (data.get_node_feature(node_type), data.get_node_label(node_type)):
            if held is not None and getattr(held, "id2index", None) is None:
                counts[node_type] = max(counts.get(node_type, 0), held.shape[0])
    return NeighborSampler(
        data.graph,
        num_neighbors,
        with_edge=with_edge,
        with_weight=with_weight,
        strategy=strategy,
        seed=seed,
        num_nodes=counts,
    )


class NodeLoader(_Loader):
    """Loader of subgraphs that a sampler draws around seed nodes.

    Args:
        data: the data set.
        node_sampler: the sampler.
        input_nodes: ids or mask of the seeds. In a heterogeneous graph, (node type, ids or mask).
        device: device of the batches. If None, torch's current GPU, or the CPU without one.
        **kwargs: arguments of `torch.utils.data.DataLoader`.
    """

    def __init__(
        self,
        data: Dataset,
        node_sampler: BaseSampler,
        input_nodes: InputNodes,
        device: Device = None,
        **kwargs: Any,
    ) -> None:
        self._input_type: NodeType | None = None
        seeds: Any = input_nodes
        if isinstance(input_nodes, tuple):
            self._input_type, seeds = input_nodes
        ids = torch.as_tensor(convert_to_tensor(seeds))
        ids = ids.nonzero().view(-1) if ids.dtype == torch.bool else ids
        super().__init__(data, ids, device, **kwargs)
        self.sampler = node_sampler
        self.input_nodes = input_nodes

    def _make(self, positions: Tensor) -> Any:
        out = self.sampler.sample_from_nodes(NodeSamplerInput(positions, self._input_type))
        return self._collate_fn(out, self._input_type)


class NeighborLoader(NodeLoader):
    """Loader of sampled neighbourhoods of seed nodes, with GLT's arguments and batches.

    Args:
        data: the data set.
        num_neighbors: fan-out of each hop, or {edge type: fan-outs}. -1 takes all.
        input_nodes: see `NodeLoader`.
        neighbor_sampler: sampler to use. If None, a new one.
        batch_size: seeds in a batch.
        shuffle: draw seeds in a random order, by torch's default generator (default: False).
        drop_last: leave an incomplete last batch out.
        with_edge: batches have edge ids (`edge`) and edge features.
        with_weight: draw by weight.
        strategy: only 'random'.
        device: device of the batches. If None, torch's current GPU, or the CPU without one.
        as_pyg_v1: batches are (batch size, node ids, [`EdgeIndex`, ...]), outermost hop first.
        seed: makes draws reproducible.
        **kwargs: arguments of `torch.utils.data.DataLoader`, for the seeds.

    Example:
        >>> dataset = Dataset()
        >>> dataset.init_graph(torch.tensor([[0, 0, 1], [1, 2, 2]]), graph_mode="CPU")
        >>> dataset.init_node_features(torch.eye(3))
        >>> batch = next(iter(NeighborLoader(dataset, [2], torch.tensor([0]))))
        >>> batch.node.tolist(), batch.edge_index.tolist()
        ([0, 1, 2], [[1, 2], [0, 0]])
    """

    def __init__(
        self,
        data: Dataset,
        num_neighbors: NumNeighbors,
        input_nodes: InputNodes,
        neighbor_sampler: NeighborSampler | None = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        with_edge: bool = False,
        with_weight: bool = False,
        strategy: str = "random",
        device: Device = None,
        as_pyg_v1: bool = False,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        if neighbor_sampler is None:
            neighbor_sampler = _sampler(data, num_neighbors, with_edge, with_weight, strategy, seed)
        kwargs |= {"batch_size": batch_size, "shuffle": shuffle, "drop_last": drop_last}
        super().__init__(data, neighbor_sampler, input_nodes, device, **kwargs)
        self.as_pyg_v1 = as_pyg_v1

    def _make(self, positions: Tensor) -> Any:
        if not self.as_pyg_v1:
            return super()._make(positions)
        out = self.sampler.sample_from_nodes(NodeSamplerInput(positions))
        assert isinstance(out, SamplerOutput)
        return _layers(out, self.device)


def _layers(out: SamplerOutput, device: Device) -> tuple[int, Tensor, list[EdgeIndex]]:
    """Return (batch size, node ids, layers). A layer has the edges of its hop and earlier ones."""
    layers, num_edges, num_nodes = [], 0, out.num_sampled_nodes[0]
    first = num_nodes
    for hop, count in enumerate(out.num_sampled_edges):
        num_edges += count
        destinations, num_nodes = num_nodes, num_nodes + out.num_sampled_nodes[hop + 1]
        ends = torch.stack([out.row[:num_edges], out.col[:num_edges]])
        ids = None if out.edge is None else out.edge[:num_edges]
        layers.append(EdgeIndex(ends, ids, (num_nodes, destinations)).to(device))
    return first, out.node.to(device), layers[::-1]


class SubGraphLoader(NodeLoader):
    """Loader of induced subgraphs of seeds, or of their neighbourhoods.

    Args:
        data: the data set.
        input_nodes: ids or a mask of the seeds.
        num_neighbors: fan-out of each hop. If None, the seeds alone.
        neighbor_sampler: sampler to use. If None, a new one.
        batch_size, shuffle, drop_last, with_edge, strategy, device, seed, **kwargs: as for
            `NeighborLoader`.

    Nodes of batches are ascending. `mapping` has the positions of the seeds.
    """

    def __init__(
        self,
        data: Dataset,
        input_nodes: InputNodes,
        num_neighbors: NumNeighbors | None = None,
        neighbor_sampler: NeighborSampler | None = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        with_edge: bool = False,
        strategy: str = "random",
        device: Device = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        if neighbor_sampler is None:
            neighbor_sampler = _sampler(data, num_neighbors, with_edge, False, strategy, seed)
        kwargs |= {"batch_size": batch_size, "shuffle": shuffle, "drop_last": drop_last}
        super().__init__(data, neighbor_sampler, input_nodes, device, **kwargs)

    def _make(self, positions: Tensor) -> Any:
        out = self.sampler.subgraph(NodeSamplerInput(positions))
        out.metadata = {"mapping": out.metadata}
        return self._collate_fn(out)


class LinkLoader(_Loader):
    """Loader of subgraphs that a sampler draws around links (edges to predict).

    Args:
        data: the data set.
        link_sampler: the sampler.
        edge_label_index: [2, num_links] links. If None, all edges. In a heterogeneous graph an
            edge type (all its edges) or (edge type, links).
        edge_label: [num_links] labels. With binary negatives, labels from 0 on are increased by 1.
        neg_sampling: options of negatives, or None for no negatives.
        device: device of the batches. If None, torch's current GPU, or the CPU without one.
        edge_dir: accepted, not needed: the data set has it.
        **kwargs: arguments of `torch.utils.data.DataLoader`.

    Raises:
        ValueError: there are labels and negatives of mode 'triplet'.
    """

    def __init__(
        self,
        data: Dataset,
        link_sampler: BaseSampler,
        edge_label_index: InputEdges | None = None,
        edge_label: Tensor | None = None,
        neg_sampling: Negatives = None,
        device: Device = None,
        edge_dir: str = "out",
        **kwargs: Any,
    ) -> None:
        del edge_dir
        self.neg_sampling: NegativeSampling | None = NegativeSampling.cast(neg_sampling)
        link_type, (row, col) = get_edge_label_index(data, edge_label_index)
        if self.neg_sampling is not None and edge_label is not None:
            if self.neg_sampling.is_triplet():
                raise ValueError(
                    "negatives of mode 'triplet' have no labels: leave edge_label out, and use "
                    "src_index, dst_pos_index and dst_neg_index of batches"
                )
            if edge_label.numel() and int(edge_label.min()) == 0:
                edge_label = edge_label + 1  # 0 is for negatives
        self.link_sampler = link_sampler
        self.input_data = EdgeSamplerInput(row, col, edge_label, link_type, self.neg_sampling)
        super().__init__(data, torch.arange(len(row)), device, **kwargs)

    def _make(self, positions: Tensor) -> Any:
        return self._collate_fn(self.link_sampler.sample_from_edges(self.input_data[positions]))


class LinkNeighborLoader(LinkLoader):
    """Loader of sampled neighbourhoods of links.

    Args:
        data: the data set.
        num_neighbors: fan-out of each hop, or {edge type: fan-outs}. -1 takes all.
        neighbor_sampler: sampler to use. If None, a new one.
        edge_label_index, edge_label, neg_sampling: see `LinkLoader`.
        with_edge, with_weight, batch_size, shuffle, drop_last, strategy, device, seed, **kwargs: as
            for `NeighborLoader`.
    """

    def __init__(
        self,
        data: Dataset,
        num_neighbors: NumNeighbors,
        neighbor_sampler: NeighborSampler | None = None,
        edge_label_index: InputEdges | None = None,
        edge_label: Tensor | None = None,
        neg_sampling: Negatives = None,
        with_edge: bool = False,
        with_weight: bool = False,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        strategy: str = "random",
        device: Device = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        if neighbor_sampler is None:
            neighbor_sampler = _sampler(data, num_neighbors, with_edge, with_weight, strategy, seed)
        kwargs |= {"batch_size": batch_size, "shuffle": shuffle, "drop_last": drop_last}
        super().__init__(
            data, neighbor_sampler, edge_label_index, edge_label, neg_sampling, device, **kwargs
        )


def get_edge_label_index(
    data: Dataset, edge_label_index: InputEdges | None
) -> tuple[EdgeType | None, tuple[Tensor, Tensor]]:
    """Return the links of a link loader: (edge type or None, (sources, destinations)).

    Args:
        data: the data set.
        edge_label_index: see `LinkLoader`.
    """
    links: Any = edge_label_index
    link_type: EdgeType | None = None
    if isinstance(links, tuple) and isinstance(links[0], str):
        link_type, links = links, None
    elif isinstance(links, tuple) and isinstance(links[0], tuple):
        link_type, links = links
    if links is not None:
        row, col = convert_to_tensor(list(links))
        return link_type, (row, col)
    graph = data.get_graph(link_type)
    if graph is None:
        raise ValueError(f"no edges of type {link_type}: there are {data.get_edge_types()}")
    row, col, _, _ = graph.topo.to_coo()
    return link_type, (row, col)
