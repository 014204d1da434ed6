"""GraphSAGE under DDP in pods of Kubernetes. Each pod is a trainer with a part and a sampler.

    khop partition debian parts --num-parts 2 --undirected
    khop run --local 2 -- python examples/k8s/train.py --parts parts --epochs 1

The manifests in this folder start it as an Indexed Job, a PyTorchJob and a RayJob.
"""

import argparse
from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE

from khop.distributed import (
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    init_worker_group,
    shutdown_worker_group,
)


def train(words: Sequence[str] | None = None) -> None:
    """Train. `words` are arguments. If None, the command line has them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default="/parts", help="partition folder")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--classes", type=int, default=64, help="number of labels")
    parser.add_argument("--buffer-size", default="4GB", help="shared memory of the sampler")
    parser.add_argument("--cache-memory", default="1GB", help="rows of other partitions")
    args = parser.parse_args(words)

    context = init_worker_group()
    if not dist.is_initialized():  # Ray Train has done it
        dist.init_process_group("gloo")
    dataset = DistDataset().load(args.parts, partition_idx=context.rank)
    loader = DistNeighborLoader(
        dataset,
        [10, 5],
        "train_mask",
        batch_size=512,
        shuffle=True,
        seed=1,
        cache_memory=args.cache_memory,
        worker_options=MpDistSamplingWorkerOptions(num_workers=1, buffer_size=args.buffer_size),
    )
    torch.manual_seed(0)
    num_features = next(iter(loader)).num_features
    model = DistributedDataParallel(GraphSAGE(num_features, 64, 2, args.classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        for batch in loader:
            scores = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(scores, batch.y[: batch.batch_size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if context.rank == 0:
            print(f"epoch {epoch}: loss {loss:.3f}", flush=True)
    loader.shutdown()
    shutdown_worker_group()


if __name__ == "__main__":
    train()
