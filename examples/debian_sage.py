"""GraphSAGE on the Debian package graph, under DDP, from a partition folder.

    khop partition debian parts --num-parts 2 --method frequency --fanout 10,10 --undirected
    torchrun --standalone --nproc-per-node=2 examples/debian_sage.py --parts parts

Each trainer loads one partition (trainer i loads partition i modulo their number), starts its own
sampler processes, and trains on its share of the training packages. Rows that its partition does
not hold come from copies of hot rows or from the other partition's server. The task: tell a
package's section of the archive from its description and its dependencies, for packages of sources
that training has not seen.
"""

import torch.distributed as dist
from debian_training import NUM_SECTIONS, argument_parser, fit, make_loaders, start
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE


def predict(model, batch):
    """Logits and labels of the seeds, which come first."""
    out = model(batch.x, batch.edge_index)
    return out[: batch.batch_size], batch.y[: batch.batch_size]


def main() -> None:
    """Trains, reports, draws."""
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
