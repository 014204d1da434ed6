"""The packages of Debian 12 with their sources, maintainers and debtags, bundled with khop.

The same snapshot as `khop.datasets.debian_packages`, which describes its provenance, as a graph of
several node and edge types.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from khop.datasets.debian_base import (
    DebianDataset,
    arrays,
    long,
    package_attributes,
    read_names,
    relations,
    tag_index,
)
from khop.typing import EdgeType


class DebianPackagesHetero(DebianDataset):
    """Debian 12's packages, to be classified by section, with their sources, maintainers and tags.

    | node type  | nodes  | attributes                                      |
    |------------|--------|-------------------------------------------------|
    | package    | 63,666 | `x`, `y`, `train_mask`, `val_mask`, `test_mask` |
    | source     | 34,172 | none                                            |
    | maintainer | 2,248  | none                                            |
    | tag        | 597    | none                                            |

    | edge type                            | edges   | meaning                                     |
    |--------------------------------------|---------|---------------------------------------------|
    | package, pre_depends, package        | 998     | needs it before it can be unpacked          |
    | package, depends, package            | 263,763 | needs it                                    |
    | package, recommends, package         | 28,053  | is hardly ever wanted without it            |
    | package, suggests, package           | 22,366  | may be of more use with it                  |
    | package, enhances, package           | 928     | makes it more useful                        |
    | package, built_from, source          | 63,666  | the source that it is built from            |
    | package, maintained_by, maintainer   | 63,666  | its maintainer; a number, no name           |
    | package, tagged, tag                 | 109,902 | its debtags; 47 % of the packages have some |

    `DebianPackages` has the same packages, attributes, split and relations. From one package to
    another there is at most one edge, whose type is the strongest relation. `edge_index` is int64
    [2, E] in order of source and destination. Nodes without attributes have `num_nodes` alone.
    `source_names` and `tag_names` are in order of their ids.

    Input of a model. The label is a package's section, and whole sources are on one side of the
    split. All edges and the features of all packages are known before the section is, for test
    packages as well: they are input. Labels are not, and names are kept out of the features because
    they give sections away (`python3-`, `lib...-dev`, `-doc`). Two node types need care:

    - *Sources* never span the split. What a model stores about one source by its number (an
      embedding) only repeats the label of its training packages. The sources of test packages have
      no training packages, so their embeddings stay untrained. Let messages pass through sources,
      and give sources no embedding.
    - *Debtags* are not labels, but people gave them for a similar purpose: 91 % of the packages
      tagged `role::documentation` are in section `doc`. State with every accuracy whether debtags
      were used. A fan-out of 0 for `tagged` and its reverse leaves them out.

    Maintainers have packages on all sides of the split. So their embeddings help for test packages.

    Args:
        root: folder that caches the processed data, in `root/processed`. If None, made in memory,
            which takes a second.
        undirected: add the reverse of every edge type as `rev_` and its name, as PyG's
            `ToUndirected(merge=False)` does. Edge i of a reverse is the reverse of edge i. Messages
            flow from source to destination. Reverses bring packages messages from the packages that
            they need, and from their sources, maintainers and tags. Default: false.
        transform: applied to the data at each access. Default: none.
        pre_transform: applied once, before the data is cached. Default: none.
        force_reload: make the data again, whatever the cache holds. Default: false.

    Raises:
        RuntimeError: the cache in `root` cannot be read.

    Example:
        >>> data = DebianPackagesHetero(undirected=True)[0]
        >>> data["maintainer", "rev_maintained_by", "package"].edge_index.shape
        torch.Size([2, 63666])
    """

    _cache_name = "debian-12-hetero"

    @property
    def num_classes(self) -> int:
        """Number of classes (sections of Debian's archive)."""
        return len(self.section_names)

    def _make(self) -> HeteroData:
        data = HeteroData()
        data["package"].update(package_attributes())
        data["source"].num_nodes = len(read_names("source_name"))
        data["maintainer"].num_nodes = int(arrays("maintainer")[0].max()) + 1
        data["tag"].num_nodes = len(read_names("tag_name"))
        edges = {**_between_packages(), **_from_packages()}
        for edge_type, edge_index in edges.items():
            data[edge_type].edge_index = edge_index
        if self.undirected:
            for (source, relation, destination), edge_index in edges.items():
                data[destination, f"rev_{relation}", source].edge_index = edge_index.flip(0)
        return data


def _between_packages() -> dict[EdgeType, Tensor]:
    """Return the edges between packages, int64 [2, n] for each relation, by edge type."""
    source, destination, codes = (torch.from_numpy(ends) for ends in relations())
    edge_index = torch.stack([source, destination])
    return {
        ("package", name, "package"): edge_index[:, codes == code].contiguous()
        for code, name in enumerate(read_names("edge_kind_name"))
    }


def _from_packages() -> dict[EdgeType, Tensor]:
    """Return the edges from packages to their sources, maintainers and tags, by edge type."""
    source, maintainer = (long(ids) for ids in arrays("source", "maintainer"))
    package = torch.arange(len(source))
    return {
        ("package", "built_from", "source"): torch.stack([package, source]),
        ("package", "maintained_by", "maintainer"): torch.stack([package, maintainer]),
        ("package", "tagged", "tag"): tag_index(),
    }
