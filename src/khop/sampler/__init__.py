"""Sampling: the plan of a batch, the engine that draws it, and PyG's view of it.

The modules for PyG run in trainers and import torch: `neighbor`, `pyg_sampler`, `drawer`, `device`,
`random_walks`, `source`, `edges`, `stores`, `pyg_links`, `pyg_output`. All others import no torch
and also run in sampler processes and partition servers.
"""

from khop._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "EpochPlan": "plan",
        "FastGcn": "methods",
        "GraphAccess": "methods",
        "Hgt": "methods",
        "Labor": "methods",
        "Ladies": "methods",
        "METHODS": "methods",
        "NeighborSampler": "neighbor",
        "NeighborSampling": "methods",
        "PinSage": "methods",
        "PoissonLadies": "methods",
        "Ppr": "methods",
        "ProgramMethod": "methods",
        "RippleWalk": "methods",
        "SaintEdges": "methods",
        "SaintNodes": "methods",
        "SaintWalks": "methods",
        "Sample": "methods",
        "SamplingMethod": "methods",
        "SamplingSpec": "spec",
        "StepMethod": "methods",
        "Transits": "methods",
        "random_walk": "random_walks",
        "register": "methods",
        "sample_prob": "hotness",
    },
)
