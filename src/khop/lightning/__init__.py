"""Data modules for Lightning, for graphs in memory, in partition folders and on graph servers.

Runs in trainers, and needs `lightning` (or `pytorch_lightning`). `LightningNodeData` and
`LightningLinkData` are PyG's, with khop's samplers and loaders. `PartitionedNodeData` and
`PartitionedLinkData` are for partition folders. Lightning (its DDP strategy), torchrun or Slurm
starts the trainers. Each trainer opens its partitions in `setup`. Loaders divide the seeds
themselves, so pass `Trainer(use_distributed_sampler=False)`.
"""

from khop.lightning.folders import PartitionedLinkData, PartitionedNodeData
from khop.lightning.memory import LightningLinkData, LightningNodeData

__all__ = ["LightningLinkData", "LightningNodeData", "PartitionedLinkData", "PartitionedNodeData"]
