"""Sampling: the plan of a batch, the engine that draws it, and PyG's view of it."""

from khop._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "EpochPlan": "plan",
        "Labor": "methods",
        "METHODS": "methods",
        "NeighborSampler": "neighbor",
        "NeighborSampling": "methods",
        "SamplingMethod": "methods",
        "SamplingSpec": "spec",
        "sample_prob": "hotness",
    },
)
