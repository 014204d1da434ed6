from khop.plot.batches import batch as batch
from khop.plot.folders import (
    Folder as Folder,
    balance as balance,
    cache_curve as cache_curve,
    comparison as comparison,
    degrees as degrees,
    edges_between_parts as edges_between_parts,
    folder as folder,
)
from khop.plot.loading import hotness as hotness, time as time
