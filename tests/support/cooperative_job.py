"""Trainers of cooperative batches. They run like `support.cluster.jobs`."""

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

from khop.distributed import CooperativeLoader, DistDataset
from khop.errors import RendezvousError
from khop.loader import NeighborLoader
from support.cluster import jobs

NUM, FANOUTS, BATCH = 80, [3, -1, 2], 6
EDGES = torch.randint(NUM - 5, (2, 500), generator=torch.Generator().manual_seed(0))
# Among them an isolated node; some are there several times.
SEEDS = torch.randperm(NUM, generator=torch.Generator().manual_seed(1))[:44]
SEEDS = torch.cat([SEEDS, SEEDS[:3], SEEDS[:2], torch.tensor([NUM - 1])])
X = torch.randn(NUM, 4, generator=torch.Generator().manual_seed(2))
Y = torch.arange(NUM) % 3


def graph():
    """Return the whole graph. The last five nodes are isolated."""
    weight = torch.arange(500).double() / 7
    return Data(x=X, y=Y, edge_index=EDGES, edge_attr=EDGES.t().half(), weight=weight)


def model():
    """Return a model with the same parameters on all trainers."""
    torch.manual_seed(7)
    return nn.ModuleList([SAGEConv(4, 8), SAGEConv(8, 8), SAGEConv(8, 3)])


def gather(value):
    """Return the values of all trainers."""
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def join(root, on_device=False, **options):
    """Join the group of trainers, and return this trainer's loader."""
    dist.init_process_group("gloo")
    if on_device:
        options["device"] = f"emulated:{dist.get_rank()}"
    dataset = DistDataset().load(root, dist.get_rank())
    options = {"batch_size": BATCH, "shuffle": True, "seed": 5, **options}
    return CooperativeLoader(dataset, FANOUTS, SEEDS, **options)


def job_compare(arguments):
    """Check two epochs against one process that has the whole graph."""
    loader = join(arguments["root"], arguments["on_device"])
    twin = NeighborLoader(
        graph(),
        FANOUTS,
        SEEDS,
        batch_size=BATCH * dist.get_world_size(),
        shuffle=True,
        seed=5,
        stream=0,
    )
    assert len(loader) == len(twin)
    for _ in range(2):
        for batch, whole in zip(loader, twin, strict=True):
            compare(batch, whole)
    dist.barrier()
    dist.destroy_process_group()


def job_ends_early(arguments):
    """Kill a trainer in its fourth batch, or let it leave early. Return the others' errors.

    It leaves the epoch after its second batch. No trainer destroys its process groups.
    """
    loader, rank = join(arguments["root"], batch_size=2), dist.get_rank()
    killed, error = arguments.get("killed"), None
    done = [Path(arguments["done"] + f".{other}") for other in (0, 1, 2) if other != killed]
    begin = time.monotonic()
    try:
        for number, batch in enumerate(loader):
            begin = time.monotonic()
            if number == 3 and rank == killed:
                os.kill(os.getpid(), signal.SIGKILL)
            for layer in batch.layers:
                layer.sources(batch.x)
            if number == 1 and rank == arguments.get("leaves"):
                break
    except RendezvousError as raised:
        error = str(raised)
    seconds = time.monotonic() - begin
    Path(arguments["done"] + f".{rank}").touch()
    end = time.monotonic() + 100
    while not all(path.exists() for path in done) and time.monotonic() < end:
        time.sleep(0.05)  # so it is not that it has ended which they notice
    return {"error": error} if error is None else {"error": error, "after": seconds}


def compare(batch, whole):
    """Raise AssertionError unless the trainers' parts of a batch are the whole batch."""
    nodes = torch.cat(gather(batch.n_id))
    assert sorted(nodes.tolist()) == sorted(whole.n_id.tolist())
    edges = torch.cat(gather(batch.layers[0].e_id))
    assert sorted(edges.tolist()) == sorted(whole.e_id.tolist())
    whole_graph = graph()
    for layer in batch.layers:
        assert layer.edge_attrs.keys() == {"edge_attr", "weight"}
        for name, values in layer.edge_attrs.items():
            assert torch.equal(values, whole_graph[name][layer.e_id])
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
    assert abs(sum(gather(float(loss.detach()))) - float(wanted.detach())) < 1e-5
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        dist.all_reduce(a.grad)
        assert torch.allclose(a.grad, b.grad, atol=1e-6)


if __name__ == "__main__":
    jobs.run(globals())
