"""The binary packages of Debian 12 as a graph, bundled with khop.

Provenance. The graph is made from the public package index of Debian 12 ("bookworm"), section main
of the archive, amd64, with its updates and security updates, as of 12.11: one version of each of
its 63,666 binary packages. Of each package the snapshot holds the name, the section, the name of
the source package, which other packages its relation fields name, a number that stands for its
maintainer, its debtags, and numbers that stand for the words of its one-line description; it holds
no descriptions and no names of people. `scripts/make_debian_packages.py` makes it from the index.

`DebianPackages` turns the snapshot into PyG's shape; nothing is downloaded and nothing is written
next to the installed package.
"""

from __future__ import annotations

import functools
import importlib.resources
import os
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData, InMemoryDataset

Transform = Callable[[Any], Any]
FloatArray = npt.NDArray[np.float32]


class DebianPackages(InMemoryDataset):  # type: ignore[misc]  # PyG is untyped
    """Debian 12's packages, to be classified by archive section; edges say what a package needs.

    A node is a binary package, in order of names. An edge leads from a package to one that its
    relation fields name: in each clause the first alternative, whatever the version; a virtual
    package stands for its first provider in order of names; names that nothing provides and
    packages that name themselves are left out. One edge at most leads from one package to
    another; its kind is the strongest one, in the order of `edge_kind_names`.

    The label is the section without its area, such as `libs` or `python`. Features come from the
    one-line descriptions: TF-IDF over words that occur in three descriptions or more, reduced to
    128 numbers by a truncated singular value decomposition. Nothing in them comes from a package's
    name. The split goes by a hash of the name of the *source* package, about 60/20/20, so that
    siblings such as `libfoo1` and `libfoo-dev` are always on the same side.

    The graph delivered has

    | nodes  | edges   | edges, `undirected` | features | classes |
    |--------|---------|---------------------|----------|---------|
    | 63,666 | 316,108 | 623,076             | 128      | 58      |

    with `x` float32 [63666, 128] (root mean square 1), `edge_index` int64 [2, E] in order of source
    and destination, `edge_kind` int64 [E], `y` int64 [63666], and `train_mask`, `val_mask` and
    `test_mask` bool [63666]. The tensors are the same on every machine, bit for bit.

    Args:
        root: folder that caches the processed data, in `root/processed`; useful with a
            `pre_transform` that takes long. Default: none, made in memory, which takes a second.
        undirected: add the reverse of every edge, of the same kind. Messages flow from source to
            destination, so that only with this a package learns from those that it needs, too;
            training wants it. Default: false, as declared by the packages.
        transform: applied to the data at each access. Default: none.
        pre_transform: applied once, before the data is cached. Default: none.
        force_reload: make the data again, whatever the cache holds. Default: false.

    Raises:
        RuntimeError: the cache in `root` cannot be read.

    Example:
        >>> data = DebianPackages(undirected=True)[0]
        >>> data
        Data(x=[63666, 128], edge_index=[2, 623076], y=[63666], edge_kind=[623076], ...)
    """

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
        self._data = self._make() if root is None else self._cached(Path(self.processed_paths[0]))

    @property
    def has_process(self) -> bool:
        """False: PyG's own processing needs a root, and its cache reads pickles."""
        return False

    @property
    def processed_file_names(self) -> str:
        """Name of the cached file below `processed_dir`."""
        return f"debian-12{'-undirected' if self.undirected else ''}.pt"

    @functools.cached_property
    def names(self) -> list[str]:
        """Names of the packages, in order of nodes."""
        return _names("name")

    @functools.cached_property
    def section_names(self) -> list[str]:
        """Names of the classes, in order of labels."""
        return _names("section_name")

    @functools.cached_property
    def edge_kind_names(self) -> list[str]:
        """Names of the kinds of edges, in order of the codes in `edge_kind`, strongest first."""
        return _names("edge_kind_name")

    @functools.cached_property
    def source_names(self) -> list[str]:
        """Names of the source packages, in order of the numbers in `source_id`."""
        return _names("source_name")

    @functools.cached_property
    def tag_names(self) -> list[str]:
        """Names of the debtags, in order of the numbers in `tag_index`."""
        return _names("tag_name")

    @functools.cached_property
    def source_id(self) -> Tensor:
        """Source package of each package, int64 [63666]."""
        return _long(_arrays("source")[0])

    @functools.cached_property
    def maintainer_id(self) -> Tensor:
        """Number of the maintainer of each package, int64 [63666]; their names are not kept."""
        return _long(_arrays("maintainer")[0])

    @functools.cached_property
    def tag_index(self) -> Tensor:
        """Edges from packages to debtags, int64 [2, 109902]; `tag_names` tells the tags."""
        count, tag = _arrays("tag_count", "tag")
        return torch.stack([_long(_rows(count)), _long(tag)])

    def _make(self) -> Any:
        """The data, from the snapshot."""
        section, source, source_split = _arrays("section", "source", "source_split")
        split = source_split[source]
        edge_index, edge_kind = _edges(self.undirected)
        data = Data(
            x=torch.from_numpy(_features()),
            edge_index=edge_index,
            y=_long(section),
            edge_kind=edge_kind,
            train_mask=torch.from_numpy(split == 0),
            val_mask=torch.from_numpy(split == 1),
            test_mask=torch.from_numpy(split == 2),
        )
        return data if self.pre_transform is None else self.pre_transform(data)

    def _cached(self, path: Path) -> Any:
        """The data, from the cache at `path`, which is made if need be."""
        pre_transform = repr(self.pre_transform)
        if self.force_reload or not path.exists():
            data = self._make()
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


