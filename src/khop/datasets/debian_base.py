"""Base class of the bundled Debian graphs, and the arrays that they are made of.

`scripts/make_debian_packages.py` wrote the arrays, the snapshot. Lists of different lengths, such
as the names in each package's relations, are an array of lengths, `count`, and an array of all
values. Names are bytes with line feeds between.
"""

from __future__ import annotations

import functools
import importlib.resources
import pickle
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData, InMemoryDataset

from khop.data.files import load_torch
from khop.private_folders import written_whole
from khop.safe_versions import reads_torch_files
from khop.typing import Array, Int64Array, Transform


class DebianDataset(InMemoryDataset):  # type: ignore[misc]  # PyG is untyped
    """PyG data set with one graph of Debian's packages, in memory or cached in a folder.

    Args:
        root: folder that caches the processed data, in `root/processed`. If None, the data is made
            in memory.
        undirected: add reverse edges, as the subclass describes (default: False).
        transform: applied to the data at each access (default: None).
        pre_transform: applied once, before the data is cached (default: None).
        force_reload: make the data again, whatever the cache holds (default: False).

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
        """False, so that PyG does not cache the data itself, as a pickle."""
        return False

    @property
    def processed_file_names(self) -> str:
        """Name of the cached file in folder `processed_dir`."""
        return f"{self._cache_name}{'-undirected' if self.undirected else ''}.pt"

    @functools.cached_property
    def names(self) -> list[str]:
        """Names of the packages, in order of node ids."""
        return read_names("name")

    @functools.cached_property
    def section_names(self) -> list[str]:
        """Names of the classes, which are sections of Debian's archive, in order of labels."""
        return read_names("section_name")

    @functools.cached_property
    def edge_kind_names(self) -> list[str]:
        """Names of the relations between packages, strongest first."""
        return read_names("edge_kind_name")

    @functools.cached_property
    def source_names(self) -> list[str]:
        """Names of the source packages, in order of their ids."""
        return read_names("source_name")

    @functools.cached_property
    def tag_names(self) -> list[str]:
        """Names of the debtags (Debian's tags of packages), in order of their ids."""
        return read_names("tag_name")

    @abstractmethod
    def _make(self) -> Data | HeteroData:
        """Make the graph from the bundled arrays."""

    def _made(self) -> Data | HeteroData:
        data = self._make()
        return data if self.pre_transform is None else self.pre_transform(data)

    def _cached(self, path: Path) -> Data | HeteroData:
        """Return the data from the cache at `path`. If there is no usable cache, make it."""
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
    """Return the attributes of packages: features `x`, labels `y` and masks."""
    split = splits()
    return {
        "x": torch.from_numpy(features()),
        "y": long(arrays("section")[0]),
        "train_mask": torch.from_numpy(split == 0),
        "val_mask": torch.from_numpy(split == 1),
        "test_mask": torch.from_numpy(split == 2),
    }


def tag_index() -> Tensor:
    """Return edges from packages to debtags, int64 [2, 109902], sorted by package and tag."""
    count, tag = arrays("tag_count", "tag")
    return torch.stack([long(rows(count)), long(tag)])


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
    """Read a cached graph, and the name of the pre_transform that made it. No code is run."""
    try:
        content = load_torch(path, "pass force_reload=True")
        cls = HeteroData if content["hetero"] else Data
        return cls.from_dict(content["data"]), content["pre_transform"]
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, TypeError) as error:
        raise RuntimeError(
            f"cannot read '{path}': it is damaged, or a pre_transform added other values than plain"
            f" tensors (pass that one as transform=); remove the file or pass force_reload=True"
        ) from error


def arrays(*keys: str) -> list[Array]:
    """Return bundled arrays by their names in the file."""
    snapshot = importlib.resources.files("khop.datasets") / "snapshot" / "debian-12.npz"
    with snapshot.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        return [archive[key] for key in keys]


def read_names(key: str) -> list[str]:
    return arrays(key)[0].tobytes().decode("ascii").split("\n")


def rows(count: Array) -> Int64Array:
    """Return the list number of each value, int64 [count.sum()]. List i has `count[i]` values."""
    return np.repeat(np.arange(len(count), dtype=np.int64), count)


def relations() -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return the relations between packages as edges, sorted by source and destination.

    Returns:
        Declaring package, named package and code of the relation, each int64 [316108].
    """
    count, destination, code = arrays("edge_count", "edge_destination", "edge_kind")
    return rows(count), destination.astype(np.int64), code.astype(np.int64)


def splits() -> npt.NDArray[np.uint8]:
    """Return the split of each package, uint8 [63666]: 0 train, 1 validation, 2 test."""
    source, source_split = arrays("source", "source_split")
    split: npt.NDArray[np.uint8] = source_split[source]
    return split


def features() -> npt.NDArray[np.float32]:
    """Compute features of packages, float32 [63666, 128]: TF-IDF times the singular vectors.

    Every operation works on one element at a time, in a fixed order: sums that NumPy or BLAS would
    reorder to suit the processor could differ in the last bit from one machine to the next.
    """
    count, term, idf, vector = arrays("term_count", "term", "term_idf", "term_vector")
    x = np.zeros((len(count), vector.shape[1]), np.float32)
    square = np.zeros(len(count), np.float32)
    for reached, terms in _by_position(count, term):
        x[reached] += idf[terms, None] * vector[terms].astype(np.float32)
        square[reached] += idf[terms] * idf[terms]
    norm = np.sqrt(square)
    norm[norm == 0] = 1
    x /= norm[:, None]
    return x


def _by_position(count: Array, values: Array) -> Iterator[tuple[npt.NDArray[np.intp], Array]]:
    """Yield, for each position in lists, the lists that are long enough, and their values there.

    `count` has the length of each list, and `values` all values, list after list.
    """
    start = np.cumsum(count, dtype=np.int64) - count
    for position in range(int(count.max())):
        reached = np.flatnonzero(count > position)
        yield reached, values[start[reached] + position]
