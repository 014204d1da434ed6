"""The binary packages of Debian 12 as a graph, bundled with khop.

Provenance. The graph is made from the public package index of Debian 12 ("bookworm"), as of 12.11:
section main of the archive, amd64, with updates and security updates. It has one version of each of
the 63,666 binary packages. `scripts/make_debian_packages.py` makes the snapshot from the
index. Of each package the snapshot has:

- the name, the section, and the name of the source package,
- the packages that its relation fields name, and its debtags,
- numbers in place of its maintainer and of the words of its one-line description.

There are no descriptions and no names of people. `DebianPackages` makes a homogeneous PyG graph of
the snapshot, `DebianPackagesHetero` a heterogeneous one. Nothing is downloaded, and nothing is
written next to the installed package.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from khop.datasets.debian_base import (
    DebianDataset,
    arrays,
    long,
    package_attributes,
    relations,
    tag_index,
)


class DebianPackages(DebianDataset):
    """Debian 12's packages, to be classified by archive section. Edges lead to packages they need.

    A node is a binary package, in order of names. An edge leads from a package to one that its
    relation fields name: in each clause the first alternative, of any version. A virtual package
    stands for its first provider in order of names. Names without a provider, and packages that
    name themselves, are left out. From one package to another there is at most one edge, of the
    strongest relation in the order of `edge_kind_names`.

    The label is the section without its area, such as `libs` or `python`. Features come from the
    one-line descriptions: TF-IDF over words that occur in three descriptions or more, reduced to
    128 numbers by a truncated singular value decomposition. Names of packages are not used. The
    split goes by a hash of the name of the *source* package, about 60/20/20. So siblings such as
    `libfoo1` and `libfoo-dev` are always on the same side.

    The graph delivered has

    | nodes  | edges   | edges, `undirected` | features | classes |
    |--------|---------|---------------------|----------|---------|
    | 63,666 | 316,108 | 623,076             | 128      | 58      |

    - `x` float32 [63666, 128] (root mean square 1), `y` int64 [63666]
    - `train_mask`, `val_mask` and `test_mask` bool [63666]
    - `edge_index` int64 [2, E], in order of source and destination
    - `edge_kind` int64 [E], the position of the relation in `edge_kind_names`

    The tensors are the same on every machine, bit for bit.

    Args:
        root: folder that caches the processed data, in `root/processed`, for a `pre_transform` that
            takes long. If None, made in memory, which takes a second.
        undirected: add the reverse of every edge, with the same `edge_kind`. Messages flow from
            source to destination. Reverses bring a package messages from the packages that it
            needs, which helps training. Default: false, as declared by the packages.
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

    _cache_name = "debian-12"

    @functools.cached_property
    def source_id(self) -> Tensor:
        """Id of the source package that each package is built from, int64 [63666]."""
        return long(arrays("source")[0])

    @functools.cached_property
    def maintainer_id(self) -> Tensor:
        """Id of the maintainer of each package, int64 [63666]. Names are not kept."""
        return long(arrays("maintainer")[0])

    @functools.cached_property
    def tag_index(self) -> Tensor:
        """Edges from packages to debtags (tags), int64 [2, 109902]. `tag_names` names the tags."""
        return tag_index()

    def _make(self) -> Data:
        edge_index, edge_kind = _edges(self.undirected)
        package = package_attributes()
        return Data(
            x=package.pop("x"),
            edge_index=edge_index,
            y=package.pop("y"),
            edge_kind=edge_kind,
            **package,
        )


def _edges(undirected: bool) -> tuple[Tensor, Tensor]:
    """Return edges [2, E] and their relations [E], int64, in order of source and destination."""
    source, destination, code = relations()
    if undirected:
        num_nodes = len(arrays("edge_count")[0])
        source, destination = (
            np.concatenate([source, destination]),
            np.concatenate([destination, source]),
        )
        code = np.concatenate([code, code])
        order = np.lexsort((code, destination, source))
        pair = source[order] * num_nodes + destination[order]
        # Two packages that need each other give each direction twice: keep the strongest relation.
        order = order[np.diff(pair, prepend=-1) != 0]
        source, destination, code = source[order], destination[order], code[order]
    return torch.from_numpy(np.stack([source, destination])), torch.from_numpy(code)
