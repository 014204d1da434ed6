"""OGB data sets, as PyG's loaders want them."""

from pathlib import Path

import numpy as np
import torch
from ogb.nodeproppred import PygNodePropPredDataset
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import EdgeStorage, GlobalStorage, NodeStorage

# OGB loads its files with torch.load's defaults, which since torch 2.6 admit no other classes than
# those named: PyG's containers, and NumPy's arrays and numbers, as NumPy 2 calls them and as
# NumPy 1 did when OGB's data sets were saved.
_makers = [value.__reduce__()[0] for value in (np.zeros(1), np.int64(0))]
torch.serialization.add_safe_globals(
    [
        *(DataEdgeAttr, DataTensorAttr, NodeStorage, EdgeStorage, GlobalStorage),
        *(np.ndarray, np.dtype),
        *(type(np.dtype(name)) for name in ("int32", "int64", "float32", "float64")),
        *_makers,
        *((make, f"numpy.core.multiarray.{make.__name__}") for make in _makers),
    ]
)


def load_ogb(name: str, root: str) -> tuple[Data | HeteroData, int]:
    """Reads a data set; OGB downloads it where `root` does not hold it.

    Args:
        name: 'ogbn-products' for example.
        root: OGB's folder of data sets; or, with a data set of your own, the folder with its
            `meta_dict.pt`, as `ogb.io.DatasetSaver` makes it.

    Returns:
        The graph, with labels `y` int64 [N] and boolean `train_mask`, `val_mask`, `test_mask` [N]
        (of the labelled node type), and the number of classes.
    """
    dataset = PygNodePropPredDataset(name, root, meta_dict=own_meta(Path(root)))
    data, split = dataset[0], dataset.get_idx_split()
    if not dataset.is_hetero:
        _add_labels(data, data.y, split)
        return data, dataset.num_classes
    graph = hetero_data(data)
    (node_type,) = data.y_dict
    split = {part: ids[node_type] for part, ids in split.items()}
    _add_labels(graph[node_type], data.y_dict[node_type], split)
    return graph, dataset.num_classes


def own_meta(root: Path) -> dict | None:
    """What `DatasetSaver` says of a data set of your own; its folder may have been moved."""
    file = root / "meta_dict.pt"
    if not file.exists():
        return None
    meta = torch.load(file, weights_only=True)
    return {**meta, "dir_path": str(root / Path(meta["dir_path"]).name)}


def hetero_data(data: Data) -> HeteroData:
    """OGB's dictionaries as `HeteroData`: features, numbers of nodes, and edges."""
    graph = HeteroData()
    for node_type, num_nodes in data.num_nodes_dict.items():
        graph[node_type].num_nodes = num_nodes
    for node_type, x in data.x_dict.items():
        graph[node_type].x = x
    for edge_type, edge_index in data.edge_index_dict.items():
        graph[edge_type].edge_index = edge_index
    return graph


def _add_labels(store, y: Tensor, split: dict) -> None:
    """OGB's labels are [N, 1]; its splits are lists of nodes."""
    store.y = y.view(-1)
    for ours, theirs in (("train", "train"), ("val", "valid"), ("test", "test")):
        mask = torch.zeros(len(store.y), dtype=torch.bool)
        mask[torch.as_tensor(split[theirs])] = True
        store[f"{ours}_mask"] = mask
