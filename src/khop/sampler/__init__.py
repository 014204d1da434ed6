"""Sampling: the plan of a batch, the engine that draws it, and PyG's view of it.

Options and specifications (`spec`, `link_spec`), plans of epochs (`plan`), and requests
to other partitions (`requests`, `replies`) are shared by all packages. These are `methods`, `rows`
(attributes of a batch), `drawing` (the engine), `device` (draws on GPUs), and `pyg`. Only `pyg`
imports torch, and it runs in trainers. The rest also runs in samplers and graph servers.
"""

from khop._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
