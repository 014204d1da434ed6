"""GLT's samplers in memory, and their inputs and outputs."""

from khop.glt.sampler.base import (
    BaseSampler,
    EdgeIndex,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NegativeSamplingMode,
    NeighborOutput,
    NodeSamplerInput,
    RemoteNodePathSamplerInput,
    RemoteNodeSplitSamplerInput,
    RemoteSamplerInput,
    SamplerOutput,
    SamplingConfig,
    SamplingType,
)
from khop.glt.sampler.neighbor_sampler import NeighborSampler, RandomNegativeSampler

__all__ = [
    "BaseSampler",
    "EdgeIndex",
    "EdgeSamplerInput",
    "HeteroSamplerOutput",
    "NegativeSampling",
    "NegativeSamplingMode",
    "NeighborOutput",
    "NeighborSampler",
    "NodeSamplerInput",
    "RandomNegativeSampler",
    "RemoteNodePathSamplerInput",
    "RemoteNodeSplitSamplerInput",
    "RemoteSamplerInput",
    "SamplerOutput",
    "SamplingConfig",
    "SamplingType",
]
