"""GLT's partitioners, partition books (maps from ids to parts), and parts as tensors."""

from khop.glt.partition import base as base
from khop.glt.partition.books import (
    GLTPartitionBook as GLTPartitionBook,
    HeteroEdgePartitionDict as HeteroEdgePartitionDict,
    HeteroNodePartitionDict as HeteroNodePartitionDict,
    OffsetId2Index as OffsetId2Index,
    PartitionBook as PartitionBook,
    RangePartitionBook as RangePartitionBook,
)
from khop.glt.partition.features import build_partition_feature as build_partition_feature
from khop.glt.partition.partitioners import (
    FrequencyPartitioner as FrequencyPartitioner,
    PartitionerBase as PartitionerBase,
    RandomPartitioner as RandomPartitioner,
)
from khop.glt.partition.parts import (
    cat_feature_cache as cat_feature_cache,
    load_partition as load_partition,
)
