"""Safe use of `torch.load`: no code of files is run, and only known types are read.

Functions import torch when they are called.
"""

from __future__ import annotations

import collections
import contextlib
import os
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from khop.data.files import load_torch
from khop.safe_versions import check_torch

INSTEAD = "pass a graph of your own itself: khop.partition_graph(data, ...)"
"""Advice in errors where torch is too old to read a file safely."""


@contextlib.contextmanager
def refusing_code() -> Iterator[None]:
    """Context in which each `torch.load` refuses code, also if its caller or the user allows code.

    OGB passes no `weights_only`, and PyG's data sets turn it off for their own files. Only torch's
    environment variables overrule both. Some users of OGB have set the variable that allows code.
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
def containers_admitted() -> Iterator[None]:
    """Context in which `torch.load(weights_only=True)` reads PyG's containers and NumPy's arrays.

    Call `check_torch` first: older versions of torch are not safe.
    """
    import torch

    before = torch.serialization.get_safe_globals()
    # torch fills no defaultdict, which PyG admits: the name stands for a dict here.
    kept = [known for known in before if known is not collections.defaultdict]
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals([*kept, *_pyg_containers(), *_numpy_constructors()])
    try:
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def _pyg_containers() -> list[Any]:
    from torch_geometric.data import Data, HeteroData, data, storage

    names = ("BaseStorage", "NodeStorage", "EdgeStorage", "GlobalStorage")
    # Names of the first two differ between versions of PyG.
    optional = {"DataEdgeAttr": data, "DataTensorAttr": data, "AttrType": storage}
    return [
        *(Data, HeteroData),
        *(getattr(storage, name) for name in names),
        *(getattr(module, n) for n, module in optional.items() if hasattr(module, n)),
        *_stand_ins(),
    ]


def _stand_ins() -> list[Any]:
    """Return harmless replacements for the other classes that pickles of PyG's objects name.

    A store has a defaultdict as a cache. A pickled `Batch` calls an instance of
    `DynamicInheritanceGetter`. `_BatchMaker` replaces this class, `_graph_of_batch` the instance.
    """
    batch = "torch_geometric.data.batch"
    return [
        (_empty_dict, "collections.defaultdict"),
        (_BatchMaker, f"{batch}.DynamicInheritanceGetter"),
        (_batch_class, f"{batch}.Batch"),
        _graph_of_batch,
    ]


def _empty_dict(*_factory: Any) -> dict[Any, Any]:
    return {}


class _BatchMaker:
    def __new__(cls) -> Any:
        return _graph_of_batch


def _batch_class() -> None:
    """Replace the class `Batch`, which is never constructed."""


def _graph_of_batch(_batch: Any, graph_class: Any) -> Any:
    """Return an empty `graph_class`, which torch.load fills with the content of a `Batch`."""
    from torch_geometric.data import Data, HeteroData

    if graph_class not in (Data, HeteroData):
        raise pickle.UnpicklingError(f"a Batch of {graph_class!r:.80} is not read")
    return graph_class.__new__(graph_class)


def _numpy_constructors() -> list[Any]:
    """Return the callables and types that pickles of NumPy arrays and numbers name."""
    dtypes = {type(np.dtype(t)) for t in ("bool", "int32", "int64", "float32", "float64")}
    makers: list[Any] = [value.__reduce__()[0] for value in (np.zeros(1), np.int64(0))]
    # Files of NumPy 1 use other names.
    makers += [(make, f"numpy.core.multiarray.{make.__name__}") for make in makers]
    return [*makers, np.ndarray, np.dtype, *dtypes]


def reason_of(error: Exception) -> str:
    """Return torch.load's reason for an error, without its advice to load unsafely."""
    lines = str(error).rpartition("WeightsUnpickler error:")[2].strip().splitlines() or [""]
    reason = lines[0].partition(". ")[0].strip()
    if missing := re.search(r"GLOBAL ([\w.]+)", reason):
        return f"it needs '{missing[1]}', which is neither a tensor nor a container of PyG"
    if built := re.search(r"but got <(?:class|function) '?([\w.]+)", reason):
        return f"it holds a '{built[1]}'"
    # Other errors than torch's own describe the state of its unpickler, such as KeyError(101).
    known = isinstance(error, (pickle.UnpicklingError, RuntimeError)) and "operand" not in reason
    return reason if known and "weights" not in reason.lower() else "its pickle is malformed"


def load_numbers(path: Path) -> Any:
    """Load dictionaries of arrays, tensors and numbers: OGB's splits and descriptions.

    Raises:
        SecurityError: torch is older than 2.10.
        ValueError: the file holds something else, or is damaged.
        ModuleNotFoundError: there is no torch.
    """
    check_torch(path, INSTEAD)
    try:
        with containers_admitted():
            return load_torch(path, INSTEAD)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, AttributeError) as error:
        raise ValueError(
            f"'{path}' holds more than numbers, or is damaged ({reason_of(error)})"
        ) from None
