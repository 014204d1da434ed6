"""Partition folder, format versions 1 to 3: the only package that contains the layout on disk.

Partitioners write folders; samplers, servers and trainers read them. Imports no torch.

    root/meta.json                        description; sizes and checksums of every file
    root/ranges.npy                       SHA-256 of each 64 MiB of files that are longer, if any is
    root/map/<type>.npy                   original id -> new id
    root/split/<type>/<mask>.npy          new ids for which a boolean node attribute holds
    root/time/<type>.npy                  if nodes have times: time key of each new id
    root/part-<p>/edge/<edge type>/       indptr.npy indices.npy and edge attributes, edge_id.npy
                                          unless ids of edges are the folder's, time.npy,
                                          weight_sum.npy and weight_guide.npy if neighbours are
                                          drawn by time or weight, neighbor_id.npy if draws are
                                          keyed by neighbours
    root/part-<p>/node/<type>/            id.npy (original ids) and node attributes
    root/part-<p>/cache/<type>/           new_id.npy id.npy and node attributes of hot remote nodes

Node ids are renumbered so that a part owns a contiguous range per node type; row i of a part's
files is the i-th node of its range. The nodes of a part are in the order of their original ids, or
in another one, which meta.json names. An edge belongs to the part that
owns its row, the node whose neighbours are drawn; edges are numbered in the order of parts and
rows. Within a row they keep the order of the edge list ("edge_id"), or are sorted by time and, for
equal times, in the order of the edge list ("time"). All arrays of edges, attributes too, are in
this order. Attributes named like one of the folder's own arrays have their first letter
percent-encoded, as other unsafe characters are. Every array is a plain .npy file read by mmap, and
nothing is ever unpickled.

Times, of nodes or of edges, are stored twice: as the attribute that they come from, in its dtype,
and as int64 keys (`khop.data.times`), which kernels compare. weight_sum.npy (uint64) and
weight_guide.npy (uint32) are the tables of `_native.weight_table`.

A machine needs meta.json, map, split, time and the folders of the parts that it loads.

Version 3, which is written, has checksums by ranges (`checksums`), and says of attributes how rows
are stored and how batches have them. Flags in meta.json name what a reader must know beyond that:
none today, but encodings of attributes, keys of nodes and parts of several segments are reserved.
Versions 1 and 2 (rows not in the order of original ids) are read; `khop convert` makes them 3.

`paths` names the files, `meta` describes them, `content` is meta.json, `writer` writes them and
`reader` reads them, with arrays opened by `npy`. Reading a damaged or hostile folder stays within
the folder and the arrays: paths, links, headers, shapes and dtypes are checked here; values are
checked by their users.
"""

from khop.storage.folder.array_file import ArrayFile
from khop.storage.folder.array_writer import ArrayWriter, AttemptWriter, explained_write
from khop.storage.folder.checksums import RANGES_FILE, Written, default_threads
from khop.storage.folder.content import FORMAT, META_FILE, VERSION_RANGES, VERSIONS, FileMeta
from khop.storage.folder.meta import (
    ORDERS,
    AttrMeta,
    EdgeTypeMeta,
    FolderMeta,
    NodeTypeMeta,
    TimeMeta,
    attr_metas,
)
from khop.storage.folder.npy import npy_header, open_inside
from khop.storage.folder.paths import (
    cache_attr_path,
    cache_path,
    edge_attr_path,
    edge_folder,
    edge_path,
    map_path,
    node_attr_path,
    node_path,
    safe_name,
    split_path,
    time_path,
)
from khop.storage.folder.reader import INTS, PartitionFolder, check_is_folder, edge_array
from khop.storage.folder.writer import (
    RESUMABLE,
    FolderWriter,
    Unfinished,
    check_output,
    description_of,
    draft_of,
    is_locked,
    lock,
    temporary_of,
)

__all__ = [
    "FORMAT",
    "INTS",
    "META_FILE",
    "ORDERS",
    "RANGES_FILE",
    "RESUMABLE",
    "VERSIONS",
    "VERSION_RANGES",
    "ArrayFile",
    "ArrayWriter",
    "AttemptWriter",
    "AttrMeta",
    "EdgeTypeMeta",
    "FileMeta",
    "FolderMeta",
    "FolderWriter",
    "NodeTypeMeta",
    "PartitionFolder",
    "TimeMeta",
    "Unfinished",
    "Written",
    "attr_metas",
    "cache_attr_path",
    "cache_path",
    "check_is_folder",
    "check_output",
    "default_threads",
    "description_of",
    "draft_of",
    "edge_array",
    "edge_attr_path",
    "edge_folder",
    "edge_path",
    "explained_write",
    "is_locked",
    "lock",
    "map_path",
    "node_attr_path",
    "node_path",
    "npy_header",
    "open_inside",
    "safe_name",
    "split_path",
    "temporary_of",
    "time_path",
]
