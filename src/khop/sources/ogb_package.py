"""Reader of OGB data sets by OGB's own package, which downloads them, and reads them as a whole.

`khop.sources.ogb_raw` reads data sets that have been downloaded.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np

from khop.data.files import check_regular, load_torch
from khop.safe_versions import check_torch
from khop.sources.torch_files import INSTEAD, containers_admitted, reason_of, refusing_code


def read_with_ogb(name: str, root: Path) -> Any:
    """Read a data set as a PyG object, with masks made of its split.

    Args:
        name: 'ogbn-products' for example.
        root: folder of OGB data sets, or the folder of a data set of one's own.

    Raises:
        SecurityError: torch is older than 2.10.
        FileNotFoundError, ValueError: the data set is missing, or damaged.
        ModuleNotFoundError: OGB's package is not installed.
    """
    try:
        from ogb.nodeproppred import PygNodePropPredDataset
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"OGB data sets need package ogb: pip install ogb ({error})"
        ) from None
    stored = root if (root / "meta_dict.pt").exists() else root / name.replace("-", "_")
    check_torch(stored, INSTEAD)
    for file in stored.rglob("*"):
        if not file.is_dir():
            check_regular(file)  # OGB does not check
    try:
        # OGB prints, asks before large downloads, and calls exit().
        with contextlib.redirect_stdout(sys.stderr), containers_admitted(), refusing_code():
            dataset = PygNodePropPredDataset(name, str(root), meta_dict=_ogb_meta(name, root))
            data, splits = dataset[0], dataset.get_idx_split()
    except (EOFError, SystemExit):
        raise FileNotFoundError(
            f"data set '{name}' is not in '{root}' and was not downloaded"
        ) from None
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"the stored copy of '{name}' in '{root}' holds more than a graph, or is damaged: "
            f"remove its 'processed' folder ({reason_of(error)})"
        ) from None
    if dataset.is_hetero:
        return _hetero_of_ogb(data, splits)
    _add_labels_and_masks(data, data.y, splits)
    return data


def _ogb_meta(name: str, root: Path) -> dict[str, Any] | None:
    """Read the description of a data set of `ogb.io.DatasetSaver`, or None for OGB's own."""
    file = root / "meta_dict.pt"
    if not file.is_file():
        return None
    try:
        meta: dict[str, Any] = load_torch(file, INSTEAD)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(f"'{file}' is damaged: {reason_of(error)}") from None
    folder = root / Path(str(meta["dir_path"])).name  # it may have been moved
    if folder.name != "_".join(name.split("-")[1:]):
        raise FileNotFoundError(f"'{root}' holds data set '{folder.name}', not '{name}'")
    return {**meta, "dir_path": str(folder)}


def _hetero_of_ogb(data: Any, splits: dict[str, Any]) -> Any:
    """Convert OGB's dictionaries by type (`x_dict`, `edge_index_dict`, `node_year`)."""
    from torch_geometric.data import HeteroData

    graph = HeteroData()
    for node_type, count in data.num_nodes_dict.items():
        graph[node_type].num_nodes = int(count)
    for name, values in data.to_dict().items():
        if isinstance(values, dict) and name not in ("num_nodes_dict", "y_dict"):
            for of_type, value in values.items():
                graph[of_type][name.removesuffix("_dict")] = value
    for node_type, labels in data.y_dict.items():
        split = {part: ids[node_type] for part, ids in splits.items()}
        _add_labels_and_masks(graph[node_type], labels, split)
    return graph


def _add_labels_and_masks(store: Any, labels: Any, splits: dict[str, Any]) -> None:
    """Store OGB's labels [N, 1] as [N], and its lists of training nodes and so on as masks."""
    import torch

    for name, split in (("train_mask", "train"), ("val_mask", "valid"), ("test_mask", "test")):
        store[name] = torch.zeros(int(store.num_nodes), dtype=torch.bool)
        store[name][torch.from_numpy(np.asarray(splits[split]))] = True
    if labels is not None:
        store.y = labels.flatten() if labels.dim() == 2 and labels.size(1) == 1 else labels
