"""First import of each example that runs: stand-ins for its data sets and, if need be, its GPUs."""

import os

import torch

from pyg_examples import cpu, datasets

datasets.install()
if os.environ.get("EXAMPLE_GPUS"):
    cpu.install()
torch.manual_seed(1)
