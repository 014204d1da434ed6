"""OGB data sets in the form that PyG's loaders take."""

from pathlib import Path

import numpy as np
import torch
from ogb.nodeproppred import PygNodePropPredDataset
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import EdgeStorage, GlobalStorage, NodeStorage

# OGB calls torch.load with its defaults. Since torch 2.6, torch.load then rejects all classes that
# are not registered. OGB's files contain PyG's containers, and NumPy's arrays and scalars. NumPy 1
# wrote these files, and has other names for some functions than NumPy 2.
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
    """Read a data set. If `root` does not contain it, OGB downloads it.

    Args:
        name: name of the data set, 'ogbn-products' for example.
        root: OGB's folder of data sets. For a data set that is not part of OGB, a folder of
            `ogb.io.DatasetSaver`, which contains `meta_dict.pt`.

    Returns:
        The graph and the number of classes. The labelled node type has labels `y` int64 [N], and
        masks `train_mask`, `val_mask` and `test_mask`, bool [N].
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
    """Return the description that `DatasetSaver` wrote, with the present folder of the data set."""
    file = root / "meta_dict.pt"
    if not file.exists():
        return None
    meta = torch.load(file, weights_only=True)
    return {**meta, "dir_path": str(root / Path(meta["dir_path"]).name)}


def hetero_data(data: Data) -> HeteroData:
    """Convert OGB's dictionaries to `HeteroData` with node counts, features and edges."""
    graph = HeteroData()
    for node_type, num_nodes in data.num_nodes_dict.items():
        graph[node_type].num_nodes = num_nodes
    for node_type, x in data.x_dict.items():
        graph[node_type].x = x
    for edge_type, edge_index in data.edge_index_dict.items():
        graph[edge_type].edge_index = edge_index
    return graph


def _add_labels(store, y: Tensor, split: dict) -> None:
    """Add labels [N] and masks [N]. OGB has labels [N, 1], and lists of nodes as splits."""
    store.y = y.view(-1)
    for name, ogb_name in (("train", "train"), ("val", "valid"), ("test", "test")):
        mask = torch.zeros(len(store.y), dtype=torch.bool)
        mask[torch.as_tensor(split[ogb_name])] = True
        store[f"{name}_mask"] = mask
