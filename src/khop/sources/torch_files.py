"""`torch.load` without code: what it may construct, and its errors in short.

Imports torch when it is used, for files that torch wrote.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from khop.data.files import load_torch
from khop.safe_versions import check_torch

INSTEAD = "pass a graph of your own itself: khop.partition(data, ...)"
"""What to do where torch is too old to read a graph's files."""


@contextlib.contextmanager
def refusing_code() -> Iterator[None]:
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
def containers_admitted() -> Iterator[None]:
    """Let `torch.load(weights_only=True)` read PyG's containers and NumPy's arrays of numbers.

    Only where `check_torch` has let torch pass.
    """
    import torch

    admitted = [*_pyg_containers(), *_numpy_constructors()]
    # On exit torch removes all entries given to it, also those admitted before: give new ones.
    known = torch.serialization.get_safe_globals()
    with torch.serialization.safe_globals([a for a in admitted if a not in known]):
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
    # Files of NumPy 1 use other names.
    makers += [(make, f"numpy.core.multiarray.{make.__name__}") for make in makers]
    return [*makers, np.ndarray, np.dtype, *dtypes]


def reason_of(error: Exception) -> str:
    """Return torch.load's reason for an error, without its advice to load unsafely."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "nsupported" in line]
    first = (telling or lines or [""])[0].split(". Please")[0]
    return first if first and "weights" not in first.lower() else "its pickle is malformed"


def load_numbers(path: Path) -> Any:
    """Load dictionaries of arrays, tensors and numbers, as OGB keeps splits and descriptions.

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
