"""GLT's partitioners, which cut graphs into khop's folders: khop's, with GLT's defaults."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch

from khop.glt.arguments import in_order
from khop.partition import base
from khop.partition.methods import frequency, random
from khop.storage.folder import FolderMeta

_GRAPH = ("output_dir", "num_parts", "num_nodes", "edge_index")
_FEATURES = (
    *("node_feat", "node_feat_dtype", "edge_feat", "edge_feat_dtype", "edge_weights"),
    "edge_assign_strategy",
)
_GLT = {
    "edge_assign_strategy": "by_src",
    "node_feat_dtype": torch.float32,
    "edge_feat_dtype": torch.float32,
}
_DIRECTIONS = {"by_src": "out", "by_dst": "in"}


class _Defaults:
    """Base of partitioners with GLT's order of arguments, and its defaults.

    The defaults are `edge_dir='out'` and float32 features. An empty folder at `output_dir` is
    accepted, since scripts for GLT make it beforehand. `chunk_size` and `device` are accepted, not
    needed.
    """

    _order: tuple[str, ...] = (*_GRAPH, *_FEATURES, "chunk_size", "device")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        options = {**_GLT, **in_order(type(self).__name__, self._order, args, kwargs)}
        for ignored in ("chunk_size", "device"):
            options.pop(ignored, None)
        strategy = options.pop("edge_assign_strategy")
        if strategy not in _DIRECTIONS:
            raise ValueError(
                f"edge_assign_strategy must be 'by_src' or 'by_dst' (got {strategy!r})"
            )
        options.setdefault("edge_dir", _DIRECTIONS[strategy])
        with contextlib.suppress(KeyError, OSError):  # it is not there, or not empty
            Path(options["output_dir"]).rmdir()
        super().__init__(**options)

    def partition(self, with_feature: bool = True, graph_caching: bool = False) -> FolderMeta:
        """Cut the graph and write the folder.

        Args:
            with_feature: also write features. If False, `build_partition_feature` can add them,
                part by part.
            graph_caching: accepted, not needed.
        """
        del graph_caching
        if not with_feature:
            source = self.source  # type: ignore[attr-defined]
            for held in (*source.nodes.values(), *source.edges.values()):
                for name in ("x", "edge_attr"):
                    held.attrs.pop(name, None)
        written: FolderMeta = super().partition()  # type: ignore[misc]
        return written


class PartitionerBase(_Defaults, base.PartitionerBase):
    """Base of partitioners with GLT's arguments, see `khop.partition.PartitionerBase`."""


class RandomPartitioner(_Defaults, random.RandomPartitioner):
    """Partitioner of nodes at random, with parts of equal size, see `khop.partition`."""


class FrequencyPartitioner(_Defaults, frequency.FrequencyPartitioner):
    """Partitioner by the probability that a part's batches have a node (`khop.partition`)."""

    _order = (
        *(*_GRAPH, "probs", *_FEATURES),
        *("cache_memory_budget", "cache_ratio", "chunk_size", "device"),
    )
