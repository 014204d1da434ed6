"""Reader of graphs that `torch.save` wrote: PyG's objects, or their `to_dict()`.

Nothing that a file contains is run: `torch.load(weights_only=True)` of torch 2.10 or later reads
it, with PyG's own containers admitted by name.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from khop.data.files import load_torch
from khop.safe_versions import check_torch
from khop.sources.torch_files import INSTEAD, containers_admitted, reason_of


def read_saved(path: Path) -> Any:
    """Read a PyG `Data` or `HeteroData` that was saved by `torch.save`, without running its pickle.

    Raises:
        SecurityError: torch is older than 2.10.
        ValueError, TypeError: it holds something else; the message says what.
    """
    from torch_geometric.data import Data, HeteroData

    check_torch(path, INSTEAD)
    try:
        with containers_admitted():
            content = load_torch(path, INSTEAD)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"'{path}' is not a PyG Data or HeteroData made of tensors alone, and khop runs no "
            f"pickled code ({reason_of(error)})"
        ) from None
    except (RuntimeError, EOFError, KeyError, AttributeError) as error:
        if "TorchScript" in str(error):
            raise TypeError(f"'{path}' holds a TorchScript program, not a graph") from None
        raise ValueError(
            f"'{path}' is not a file of torch.save, or damaged: {reason_of(error)}"
        ) from None
    if isinstance(content, dict):
        content = _of_dict(content, path)
    if not isinstance(content, (Data, HeteroData)):
        raise TypeError(
            f"'{path}' holds a '{type(content).__name__}': save one graph, as in "
            "torch.save(dataset[0], path)"
        )
    return content


def _of_dict(content: Mapping[Any, Any], path: Path) -> Any:
    """Convert a result of `data.to_dict()` to a graph."""
    from torch_geometric.data import Data, HeteroData

    keys = ", ".join(str(key)[:40] for key in [*content][:5])
    names_only = all(isinstance(key, str) for key in content)
    try:
        if names_only and "edge_index" in content:
            return Data.from_dict(dict(content))
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
    """Return whether this is an entry of `HeteroData.to_dict()`."""
    of_edges = isinstance(key, tuple) and len(key) == 3 and all(isinstance(k, str) for k in key)
    return (isinstance(key, str) or of_edges) and (
        isinstance(store, Mapping) and all(isinstance(name, str) for name in store)
    )
