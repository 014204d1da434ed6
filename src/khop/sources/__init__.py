"""Graphs as others store them, as `khop.partition.GraphSource`s: what `khop partition` reads.

`base` has the interface of a layout. `read` has the table of all layouts, finds the one that a
SOURCE argument names, and reads the graphs of Debian that come with khop. Further readers:

- `directory`: a folder of arrays or tables, and a single .npz file
- `saved`: a PyG object in a file of `torch.save`
- `ogb`: data sets of OGB, as they are downloaded, or by OGB's package
- `mag240m`: OGB-LSC's MAG240M
- `chunked`: DGL's chunked format, a metadata.json
- `gigl`: what GiGL's data preprocessor writes
- `igb`: IGB's data sets, homogeneous and heterogeneous

Shared modules: `npz`, `tables` and `tfrecords` read files some megabytes at a time. `scratch` has
columns that have to be unpacked. `columns` makes edges, attributes, labels and masks. `entries` has
descriptions, `symmetrized` reverse edges, `torch_files` files of torch.

A source can be opened again in another process by the same arguments. With the same `Scratch`
folder nothing is unpacked twice. Any process reads sources. torch is imported for its files only.
"""

from khop.sources.base import Source
from khop.sources.read import read_source
from khop.sources.scratch import Scratch

__all__ = ["Scratch", "Source", "read_source"]
