"""GLT's samplers in memory, and their inputs and outputs."""

from khop.glt.sampler.base import (
    BaseSampler as BaseSampler,
    EdgeIndex as EdgeIndex,
    EdgeSamplerInput as EdgeSamplerInput,
    HeteroSamplerOutput as HeteroSamplerOutput,
    NegativeSampling as NegativeSampling,
    NegativeSamplingMode as NegativeSamplingMode,
    NeighborOutput as NeighborOutput,
    NodeSamplerInput as NodeSamplerInput,
    RemoteNodePathSamplerInput as RemoteNodePathSamplerInput,
    RemoteNodeSplitSamplerInput as RemoteNodeSplitSamplerInput,
    RemoteSamplerInput as RemoteSamplerInput,
    SamplerOutput as SamplerOutput,
    SamplingConfig as SamplingConfig,
    SamplingType as SamplingType,
)
from khop.glt.sampler.neighbor_sampler import (
    NeighborSampler as NeighborSampler,
    RandomNegativeSampler as RandomNegativeSampler,
)
