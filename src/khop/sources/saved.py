"""Reader of graphs that `torch.save` wrote: PyG's objects, or their `to_dict()`.

No code in a file is run: `torch.load(weights_only=True)` of torch 2.10 or later reads it. PyG's
own containers are admitted by name.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from khop.data.files import check_regular, load_torch
from khop.partition.source import GraphSource
from khop.safe_versions import check_torch
from khop.sources.base import Source
from khop.sources.scratch import Scratch
from khop.sources.torch_files import INSTEAD, containers_admitted, reason_of


class SavedData(Source):
    """Reader of a file in which `torch.save` stored a PyG object."""

    paths = "FILE.pt"
    about = (
        "a PyG `Data`, `HeteroData` or `Batch` of `torch.save`, or its `to_dict()`; read without "
        "running its pickle, by torch 2.10 or later"
    )
    unpacked = "read as a whole"
    is_whole = True

    def matches(self, spec: str) -> bool:
        """Return True if `spec` is a file. `read` refuses files that torch.save did not write."""
        return Path(spec).is_file()

    def read(self, spec: str, scratch: Scratch, root: Path) -> GraphSource:
        """Read the graph of a file. No code in the file is run."""
        return GraphSource.from_data(read_saved(Path(spec)))


def read_saved(path: Path) -> Any:
    """Read a PyG `Data` or `HeteroData` that was saved by `torch.save`, without running its pickle.

    Raises:
        SecurityError: torch is older than 2.10.
        ValueError, TypeError: the file holds no PyG graph, or is damaged.
    """
    from torch_geometric.data import Data, HeteroData

    _check_head(path)
    check_torch(path, INSTEAD)
    try:
        with containers_admitted():
            content = load_torch(path, INSTEAD)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"'{path}' is not a PyG Data or HeteroData made of tensors alone, and khop runs no "
            f"pickled code ({reason_of(error)}): remove what is no tensor, save "
            "torch.save(data.to_dict(), path), or call khop.partition_graph(data, ...) in Python"
        ) from None
    except (RuntimeError, EOFError, LookupError, AttributeError, TypeError, ValueError) as error:
        if "TorchScript" in str(error):
            raise TypeError(f"'{path}' holds a TorchScript program, not a graph") from None
        raise ValueError(
            f"'{path}' is not a file of torch.save, or damaged: {reason_of(error)}"
        ) from None
    if isinstance(content, dict):
        return _of_dict(content, path)
    if not isinstance(content, (Data, HeteroData)):
        raise TypeError(
            f"'{path}' holds a '{type(content).__name__}': save one graph, as in "
            "torch.save(dataset[0], path)"
        )
    return _of_attributes(content, path)


def _check_head(path: Path) -> None:
    """Raise ValueError if the first bytes of a file are not the ones that `torch.save` writes."""
    with check_regular(path).open("rb") as file:
        head = file.read(32)
    if head.startswith((b"PK\x03\x04", b"\x80\x02")):  # zip archives, and old pickles
        return
    if head.startswith(b"\x80"):
        raise ValueError(
            f"'{path}' is a file of Python's pickle, not of torch.save, and khop runs no pickled "
            "code: save the graph by torch.save(data, path)"
        )
    raise ValueError(
        f"'{path}' is not a file of torch.save: it begins with {head!r}; save a graph by "
        "torch.save(data, path), or name a folder that holds files of edges"
    )


def _of_attributes(saved: Any, path: Path) -> Any:
    """Copy the attributes of a loaded graph into a new graph, and nothing else of the file."""
    from torch_geometric.data import Data, HeteroData

    try:
        if isinstance(saved, Data):
            return Data.from_dict(_mapping(saved.__dict__["_store"]))
        stores = {
            "_global_store": saved.__dict__["_global_store"],
            **saved.__dict__["_node_store_dict"],
            **saved.__dict__["_edge_store_dict"],
        }
        stores = {name: _mapping(store) for name, store in stores.items()}
        if all(_describes_type(*item) for item in stores.items()):
            return HeteroData.from_dict(stores)
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        raise ValueError(f"'{path}' holds a damaged graph: {error!r:.200}") from None
    raise ValueError(f"'{path}' holds a damaged graph: its types are {[*stores]!r:.200}")


def _mapping(store: Any) -> dict[str, Any]:
    return _checked_names(store.__dict__["_mapping"])


def _checked_names(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes. Raise ValueError if a name begins with '_', which PyG reserves."""
    if kept := [name for name in attributes if name.startswith("_")]:
        raise ValueError(f"attributes have the names {kept!r:.80}")
    return dict(attributes)


def _of_dict(content: Mapping[Any, Any], path: Path) -> Any:
    """Make a graph of the result of `data.to_dict()`, of `Data` or `HeteroData`."""
    from torch_geometric.data import Data, HeteroData

    keys = ", ".join(str(key)[:40] for key in [*content][:5])
    names_only = all(isinstance(key, str) for key in content)
    try:
        if names_only and "edge_index" in content:
            return Data.from_dict(_checked_names(content))
        has_edges = any(isinstance(key, tuple) for key in content)
        if has_edges and all(_describes_type(*item) for item in content.items()):
            return HeteroData.from_dict(dict(content))
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        raise ValueError(f"'{path}' holds a dict that is no graph: {error}") from None
    raise TypeError(
        f"'{path}' holds a dict with the keys {keys or '(none)'}, not a Data or HeteroData: save "
        "one graph, as in torch.save(data, path); of dicts those of data.to_dict() are read, which "
        "have 'edge_index', or a dict for each node and edge type"
    )


def _describes_type(key: Any, store: Any) -> bool:
    """Return True if a key and its value can be an entry of `HeteroData.to_dict()`."""
    of_edges = isinstance(key, tuple) and len(key) == 3 and all(isinstance(k, str) for k in key)
    return (isinstance(key, str) or of_edges) and (
        isinstance(store, Mapping)
        and all(isinstance(name, str) and not name.startswith("_") for name in store)
    )
