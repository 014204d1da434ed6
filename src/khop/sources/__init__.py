"""Readers of graph files, as `khop.partition.GraphSource`s, for SOURCE of `khop partition`.

A layout is a way to store a graph in files. `base` has its interface. `read` lists all layouts,
finds the layout of a SOURCE argument, and reads khop's graphs of Debian. Further readers:

- `directory`: a folder of arrays or tables, and a single .npz file
- `saved`: a PyG object in a file of `torch.save`
- `ogb`: data sets of OGB, as they are downloaded, or by OGB's package
- `mag240m`: OGB-LSC's MAG240M
- `chunked`: DGL's chunked format, a metadata.json
- `gigl`: the output of GiGL's data preprocessor
- `igb`: IGB's data sets, homogeneous and heterogeneous

Shared modules: `npz`, `tables` and `tfrecords` read files some megabytes at a time. `scratch`
unpacks files that cannot be mapped. `columns` makes edges, attributes, labels and masks. `entries`
checks JSON and YAML, `symmetrized` adds reverse edges, and `torch_files` loads files of torch.

Another process can open a source again by the same arguments. With the same `Scratch` folder
nothing is unpacked twice. Any process reads sources. torch is imported for its files only.
"""

from khop.sources.base import Source
from khop.sources.read import read_source
from khop.sources.scratch import Scratch

__all__ = ["Scratch", "Source", "read_source"]
