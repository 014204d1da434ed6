"""GLT's `Dataset`: a graph in memory with features, labels and splits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from khop.glt.arguments import by_type
from khop.glt.data.feature import DeviceGroup, Feature
from khop.glt.data.graph import Graph, Topology
from khop.glt.typing import Device, EdgeType, NodeIndex, NodeLabel, NodeType, TensorDataType
from khop.glt.utils import apply_to_all_tensor, convert_to_tensor, share_memory
from khop.typing import EDGE

_Edges = TensorDataType | tuple[TensorDataType, TensorDataType]


class Dataset:
    """Graph in memory with features, labels and splits: the input of GLT's loaders.

    Args:
        graph: the graph, or {edge type: graph}.
        node_features: features, or {node type: features}.
        edge_features: features, or {edge type: features}.
        node_labels: [num_nodes] labels, or {node type: labels}.
        edge_dir: draw neighbours along the edges ('out', GLT's default) or against them ('in').
        node_split: ids of training, validation and test nodes.

    Attributes:
        train_idx, val_idx, test_idx: [n] ids, or {node type: ids}, or None.

    Example:
        >>> dataset = Dataset()
        >>> dataset.init_graph(torch.tensor([[0, 1], [1, 2]]), graph_mode="CPU")
        >>> dataset.get_graph().edge_count
        2
    """

    def __init__(
        self,
        graph: Graph | dict[EdgeType, Graph] | None = None,
        node_features: Feature | dict[NodeType, Feature] | None = None,
        edge_features: Feature | dict[EdgeType, Feature] | None = None,
        node_labels: NodeLabel | None = None,
        edge_dir: Literal["in", "out"] = "out",
        node_split: tuple[NodeIndex, NodeIndex, NodeIndex] | None = None,
    ) -> None:
        if edge_dir not in ("in", "out"):
            raise ValueError(f"edge_dir must be 'in' or 'out' (got {edge_dir!r})")
        self.graph = graph
        self.node_features = node_features
        self.edge_features = edge_features
        self.node_labels: Any = _columns(node_labels)
        self.edge_dir = edge_dir
        self.train_idx: Tensor | dict[NodeType, Tensor] | None = None
        self.val_idx: Tensor | dict[NodeType, Tensor] | None = None
        self.test_idx: Tensor | dict[NodeType, Tensor] | None = None
        self.init_node_split(node_split)

    def init_graph(
        self,
        edge_index: _Edges | Mapping[EdgeType, _Edges] | None = None,
        edge_ids: TensorDataType | Mapping[EdgeType, TensorDataType] | None = None,
        edge_weights: TensorDataType | Mapping[EdgeType, TensorDataType] | None = None,
        layout: str | Mapping[EdgeType, str] = "COO",
        graph_mode: str = "ZERO_COPY",
        directed: bool = False,
        device: Device = None,
    ) -> None:
        """Make the graph of an edge list, or of {edge type: edge list}. If None, do nothing.

        Args:
            edge_index: [2, num_edges] rows and columns, or a compressed pair as `layout` says.
            edge_ids: [num_edges] ids of edges. If None, positions in `edge_index`.
            edge_weights: [num_edges] weights of edges, or None.
            layout: 'COO', 'CSR' (row offsets, columns) or 'CSC' (rows, column offsets).
            graph_mode: 'CPU', 'ZERO_COPY' or 'CUDA'. Samplers on the CPU draw the same in all.
            directed: accepted, not needed.
            device: accepted, not needed.
        """
        del directed
        if edge_index is None:
            return
        kept: Literal["CSR", "CSC"] = "CSR" if self.edge_dir == "out" else "CSC"
        ids, weights = by_type(edge_ids, EDGE), by_type(edge_weights, EDGE)
        graphs = {}
        for name, ends in by_type(edge_index, EDGE).items():
            form = layout[name] if isinstance(layout, Mapping) else str(layout)
            topology = Topology(ends, ids.get(name), weights.get(name), form, kept)
            graphs[name] = Graph(topology, graph_mode, device)
        self.graph = graphs if isinstance(edge_index, Mapping) else graphs[EDGE]

    def init_node_features(
        self,
        node_feature_data: TensorDataType | Mapping[NodeType, TensorDataType] | None = None,
        id2idx: Any = None,
        sort_func: Callable[..., tuple[Tensor, Tensor]] | None = None,
        split_ratio: float | Mapping[NodeType, float] = 0.0,
        device_group_list: Sequence[DeviceGroup] | None = None,
        device: Device = None,
        with_gpu: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Set the features of nodes, or {node type: features}. If None, keep them.

        Args:
            node_feature_data: [num_nodes, ...] rows of features.
            id2idx: row of each id. If None, ids are rows.
            sort_func: reorders rows, as `sort_by_in_degree` does. Not used with `id2idx`.
            split_ratio: share of the rows for GPUs, passed to `sort_func`.
            device: GPU of the rows that are looked up. If None, torch's current one.
            with_gpu: return rows on a GPU, if there is one.
            dtype: dtype of the features. If None, the data's.
            device_group_list: accepted, not needed.
        """
        if node_feature_data is None:
            return
        data = convert_to_tensor(node_feature_data, dtype)
        if sort_func is not None and id2idx is None and isinstance(self.graph, Graph):
            data, id2idx = sort_func(data, split_ratio, self.graph.topo)
        placement = (device_group_list, device, with_gpu)
        self.node_features = _features(data, id2idx, split_ratio, placement)

    def init_edge_features(
        self,
        edge_feature_data: TensorDataType | Mapping[EdgeType, TensorDataType] | None = None,
        id2idx: Any = None,
        split_ratio: float | Mapping[EdgeType, float] = 0.0,
        device_group_list: Sequence[DeviceGroup] | None = None,
        device: Device = None,
        with_gpu: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Set the features of edges, or {edge type: features}. If None, keep them.

        `edge_feature_data` is [num_edges, ...], and `id2idx` has the row of each edge id. If None,
        ids are rows. The other arguments are as for `init_node_features`.
        """
        if edge_feature_data is not None:
            data = convert_to_tensor(edge_feature_data, dtype)
            placement = (device_group_list, device, with_gpu)
            self.edge_features = _features(data, id2idx, split_ratio, placement)

    def init_node_labels(
        self, node_label_data: NodeLabel | None = None, id2idx: object = None
    ) -> None:
        """Set the labels of nodes, by id, or {node type: labels}. `id2idx` must be None."""
        if id2idx is not None:
            raise NotImplementedError("labels are by id: leave id2idx out (it is Vineyard's)")
        if node_label_data is not None:
            self.node_labels = _columns(node_label_data)

    def init_node_split(
        self, node_split: tuple[NodeIndex, NodeIndex, NodeIndex] | None = None
    ) -> None:
        """Set the ids of training, validation and test nodes, a tuple of three. None: keep them."""
        if node_split is not None:
            self.train_idx, self.val_idx, self.test_idx = _columns(node_split)

    def random_node_split(self, num_val: float, num_test: float) -> None:
        """Split all labelled nodes at random.

        Args:
            num_val: number of validation nodes, or their share if it is a float.
            num_test: number or share of test nodes. All other nodes are training nodes.
        """
        if self.node_labels is None:
            raise ValueError("the split is one of labelled nodes: call init_node_labels() first")
        if isinstance(self.node_labels, dict):
            splits = {
                t: random_split(len(y), num_val, num_test) for t, y in self.node_labels.items()
            }
            train, val, test = ({t: s[i] for t, s in splits.items()} for i in range(3))
            self.init_node_split((train, val, test))
        else:
            self.init_node_split(random_split(len(self.node_labels), num_val, num_test))

    def get_graph(self, etype: EdgeType | None = None) -> Graph | None:
        """Return the graph, or None. In a heterogeneous data set, of one edge type."""
        return _of_type(self.graph, etype)  # type: ignore[no-any-return]

    def get_node_feature(self, ntype: NodeType | None = None) -> Feature | None:
        """Return the features of nodes (of a type, in a heterogeneous data set), or None."""
        return _of_type(self.node_features, ntype)  # type: ignore[no-any-return]

    def get_edge_feature(self, etype: EdgeType | None = None) -> Feature | None:
        """Return the features of edges (of a type, in a heterogeneous data set), or None."""
        return _of_type(self.edge_features, etype)  # type: ignore[no-any-return]

    def get_node_label(self, ntype: NodeType | None = None) -> Tensor | None:
        """Return the labels of nodes (of a type, in a heterogeneous data set), or None."""
        return _of_type(self.node_labels, ntype)  # type: ignore[no-any-return]

    def get_node_types(self) -> list[NodeType] | None:
        """Return the node types of a heterogeneous graph, else None."""
        if not isinstance(self.graph, dict):
            return None
        return list(dict.fromkeys(t for src, _, dst in self.graph for t in (src, dst)))

    def get_edge_types(self) -> list[EdgeType] | None:
        """Return the edge types of a heterogeneous graph, else None."""
        return list(self.graph) if isinstance(self.graph, dict) else None

    def share_ipc(self) -> tuple[Any, ...]:
        """Move tensors to torch's shared memory. Return a handle for another process."""
        for held in (self.graph, self.node_features, self.edge_features):
            for part in held.values() if isinstance(held, dict) else [held]:
                if part is not None:
                    part.share_ipc()
        self.node_labels = share_memory(self.node_labels)
        split = share_memory((self.train_idx, self.val_idx, self.test_idx))
        self.train_idx, self.val_idx, self.test_idx = split
        features = self.node_features, self.edge_features
        return self.graph, *features, self.node_labels, self.edge_dir, split

    @classmethod
    def from_ipc_handle(cls, ipc_handle: tuple[Any, ...]) -> Dataset:
        """Return the data set of a handle that `share_ipc` of another process made."""
        return cls(*ipc_handle)


def _columns(data: Any) -> Any:
    """Convert arrays, also in dictionaries, to tensors. Shape [n, 1] becomes [n]."""

    def column(values: Tensor) -> Tensor:
        return values.squeeze(1) if values.dim() == 2 and values.size(1) == 1 else values

    return apply_to_all_tensor(convert_to_tensor(data), column)


def _of_type(held: Any, name: Any) -> Any:
    return held.get(name) if isinstance(held, dict) else held


def _features(data: Any, id2idx: Any, split_ratio: Any, placement: tuple[Any, Any, bool]) -> Any:
    if isinstance(data, dict):
        ids = id2idx or {}
        shares = split_ratio if isinstance(split_ratio, dict) else dict.fromkeys(data, split_ratio)
        return {t: Feature(x, ids.get(t), shares.get(t, 0.0), *placement) for t, x in data.items()}
    return Feature(data, id2idx, split_ratio, *placement)


def random_split(num_total: int, num_val: float, num_test: float) -> tuple[Tensor, Tensor, Tensor]:
    """Split ids at random into training, validation and test ids.

    Args:
        num_total: number of ids.
        num_val: number of validation ids, or their share if it is a float.
        num_test: number or share of test ids.

    Raises:
        ValueError: a number is negative, or the sum is above `num_total`.
    """
    sizes = [round(num_total * n) if isinstance(n, float) else n for n in (num_val, num_test)]
    if min(sizes) < 0 or sum(sizes) > num_total:
        raise ValueError(
            f"{num_total} nodes cannot be split into {sizes[0]} for validation and {sizes[1]} for "
            "tests"
        )
    order = torch.randperm(num_total)
    val, test, train = torch.split(order, [*sizes, num_total - sum(sizes)])
    return train, val, test


rebuild_dataset = Dataset.from_ipc_handle


def reduce_dataset(dataset: Dataset) -> tuple[Callable[..., Dataset], tuple[tuple[Any, ...]]]:
    """Return a function and its arguments for `pickle`, which shares a data set's memory."""
    return rebuild_dataset, (dataset.share_ipc(),)
