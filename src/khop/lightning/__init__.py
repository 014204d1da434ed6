"""Data modules for Lightning: of graphs in memory, and over partition folders and graph servers.

Runs in trainers, and needs `lightning` (or `pytorch_lightning`). `LightningNodeData` and
`LightningLinkData` are PyG's, with khop's samplers and loaders. `PartitionedNodeData` and
`PartitionedLinkData` are for partition folders: Lightning starts the trainers (its DDP strategy),
or torchrun or Slurm do. Each trainer opens its share of the partitions in `setup`. Their loaders
divide the seeds themselves: `Trainer(use_distributed_sampler=False)` says so to Lightning.
"""

from khop.lightning.folders import PartitionedLinkData, PartitionedNodeData
from khop.lightning.memory import LightningLinkData, LightningNodeData

__all__ = ["LightningLinkData", "LightningNodeData", "PartitionedLinkData", "PartitionedNodeData"]
