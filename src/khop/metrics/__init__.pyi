from khop.metrics.families import of_server as of_server
from khop.metrics.http import MetricsServer as MetricsServer, serve as serve
from khop.metrics.loader_stats import HasStats as HasStats, of_loaders as of_loaders
from khop.metrics.text import Labels as Labels
