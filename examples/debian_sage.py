"""GraphSAGE on the Debian package graph, under DDP, from a partition folder.

    khop partition debian parts --num-parts 2 --method frequency --fanout 10,10 --undirected
    torchrun --standalone --nproc-per-node=2 examples/debian_sage.py --parts parts

Each trainer loads one partition: trainer i loads partition i modulo the number of partitions. It
starts its own sampler processes, and trains on its share of the training packages. Rows of other
partitions come from copies of hot rows or from the server of the other partition.

The task is to predict the section of a package in the archive. The model reads the package's
description and dependencies. Training does not see the sources of the test packages.
"""

import torch.distributed as dist
from debian_training import NUM_SECTIONS, argument_parser, fit, make_loaders, start
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE


def predict(model, batch):
    """Return logits and labels of the seeds, the first nodes of a batch."""
    out = model(batch.x, batch.edge_index)
    return out[: batch.batch_size], batch.y[: batch.batch_size]


def main() -> None:
    """Train, and report accuracy."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--fanout", type=int, nargs="+", default=[10, 10])
    args = parser.parse_args()
    context, dataset = start(args)
    loaders = make_loaders(dataset, args.fanout, args)
    _, (width,) = dataset.node_attr("x")
    model = GraphSAGE(width, args.hidden, len(args.fanout), NUM_SECTIONS, dropout=0.5)
    fit(DistributedDataParallel(model), loaders, predict, context, args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
