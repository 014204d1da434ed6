"""GraphLearn-for-PyTorch's interface, implemented by khop: `import khop.glt as glt`.

Scripts for GraphLearn-for-PyTorch (GLT) 0.2.4 run with their import changed, or unchanged after
`khop.glt.install()`, which lets `import graphlearn_torch` find this package. Modules, names,
arguments and attributes of batches are GLT's. khop draws and moves the data. No other package of
khop imports this one. `docs/migrate-from-glt.md` lists what behaves differently.

GLT's interfaces to Vineyard and to tables (`TableDataset`, ...) are not here: they need services of
Alibaba. GLT's RPC and sampling producers are not here either: khop has its own.
"""

from khop._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
