"""GraphLearn-for-PyTorch's names over khop: `import khop.glt as glt`.

Scripts for GraphLearn-for-PyTorch (GLT) 0.2.4 run with their import changed, or unchanged after
`khop.glt.install()`, which lets `import graphlearn_torch` find this package. Modules, names,
arguments and attributes of batches are GLT's; what draws and moves data is khop. khop itself knows
nothing of this package. `docs/migrate-from-glt.md` says what behaves differently.

Names of GLT's that are not here: those of Vineyard and of tables (`TableDataset`, ...), which need
services of Alibaba's, and those of its RPC and its sampling producers, which khop replaces whole.
"""

from khop._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
