"""What khop counts, for Prometheus.

A trainer that wants to be watched says so in one line::

    khop.metrics.serve(9400, lambda: khop.metrics.of_loaders({"train": train, "test": test}))

`khop serve --metrics-port` does the same for a graph server. `text` has Prometheus's format,
`families` says what becomes of loaders' statistics and of a server's picture of itself, `http`
answers whoever scrapes.
"""

from khop.metrics.families import of_loaders, of_server
from khop.metrics.http import MetricsServer, serve

__all__ = ["MetricsServer", "of_loaders", "of_server", "serve"]
