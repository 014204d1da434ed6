"""Labels and stores that users name beside a partition folder. Runs in trainers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from khop.data import RowStore
from khop.data.files import load_npy, load_torch
from khop.storage.folder import FolderMeta
from khop.storage.named_stores import NamedStore, StoreKey
from khop.typing import NODE, EdgeType, NodeType

LabelFiles: TypeAlias = "str | os.PathLike[str] | Mapping[NodeType, str | os.PathLike[str]] | None"
Stores: TypeAlias = "Mapping[str | tuple[NodeType | EdgeType, str], Callable[[], RowStore]]"


def open_stores(meta: FolderMeta, stores: Stores) -> Iterator[NamedStore]:
    """Open the users' stores of attributes, to check them before any process is started.

    Raises:
        KeyError: a store of a type that does not exist.
    """
    counts = {t.name: t.count for owner in ("node", "edge") for t in meta.types(owner)}
    for store_name, opener in stores.items():
        key = (NODE, store_name) if isinstance(store_name, str) else store_name
        if not isinstance(key, tuple) or len(key) != 2 or key[0] not in counts:
            raise KeyError(
                f"stores: a key must be (node or edge type, name of an attribute) (got "
                f"{store_name!r}): types are {list(counts)}"
            )
        owner = "node" if isinstance(key[0], str) else "edge"
        yield NamedStore.checked(StoreKey(owner, *key), opener, counts[key[0]])


def read_labels(meta: FolderMeta, files: LabelFiles) -> dict[NodeType, Tensor]:
    """Read labels by original id: of one file of a homogeneous graph, or {node type: file}.

    Raises:
        ValueError: one file of a heterogeneous graph, or a file without a label for each node.
    """
    if files is None:
        return {}
    if isinstance(files, Mapping):
        return {node_type: _labels(meta, node_type, Path(f)) for node_type, f in files.items()}
    if meta.heterogeneous:
        raise ValueError(
            "whole_node_label_file of a heterogeneous graph must name node types: there are "
            f"{[t.name for t in meta.node_types]}"
        )
    return {NODE: _labels(meta, NODE, Path(files))}


def _labels(meta: FolderMeta, node_type: NodeType, file: Path) -> Tensor:
    if file.suffix == ".npy":
        labels = torch.from_numpy(load_npy(file))
    else:
        labels = load_torch(file, "pass the labels, or an .npy file")
    if not isinstance(labels, Tensor) or labels.size(0) != meta.node_type(node_type).count:
        raise ValueError(
            f"'{file}' does not hold a tensor with a label for each node of type '{node_type}'"
        )
    return labels
