"""Graphs as others store them, as `khop.partition.GraphSource`s: what `khop partition` reads.

`base` has the interface of a layout, `read` the table of all, and finds the one that a SOURCE
argument names. One module reads each layout:

- `debian`: the graphs that come with khop
- `directory`: a folder of arrays or tables, and a single .npz file
- `saved`: a PyG object in a file of `torch.save`
- `ogb_raw`, `ogb_package`: data sets of OGB, as they are downloaded; those that OGB's package reads
- `mag240m`: OGB-LSC's MAG240M
- `chunked`: DGL's chunked format, a metadata.json
- `gigl`: what GiGL's data preprocessor writes
- `igb`: IGB's data sets, homogeneous and heterogeneous

They share `npz`, `tables` and `tfrecords` (files read some megabytes at a time), `scratch` (columns
that have to be unpacked), `columns` (edges, attributes, labels, masks), `symmetrized` (reverse
edges) and `torch_files`. A source can be opened again in another process by the same arguments;
with the same `Scratch` folder nothing is unpacked twice. Any process; torch is imported only for
its own files.
"""

from khop.sources.base import Source
from khop.sources.read import read_source
from khop.sources.scratch import Scratch

__all__ = ["Scratch", "Source", "read_source"]
