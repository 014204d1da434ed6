"""Sampling: the plan of a batch, the engine that draws it, and PyG's view of it.

The modules for PyG run in trainers and import torch: `neighbor`, `pyg_sampler`, `drawer`, `device`,
`random_walks`, `source`, `edges`, `stores`, `pyg_links`, `pyg_output`. All others import no torch
and also run in sampler processes and partition servers.
"""

from khop._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
