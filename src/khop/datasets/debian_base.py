"""Base of the two views of the bundled Debian graph: names, splits and the cache."""

from __future__ import annotations

import functools
import pickle
import warnings
from abc import abstractmethod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData, InMemoryDataset

from khop.data.files import load_torch
from khop.datasets import debian_snapshot as snapshot
from khop.private_folders import written_whole
from khop.safe_versions import reads_torch_files
from khop.typing import Array, Transform


class DebianDataset(InMemoryDataset):  # type: ignore[misc]  # PyG is untyped
    """One graph made from the snapshot, in memory or cached in a folder.

    Args:
        root: folder that caches the processed data, in `root/processed`. If None, the data is
            made in memory.
        undirected: add reverse edges, as the subclass describes.
        transform: applied to the data at each access.
        pre_transform: applied once, before the data is cached.
        force_reload: make the data again, whatever the cache holds.

    Raises:
        RuntimeError: the cache in `root` cannot be read.
    """

    _cache_name: str

    def __init__(
        self,
        root: str | None = None,
        undirected: bool = False,
        transform: Transform | None = None,
        pre_transform: Transform | None = None,
        force_reload: bool = False,
    ) -> None:
        self.undirected = undirected
        super().__init__(root, transform, pre_transform, force_reload=force_reload)
        self._data = self._made() if root is None else self._cached(Path(self.processed_paths[0]))

    @property
    def has_process(self) -> bool:
        """False: PyG's own processing needs a root, and its cache reads pickles."""
        return False

    @property
    def processed_file_names(self) -> str:
        """Name of the cached file below `processed_dir`."""
        return f"{self._cache_name}{'-undirected' if self.undirected else ''}.pt"

    @functools.cached_property
    def names(self) -> list[str]:
        """Names of the packages, in order of nodes."""
        return snapshot.names("name")

    @functools.cached_property
    def section_names(self) -> list[str]:
        """Names of the classes, in order of labels."""
        return snapshot.names("section_name")

    @functools.cached_property
    def edge_kind_names(self) -> list[str]:
        """Names of the relations between packages, strongest first."""
        return snapshot.names("edge_kind_name")

    @functools.cached_property
    def source_names(self) -> list[str]:
        """Names of the source packages, in order of their numbers."""
        return snapshot.names("source_name")

    @functools.cached_property
    def tag_names(self) -> list[str]:
        """Names of the debtags, in order of their numbers."""
        return snapshot.names("tag_name")

    @abstractmethod
    def _make(self) -> Data | HeteroData:
        """Make the data from the snapshot."""

    def _made(self) -> Data | HeteroData:
        data = self._make()
        return data if self.pre_transform is None else self.pre_transform(data)

    def _cached(self, path: Path) -> Data | HeteroData:
        """Return the data from the cache at `path`, and make the cache if need be."""
        pre_transform = repr(self.pre_transform)
        # Where torch is too old to read files safely, it is made each time: that takes a second.
        if self.force_reload or not path.exists() or not reads_torch_files():
            data = self._made()
            _save(data, pre_transform, path)
            return data
        data, cached_pre_transform = _load(path)
        if cached_pre_transform != pre_transform:
            warnings.warn(
                f"the data cached in '{path}' was made with pre_transform={cached_pre_transform}; "
                f"pass force_reload=True to make it with {pre_transform}",
                stacklevel=3,
            )
        return data


def package_attributes() -> dict[str, Tensor]:
    """Return the attributes of packages in both views: `x`, `y` and masks, see `DebianPackages`."""
    split = snapshot.splits()
    return {
        "x": torch.from_numpy(snapshot.features()),
        "y": long(snapshot.arrays("section")[0]),
        "train_mask": torch.from_numpy(split == 0),
        "val_mask": torch.from_numpy(split == 1),
        "test_mask": torch.from_numpy(split == 2),
    }


def tag_index() -> Tensor:
    """Return edges from packages to debtags, int64 [2, 109902], in order of package and tag."""
    count, tag = snapshot.arrays("tag_count", "tag")
    return torch.stack([long(snapshot.rows(count)), long(tag)])


def long(array: Array) -> Tensor:
    """Convert an array to an int64 tensor."""
    return torch.from_numpy(array.astype(np.int64))


def _save(data: Data | HeteroData, pre_transform: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    hetero = isinstance(data, HeteroData)
    content = {"data": data.to_dict(), "hetero": hetero, "pre_transform": pre_transform}
    with written_whole(path) as file:
        torch.save(content, file)


def _load(path: Path) -> tuple[Data | HeteroData, str]:
    """Read the cache, which may have plain containers and tensors only."""
    try:
        content = load_torch(path, "pass force_reload=True")
        cls = HeteroData if content["hetero"] else Data
        return cls.from_dict(content["data"]), content["pre_transform"]
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, TypeError) as error:
        raise RuntimeError(
            f"cannot read '{path}': it is damaged, or a pre_transform added other values than plain"
            f" tensors (pass that one as transform=); remove the file or pass force_reload=True"
        ) from error
