"""Sampling: the plan of a batch, the engine that draws it, and PyG's view of it.

Options and specifications (`spec`, `link_spec`), plans of epochs (`plan`), and requests
to other partitions (`requests`, `replies`) are shared by all. The packages are `methods`, `rows`
(attributes of a batch), `drawing` (the engine), `device` (the same on GPUs), and `pyg`. Only `pyg`
imports torch and runs in trainers. All else also runs in sampler processes and partition servers.
"""

from khop._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
