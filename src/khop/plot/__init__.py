"""Pictures of partition folders, hotness, a loader's time and batches, for notebooks and reports.

Needs matplotlib (`pip install 'khop[plot]'`). Imports no torch. `folder` and `comparison` return
new figures. The other functions draw into `axes`, or into a new figure if None, and return axes.
"""

from khop._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