def _save(data: Data | HeteroData, pre_transform: str, path: Path) -> None:
    """Writes the cache; a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    hetero = isinstance(data, HeteroData)
    content = {"data": data.to_dict(), "hetero": hetero, "pre_transform": pre_transform}
    try:
        torch.save(content, unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _load(path: Path) -> tuple[Data | HeteroData, str]:
    """Reads the cache; plain containers and tensors only, whatever the file says."""
    try:
        content = torch.load(path, weights_only=True)
        kind = HeteroData if content["hetero"] else Data
        return kind.from_dict(content["data"]), content["pre_transform"]
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, TypeError) as error:
        raise RuntimeError(
            f"cannot read '{path}': it is damaged, or a pre_transform added other values than plain"
            f" tensors (pass that one as transform=); remove the file or pass force_reload=True"
        ) from error


def _features() -> FloatArray:
    """Rows of TF-IDF times the singular vectors, float32 [num_nodes, 128].

    Every operation works on one element at a time, in a fixed order: sums that NumPy or BLAS would
    reorder to suit the processor could differ in the last bit from one machine to the next.
    """
    count, term, idf, vector = _arrays("term_count", "term", "term_idf", "term_vector")
    x = np.zeros((len(count), vector.shape[1]), np.float32)
    square = np.zeros(len(count), np.float32)
    for rows, terms in _by_position(count, term):
        x[rows] += idf[terms, None] * vector[terms].astype(np.float32)
        square[rows] += idf[terms] * idf[terms]
    norm = np.sqrt(square)
    norm[norm == 0] = 1
    x /= norm[:, None]
    return x


def _by_position(
    count: npt.NDArray[Any], values: npt.NDArray[Any]
) -> Iterator[tuple[npt.NDArray[np.intp], npt.NDArray[Any]]]:
    """Yields for position 0, 1, ... the lists that reach it and what each has there."""
    start = np.cumsum(count, dtype=np.int64) - count
    for position in range(int(count.max())):
        rows = np.flatnonzero(count > position)
        yield rows, values[start[rows] + position]


def _edges(undirected: bool) -> tuple[Tensor, Tensor]:
    """Edges [2, E] and their kinds [E], both int64, in order of source and destination."""
    count, destination, kind = _arrays("edge_count", "edge_destination", "edge_kind")
    source = _rows(count)
    destination, kind = destination.astype(np.int64), kind.astype(np.int64)
    if undirected:
        source, destination = (
            np.concatenate([source, destination]),
            np.concatenate([destination, source]),
        )
        kind = np.concatenate([kind, kind])
        order = np.lexsort((kind, destination, source))
        pair = source[order] * len(count) + destination[order]
        # Two packages that need each other give each direction twice: the strongest kind stays.
        order = order[np.diff(pair, prepend=-1) != 0]
        source, destination, kind = source[order], destination[order], kind[order]
    return torch.from_numpy(np.stack([source, destination])), torch.from_numpy(kind)


def _rows(count: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Row of each element, for rows of `count` elements."""
    return np.repeat(np.arange(len(count), dtype=np.int64), count)


def _long(array: npt.NDArray[Any]) -> Tensor:
    return torch.from_numpy(array.astype(np.int64))


def _names(key: str) -> list[str]:
    return _arrays(key)[0].tobytes().decode("ascii").split("\n")


def _arrays(*keys: str) -> list[npt.NDArray[Any]]:
    """Reads arrays of the snapshot."""
    snapshot = importlib.resources.files("khop.datasets") / "snapshot" / "debian-12.npz"
    with snapshot.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        return [archive[key] for key in keys]
