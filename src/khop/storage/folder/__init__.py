"""Partition folder, format versions 1 to 3. No other package depends on the layout on disk.

Partitioners write folders. Samplers, servers and trainers read them.

| File | Content |
|---|---|
| meta.json | description, and sizes and checksums of every file |
| ranges.npy | SHA-256 of each range of 64 MiB, if a file is longer than a range |
| map/<type>.npy | new id of each original id |
| split/<type>/<mask>.npy | new ids for which a boolean node attribute holds |
| time/<type>.npy | time key of each new id, if nodes have times |
| part-<p>/edge/<edge type>/ | indptr.npy, indices.npy and attributes of edges |
| same | edge_id.npy (original ids), unless an edge's id is its position in the folder |
| same | time.npy, if neighbours are drawn by time |
| same | neighbor_id.npy (original ids of neighbours), if random draws depend on them |
| same | weight_sum.npy and weight_guide.npy, if neighbours are drawn by weight |
| part-<p>/node/<type>/ | id.npy (original ids) and attributes of nodes |
| part-<p>/cache/<type>/ | new_id.npy, id.npy and attributes of hot nodes of other parts |

Nodes have new ids, so that a part owns a contiguous range per node type. Row i of a part's files is
the i-th node of its range. The nodes of a part are in the order of their original ids, or in
another order, which meta.json names.

An edge belongs to the part that owns its row, the node whose neighbours are drawn. Edges are
numbered in the order of parts and rows. Within a row they keep the order of the edge list
("edge_id"), or are sorted by time ("time"). Edges of equal times keep the order of the list. All
arrays of edges are in this order, attributes too.

File names have unsafe characters percent-encoded. An attribute with the name of one of the folder's
own arrays also has its first letter encoded. Every array is a plain .npy file that is mapped, and
nothing is ever unpickled.

Times of nodes or edges are stored twice: as an attribute, in its dtype, and as int64 keys
(`khop.data.times`), which kernels compare. weight_sum.npy (uint64) and weight_guide.npy
(uint32) are the tables of `_native.weight_table`.

A machine needs meta.json, map, split, time and the folders of the parts that it loads.

khop writes version 3, which has checksums by ranges (`checksums`), and states how rows of
attributes are stored and how batches have them. Flags in meta.json name further features that a
reader must know. Flag "encodings" says that attributes are stored in fewer bits
(`khop.data.encoding`). Flags for keys of nodes, and for parts of several segments, are reserved.
Version 1, and version 2 with rows in another order, are also read. `khop convert` upgrades them.

`paths` names the files, `meta` describes them, `content` is meta.json, `writer` writes them and
`reader` reads them, with arrays opened by `npy`. Reading a damaged or hostile folder never leaves
the folder or the bounds of arrays. This package checks paths, links, headers, shapes and dtypes.
The code that uses values checks the values.
"""

from khop.storage.folder.array_writer import (
    ArrayWriter as ArrayWriter,
    AttemptWriter as AttemptWriter,
    explained_write as explained_write,
)
from khop.storage.folder.checksums import RANGES_FILE as RANGES_FILE, Written as Written
from khop.storage.folder.content import META_FILE as META_FILE, VERSION_RANGES as VERSION_RANGES
from khop.storage.folder.meta import (
    ORDERS as ORDERS,
    AttrMeta as AttrMeta,
    EdgeTypeMeta as EdgeTypeMeta,
    FolderMeta as FolderMeta,
    NodeTypeMeta as NodeTypeMeta,
    TimeMeta as TimeMeta,
    attr_metas as attr_metas,
)
from khop.storage.folder.npy import npy_header as npy_header, open_inside as open_inside
from khop.storage.folder.paths import (
    cache_attr_path as cache_attr_path,
    cache_path as cache_path,
    edge_attr_path as edge_attr_path,
    edge_path as edge_path,
    map_path as map_path,
    node_attr_path as node_attr_path,
    node_path as node_path,
    safe_name as safe_name,
    split_path as split_path,
    time_path as time_path,
)
from khop.storage.folder.reader import (
    INTS as INTS,
    PartitionFolder as PartitionFolder,
    check_is_folder as check_is_folder,
    edge_array as edge_array,
    edge_rows as edge_rows,
)
from khop.storage.folder.writer import (
    RESUMABLE as RESUMABLE,
    FolderWriter as FolderWriter,
    Unfinished as Unfinished,
    check_output as check_output,
    describe as describe,
    description_of as description_of,
    draft_of as draft_of,
    is_locked as is_locked,
    lock as lock,
    locked as locked,
    temporary_of as temporary_of,
)
