"""GLT's partitioners: khop's, with GLT's defaults."""

from __future__ import annotations

import contextlib
import inspect
from pathlib import Path
from typing import Any

import torch

from khop.partition import base
from khop.partition.methods import frequency, random
from khop.storage.folder import FolderMeta

_GLT = {
    "edge_assign_strategy": "by_src",
    "node_feat_dtype": torch.float32,
    "edge_feat_dtype": torch.float32,
}


class _Defaults:
    """GLT's defaults: neighbours along the edges, and features in float32.

    An empty folder at `output_dir` is taken; scripts for GLT make it beforehand.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(super().__init__).bind(*args, **kwargs)
        for name, value in _GLT.items():
            if name not in given.arguments:
                kwargs[name] = value
        with contextlib.suppress(OSError):  # it is not there, or not empty
            Path(given.arguments["output_dir"]).rmdir()
        super().__init__(*args, **kwargs)

    def partition(self, with_feature: bool = True, graph_caching: bool = False) -> FolderMeta:
        """Cut the graph and write the folder.

        Args:
            with_feature: write attributes, too. If False, `build_partition_feature` can add them,
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
    """Base of partitioners; see `khop.partition.PartitionerBase`."""


class RandomPartitioner(_Defaults, random.RandomPartitioner):
    """Partitioner of nodes at random, with parts of equal size; see `khop.partition`."""


class FrequencyPartitioner(_Defaults, frequency.FrequencyPartitioner):
    """Partitioner by how likely each part's batches touch a node; see `khop.partition`."""
