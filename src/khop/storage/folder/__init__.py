"""The partition folder, format version 1: the only package that knows what lies where on disk.

    root/meta.json                        what the folder holds; sizes and SHA-256 of every file
    root/map/<type>.npy                   original id -> new id
    root/split/<type>/<mask>.npy          new ids for which a boolean node attribute holds
    root/time/<type>.npy                  if nodes have times: key of the time of each new id
    root/part-<p>/edge/<edge type>/       indptr.npy indices.npy edge_id.npy and edge attributes,
                                          time.npy, weight_sum.npy and weight_guide.npy where
                                          neighbours are drawn by time or weight, neighbor_id.npy
                                          where draws are keyed by neighbours
    root/part-<p>/node/<type>/            id.npy (original ids) and node attributes
    root/part-<p>/cache/<type>/           new_id.npy id.npy and node attributes of hot remote nodes

Node ids are renumbered so that a part owns a contiguous range per node type; row i of a part's
files is the i-th node of its range. Edges belong to the owner of the node whose neighbours they
are and are numbered in the order of parts and rows. Within a row they keep the order of the edge
list ("edge_id"), or are in ascending order of time and within equal times in that of the edge list
("time"). All arrays of edges, attributes too, are in this order. Attributes called like one of the
folder's own arrays have their first letter percent-encoded, as other unsafe characters are.
Everything is a plain .npy file read by mmap, and nothing is ever unpickled.

Times, of nodes or of edges, are kept twice: as the attribute that they come from, in its dtype, and
as int64 keys (`khop.data.times`), by which kernels compare. weight_sum.npy (uint64) and
weight_guide.npy (uint32) are the tables of `_native.weight_table`. neighbor_id.npy holds, beside
the new ids of indices.npy, the neighbours' original ids.

A machine needs meta.json, map, split, time and the folders of the parts that it loads.

`paths` names the files, `meta` describes them, `writer` writes and `reader` reads them, arrays by
way of `npy`. Whatever a folder holds, reading it stays within the folder and the arrays: paths,
links, headers, shapes and dtypes are checked here, values by those who use them.
"""

from khop.storage.folder.meta import (
    FORMAT,
    VERSION,
    AttrMeta,
    EdgeTypeMeta,
    FolderMeta,
    NodeTypeMeta,
    TimeMeta,
    attr_metas,
)
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
from khop.storage.folder.writer import FolderWriter, check_output, sha256_of

__all__ = [
    "FORMAT",
    "INTS",
    "VERSION",
    "AttrMeta",
    "EdgeTypeMeta",
    "FolderMeta",
    "FolderWriter",
    "NodeTypeMeta",
    "PartitionFolder",
    "TimeMeta",
    "attr_metas",
    "cache_attr_path",
    "cache_path",
    "check_is_folder",
    "check_output",
    "edge_array",
    "edge_attr_path",
    "edge_folder",
    "edge_path",
    "map_path",
    "node_attr_path",
    "node_path",
    "safe_name",
    "sha256_of",
    "split_path",
    "time_path",
]
