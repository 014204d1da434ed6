"""Metrics of loaders and graph servers, in Prometheus's format.

A trainer serves its metrics with one line::

    khop.metrics.serve(9400, lambda: khop.metrics.of_loaders({"train": train, "test": test}))

`khop serve --metrics-port` does the same for a graph server. `text` has Prometheus's format.
`loader_stats` counts a loader's batches (`khop.stats` for users), `families` turns a server's
snapshot into metrics, and `http` serves the page. Runs in trainers and graph servers. Imports no
torch.
"""

from khop._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
