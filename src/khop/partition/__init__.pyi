from khop.partition.base import PartitionerBase as PartitionerBase
from khop.partition.cut import (
    make_partitioner as make_partitioner,
    partition_graph as partition_graph,
)
from khop.partition.formats.distdgl.exporter import to_distdgl as to_distdgl
from khop.partition.formats.distdgl.importer import from_distdgl as from_distdgl
from khop.partition.formats.features import convert_features as convert_features
from khop.partition.formats.upgrade import (
    UpgradePlan as UpgradePlan,
    upgrade_folder as upgrade_folder,
)
from khop.partition.methods.assigned import AssignedPartitioner as AssignedPartitioner
from khop.partition.methods.frequency import FrequencyPartitioner as FrequencyPartitioner
from khop.partition.methods.metis import (
    ClusterMetisPartitioner as ClusterMetisPartitioner,
    MetisPartitioner as MetisPartitioner,
)
from khop.partition.methods.random import RandomPartitioner as RandomPartitioner
from khop.partition.methods.seeded import (
    FrequencyOptions as FrequencyOptions,
    frequency_partition as frequency_partition,
)
from khop.partition.methods.stream import StreamPartitioner as StreamPartitioner
from khop.partition.methods.structure import StructuralPartitioner as StructuralPartitioner
from khop.partition.options import (
    CutOptions as CutOptions,
    MethodOptions as MethodOptions,
    PartitionOptions as PartitionOptions,
)
from khop.partition.out_of_core.plan import Plan as Plan, PlannedType as PlannedType
from khop.partition.propagation import propagate as propagate
from khop.partition.recut import (
    folder_source as folder_source,
    make_repartitioner as make_repartitioner,
    repartition as repartition,
)
from khop.partition.report.comparison import (
    Compared as Compared,
    Comparison as Comparison,
    compare_methods as compare_methods,
)
from khop.partition.report.cut_report import (
    BatchRows as BatchRows,
    CacheHits as CacheHits,
    CutReport as CutReport,
)
from khop.partition.report.verify import verify_folder as verify_folder
from khop.partition.source import (
    EdgeSource as EdgeSource,
    GraphSource as GraphSource,
    NodeSource as NodeSource,
)
from khop.partition.summary import FolderSummary as FolderSummary
from khop.storage.book import RangeBook as RangeBook
from khop.storage.folder import (
    AttrMeta as AttrMeta,
    FolderMeta as FolderMeta,
    PartitionFolder as PartitionFolder,
)
from khop.storage.folder.meta import (
    EdgeTypeMeta as EdgeTypeMeta,
    NodeTypeMeta as NodeTypeMeta,
    TimeMeta as TimeMeta,
)
