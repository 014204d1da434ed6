from khop.partition.assigned import AssignedPartitioner as AssignedPartitioner
from khop.partition.base import PartitionerBase as PartitionerBase
from khop.partition.comparison import (
    Compared as Compared,
    Comparison as Comparison,
    compare_methods as compare_methods,
)
from khop.partition.cut import (
    make_partitioner as make_partitioner,
    partition_graph as partition_graph,
)
from khop.partition.distdgl.exporter import to_distdgl as to_distdgl
from khop.partition.distdgl.importer import from_distdgl as from_distdgl
from khop.partition.frequency import FrequencyPartitioner as FrequencyPartitioner
from khop.partition.from_folder import folder_source as folder_source
from khop.partition.metis import (
    ClusterMetisPartitioner as ClusterMetisPartitioner,
    MetisPartitioner as MetisPartitioner,
)
from khop.partition.plan import Plan as Plan, PlannedType as PlannedType
from khop.partition.random import RandomPartitioner as RandomPartitioner
from khop.partition.recut import (
    make_repartitioner as make_repartitioner,
    repartition as repartition,
)
from khop.partition.report import BatchRows as BatchRows, CutReport as CutReport
from khop.partition.seeded import frequency_partition as frequency_partition
from khop.partition.source import (
    EdgeSource as EdgeSource,
    GraphSource as GraphSource,
    NodeSource as NodeSource,
)
from khop.partition.stream import StreamPartitioner as StreamPartitioner
from khop.partition.structure import StructuralPartitioner as StructuralPartitioner
from khop.partition.summary import FolderSummary as FolderSummary
from khop.partition.verify import verify_folder as verify_folder
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
