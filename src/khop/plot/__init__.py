"""Pictures of partition folders, hotness, a loader's time and batches, for notebooks and reports.

Needs matplotlib (`pip install 'khop[plot]'`). Imports no torch. Every function but `folder` and
`comparison` draws
into `axes`, or into a new figure, and returns the axes.
"""

from khop._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
