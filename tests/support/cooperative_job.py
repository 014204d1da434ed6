"""A trainer of cooperative batches, compared with one process: RANK PORT FOLDER."""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

from khop.distributed import CooperativeLoader, DistDataset
from khop.loader import NeighborLoader
from khop.partition import PartitionFolder

NUM, FANOUTS, BATCH = 80, [3, -1, 2], 6
EDGES = torch.randint(NUM - 5, (2, 500), generator=torch.Generator().manual_seed(0))
SEEDS = torch.randperm(NUM, generator=torch.Generator().manual_seed(1))[:50]
X = torch.randn(NUM, 4, generator=torch.Generator().manual_seed(2))
Y = torch.arange(NUM) % 3


def graph():
    """The whole graph; the last five nodes are isolated."""
    return Data(x=X, y=Y, edge_index=EDGES, num_nodes=NUM)


def model():
    """The same model for all."""
    torch.manual_seed(7)
    return nn.ModuleList([SAGEConv(4, 8), SAGEConv(8, 8), SAGEConv(8, 3)])


def gather(value):
    """Values of all trainers."""
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def main() -> None:
    """Compare an epoch."""
    rank, port, root = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    size = PartitionFolder(root).num_parts
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=rank, world_size=size)
    dataset = DistDataset().load(root, rank)
    loader = CooperativeLoader(dataset, FANOUTS, SEEDS, BATCH, shuffle=True, seed=5)
    twin = NeighborLoader(
        graph(), FANOUTS, SEEDS, batch_size=BATCH * size, shuffle=True, seed=5, stream=0
    )
    assert len(loader) == len(twin)
    for _ in range(2):
        for batch, whole in zip(loader, twin, strict=True):
            compare(batch, whole)
    dist.barrier()


def compare(batch, whole):
    """Raise AssertionError unless the trainers' shares are the whole batch."""
    nodes = torch.cat(gather(batch.n_id))
    assert sorted(nodes.tolist()) == sorted(whole.n_id.tolist())
    edges = torch.cat(gather(batch.layers[0].e_id))
    assert sorted(edges.tolist()) == sorted(whole.e_id.tolist())
    assert sum(gather(batch.batch_size)) == batch.num_seeds == whole.batch_size
    assert torch.equal(batch.x, X[batch.n_id])
    ours, theirs = model(), model()
    x = batch.x
    for conv, layer in zip(ours, batch.layers, strict=True):
        sources = layer.sources(x)
        assert torch.isfinite(sources).all()
        x = conv((sources, x[: layer.num_dst]), layer.edge_index).relu()
    y = batch.y[: batch.batch_size]
    loss = F.cross_entropy(x, y, reduction="sum") / batch.num_seeds
    loss.backward()
    h = whole.x
    for conv in theirs:
        h = conv(h, whole.edge_index).relu()
    wanted = F.cross_entropy(h[: whole.batch_size], whole.y[: whole.batch_size])
    wanted.backward()
    assert abs(sum(gather(float(loss.detach()))) - float(wanted)) < 1e-5
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        dist.all_reduce(a.grad)
        assert torch.allclose(a.grad, b.grad, atol=1e-6)


if __name__ == "__main__":
    main()
