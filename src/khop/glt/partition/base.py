"""GLT's module `partition.base`: the base of partitioners, and functions for parts."""

from khop.glt.partition.features import build_partition_feature
from khop.glt.partition.partitioners import PartitionerBase
from khop.glt.partition.parts import cat_feature_cache, load_partition

__all__ = ["PartitionerBase", "build_partition_feature", "cat_feature_cache", "load_partition"]
