from khop import (
    channel as channel,
    data as data,
    datasets as datasets,
    distributed as distributed,
    errors as errors,
    lightning as lightning,
    loader as loader,
    log as log,
    metrics as metrics,
    nn as nn,
    numa as numa,
    optim as optim,
    partition as partition,
    plot as plot,
    sampler as sampler,
    sources as sources,
    stats as stats,
    storage as storage,
    trace as trace,
    typing as typing,
)
from khop._version import __version__ as __version__
from khop.interrupts import stopping as stopping
from khop.partition.cut import partition_graph as partition_graph
