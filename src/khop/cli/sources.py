"""Reader of the graphs that the command line names, as `GraphSource`s.

Nothing here runs code that a file contains: arrays are read without pickle, PyG objects by
`torch.load(weights_only=True)` with PyG's own containers admitted by name. Symbolic links are
followed: a source is the user's own, and large files often lie elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from khop.cli.directory import read_directory
from khop.data import Feature
from khop.data.files import check_regular
from khop.partition.source import EdgeSource, GraphSource
from khop.typing import EDGE, NODE, Array


def read_source(spec: str, root: str = "dataset", undirected: bool = False) -> GraphSource:
    """Read the graph that a SOURCE argument names.

    Args:
        spec: 'debian', 'debian-hetero', 'ogb:NAME', a file saved by `torch.save`, or a folder of
            arrays.
        root: folder of OGB data sets.
        undirected: add the reverse of every edge.

    Raises:
        FileNotFoundError: there is no such source.
        ValueError, TypeError: it cannot be read as a graph; the message says why.
        NotImplementedError: `undirected` for a heterogeneous graph other than 'debian-hetero'.
    """
    if spec in ("debian", "debian-hetero"):
        from khop.datasets import DebianPackages, DebianPackagesHetero

        dataset = DebianPackages if spec == "debian" else DebianPackagesHetero
        return GraphSource.from_data(dataset(undirected=undirected)[0])
    if spec.startswith("ogb:"):
        source = GraphSource.from_data(_read_ogb(spec.removeprefix("ogb:"), Path(root)))
    elif Path(spec).is_dir():
        source = read_directory(Path(spec))
    elif Path(spec).is_file():
        source = GraphSource.from_data(_read_pyg(Path(spec)))
    else:
        raise FileNotFoundError(
            f"no source '{spec}': expected 'debian', 'debian-hetero', 'ogb:NAME', a saved PyG Data "
            "file or a directory with edge_index.npy, edges.csv or edges.parquet"
        )
    return symmetrized(source) if undirected else source


def symmetrized(source: GraphSource) -> GraphSource:
    """Add the reverse of every edge, with the same attributes; of equal edges keep the first.

    Edge ids of the result are positions in order of source and destination, not those of the input.

    Raises:
        NotImplementedError: the graph is heterogeneous.
        IndexError: an edge names a node that does not exist.
    """
    if source.heterogeneous:
        raise NotImplementedError(
            "--undirected is for homogeneous graphs: apply torch_geometric.transforms.ToUndirected "
            "to a heterogeneous graph and save it"
        )
    edge, count = source.edges[EDGE], source.nodes[NODE].count
    if len(edge.src) and not (
        min(edge.src.min(), edge.dst.min()) >= 0 and max(edge.src.max(), edge.dst.max()) < count
    ):
        raise IndexError(f"an edge names a node that is not one of the {count} nodes")
    pair = np.concatenate([edge.src, edge.dst]).astype(np.int64) * count
    pair += np.concatenate([edge.dst, edge.src])
    pair, first = np.unique(pair, return_index=True)
    first %= max(1, len(edge.src))
    attrs = {name: Feature(f.gather(first), f.dtype) for name, f in edge.attrs.items()}
    edges = {EDGE: EdgeSource(pair // max(1, count), pair % max(1, count), attrs)}
    return GraphSource(source.nodes, edges)


def _read_pyg(path: Path) -> Any:
    import torch
    from torch_geometric.data import Data, HeteroData

    try:
        with _containers_admitted():
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"'{path}' is not a PyG Data or HeteroData made of tensors alone, and khop runs no "
            f"pickled code ({_reason(error)})"
        ) from None
    except (RuntimeError, EOFError, KeyError, AttributeError) as error:
        if "TorchScript" in str(error):
            raise TypeError(f"'{path}' holds a TorchScript program, not a graph") from None
        raise ValueError(
            f"'{path}' is not a file of torch.save, or damaged: {_reason(error)}"
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


def _read_ogb(name: str, root: Path) -> Any:
    try:
        from ogb.nodeproppred import PygNodePropPredDataset
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"OGB data sets need package ogb: pip install 'khop[ogb]' ({error})"
        ) from None
    if _torch_version() < (2, 4):
        raise ValueError(
            "'ogb:' sources need torch 2.4 or later: earlier ones read what OGB stores only with "
            "the code that is in it"
        )
    stored = root if (root / "meta_dict.pt").exists() else root / name.replace("-", "_")
    for file in stored.rglob("*"):
        if not file.is_dir():
            check_regular(file)  # OGB does not check
    try:
        # OGB prints, asks before large downloads, and calls exit().
        with contextlib.redirect_stdout(sys.stderr), _containers_admitted(), _weights_only():
            dataset = PygNodePropPredDataset(name, str(root), meta_dict=_ogb_meta(name, root))
            data, splits = dataset[0], dataset.get_idx_split()
    except (EOFError, SystemExit):
        raise FileNotFoundError(
            f"data set '{name}' is not in '{root}' and was not downloaded"
        ) from None
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"the stored copy of '{name}' in '{root}' holds more than a graph, or is damaged: "
            f"remove its 'processed' folder ({_reason(error)})"
        ) from None
    if dataset.is_hetero:
        return _hetero_of_ogb(data, splits)
    _add_labels_and_masks(data, data.y, splits)
    return data


def _ogb_meta(name: str, root: Path) -> dict[str, Any] | None:
    """Read the description of a data set of `ogb.io.DatasetSaver`; None for OGB's own."""
    import torch

    file = root / "meta_dict.pt"
    if not file.is_file():
        return None
    try:
        meta: dict[str, Any] = torch.load(file, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(f"'{file}' is damaged: {_reason(error)}") from None
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
            for kind, value in values.items():
                graph[kind][name.removesuffix("_dict")] = value
    for node_type, labels in data.y_dict.items():
        split = {part: ids[node_type] for part, ids in splits.items()}
        _add_labels_and_masks(graph[node_type], labels, split)
    return graph


def _add_labels_and_masks(store: Any, labels: Any, splits: dict[str, Any]) -> None:
    """Store OGB's labels [N, 1] as [N], and its lists of training nodes and so on as masks."""
    for ours, theirs in (("train", "train"), ("val", "valid"), ("test", "test")):
        store[f"{ours}_mask"] = _mask(np.asarray(splits[theirs]), int(store.num_nodes))
    if labels is not None:
        store.y = labels.flatten() if labels.dim() == 2 and labels.size(1) == 1 else labels


def _mask(ids: Array, count: int) -> Any:
    import torch

    mask = torch.zeros(count, dtype=torch.bool)
    mask[torch.from_numpy(ids)] = True
    return mask


@contextlib.contextmanager
def _weights_only() -> Iterator[None]:
    """Make each `torch.load` refuse code, whatever its caller, torch's default or users set.

    OGB passes no `weights_only`, PyG's data sets turn it off for their own files. Only torch's
    environment variables overrule both. There is one for the contrary, too, which some users set
    for OGB.
    """
    variables = ("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
    before = {name: os.environ.pop(name, None) for name in variables}
    os.environ[variables[0]] = "1"
    try:
        yield
    finally:
        os.environ.pop(variables[0], None)
        os.environ.update({name: value for name, value in before.items() if value is not None})


@contextlib.contextmanager
def _containers_admitted() -> Iterator[None]:
    """Let `torch.load(weights_only=True)` read PyG's containers and NumPy's arrays of numbers."""
    import torch

    admitted = [*_pyg_containers(), *_numpy_constructors()]
    if hasattr(torch.serialization, "safe_globals"):
        # On exit torch removes all entries given to it, also those admitted before: give new ones.
        known = torch.serialization.get_safe_globals()
        with torch.serialization.safe_globals([a for a in admitted if a not in known]):
            yield
        return
    if hasattr(torch.serialization, "add_safe_globals"):  # torch 2.4
        torch.serialization.add_safe_globals(admitted)
    yield


def _pyg_containers() -> list[Any]:
    from torch_geometric.data import Data, HeteroData, data, storage

    names = ("BaseStorage", "NodeStorage", "EdgeStorage", "GlobalStorage")
    optional = ("DataEdgeAttr", "DataTensorAttr")  # their names differ between versions of PyG
    return [
        *(Data, HeteroData),
        *(getattr(storage, name) for name in names),
        *(getattr(data, name) for name in optional if hasattr(data, name)),
    ]


def _numpy_constructors() -> list[Any]:
    """Return the callables and types that pickles of NumPy arrays and numbers name."""
    dtypes = {type(np.dtype(t)) for t in ("bool", "int32", "int64", "float32", "float64")}
    makers: list[Any] = [value.__reduce__()[0] for value in (np.zeros(1), np.int64(0))]
    if _torch_version() >= (2, 6):  # it accepts names, too: files of NumPy 1 use other ones
        makers += [(make, f"numpy.core.multiarray.{make.__name__}") for make in makers]
    return [*makers, np.ndarray, np.dtype, *dtypes]


def _torch_version() -> tuple[int, ...]:
    import torch

    return tuple(int(number) for number in torch.__version__.split(".")[:2])


def _reason(error: Exception) -> str:
    """Return torch.load's reason for an error, without its advice to load unsafely."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "nsupported" in line]
    first = (telling or lines or [""])[0].split(". Please")[0]
    return first if first and "weights" not in first.lower() else "its pickle is malformed"
