"""GLT's partitioners, partition books, and parts of folders as tensors."""

from khop.glt.partition import base
from khop.glt.partition.books import (
    GLTPartitionBook,
    HeteroEdgePartitionDict,
    HeteroNodePartitionDict,
    OffsetId2Index,
    PartitionBook,
    RangePartitionBook,
)
from khop.glt.partition.features import build_partition_feature
from khop.glt.partition.partitioners import (
    FrequencyPartitioner,
    PartitionerBase,
    RandomPartitioner,
)
from khop.glt.partition.parts import cat_feature_cache, load_partition

__all__ = [
    "FrequencyPartitioner",
    "GLTPartitionBook",
    "HeteroEdgePartitionDict",
    "HeteroNodePartitionDict",
    "OffsetId2Index",
    "PartitionBook",
    "PartitionerBase",
    "RandomPartitioner",
    "RangePartitionBook",
    "base",
    "build_partition_feature",
    "cat_feature_cache",
    "load_partition",
]
