"""A process of the guide's cluster: `python -m guide.job NAME ARGUMENTS`.

ARGUMENTS is a JSON object. Runs the blocks of its part of the guide and checks what they give;
prints what the test compares between processes.
"""

import os
from pathlib import Path

import torch

from guide import products, running
from support.cluster import jobs

FANOUTS = [15, 10, 5]


def seeds_of(root, part, turn):
    """A trainer's half of the seeds of a part, as the guide has saved them."""
    file = Path(root) / "train-idx-partitions" / f"partition{part}.pt"
    return torch.load(file, weights_only=True).chunk(2)[turn]


def reference(graph, seeds, stream, **options):
    """The in-memory loader whose batches the guide's loader must give.

    The guide's folder serves out-neighbours: batches are those of the graph turned round.
    """
    from torch_geometric.data import Data

    from khop.loader import NeighborLoader

    turned = Data(x=graph["x"], y=graph["y"], edge_index=graph["edge_index"].flip(0))
    return NeighborLoader(turned, FANOUTS, seeds, batch_size=1024, stream=stream, **options)


def same_epochs(loader, other, graph):
    """Compares an epoch of both loaders bit for bit, and with the graph; returns its batches."""
    torch.manual_seed(11)
    ours = list(loader)
    torch.manual_seed(11)
    edges = set(zip(*graph["edge_index"].tolist(), strict=True))
    for batch, twin in zip(ours, other, strict=True):
        for name in ("edge_index", "x", "y"):
            assert torch.equal(batch[name], twin[name]), name
        assert torch.equal(batch.node, twin.n_id)
        assert torch.equal(batch.batch, twin.n_id[: twin.batch_size])
        assert batch.batch_size == twin.batch_size
        assert batch.num_sampled_nodes.tolist() == twin.num_sampled_nodes
        assert batch.num_sampled_edges.tolist() == twin.num_sampled_edges
        check_batch(batch, graph, edges)
    return len(ours)


def check_batch(batch, graph, edges):
    """Attributes are the graph's; edges run from drawn neighbours to who drew them."""
    assert torch.equal(batch.x, graph["x"][batch.node])
    assert torch.equal(batch.y, graph["y"][batch.node])
    neighbor, drawer = batch.node[batch.edge_index]
    assert set(zip(drawer.tolist(), neighbor.tolist(), strict=True)) <= edges
    degree = torch.bincount(graph["edge_index"][0], minlength=products.NUM_NODES)
    drawn = torch.bincount(batch.edge_index[1], minlength=batch.batch_size)[: batch.batch_size]
    assert torch.equal(drawn, degree[batch.batch].clamp(max=FANOUTS[0]))


def job_worker(arguments):
    """Sections 2.1 and 4.1 on one of four trainers, two of each partition."""
    rank, root = int(os.environ["RANK"]), arguments["root"]
    torch.distributed.init_process_group("gloo")
    graph = torch.load(arguments["graph"], weights_only=True)
    names = {"torch": torch, "ROOT": root, "PARTITION": rank // 2, "RANK": rank}
    running.run("2.1 group", names)
    context = running.run_lines("2.1 context", names)
    role = context.pop("dist_ctx.role").name
    running.run("1.3 load", names)

    names["train_idx"] = seeds = seeds_of(root, rank // 2, rank % 2)
    running.run("4.1 loader", names)
    assert names["mp_options"].num_workers == len(names["train_loader"].workers) == 2
    other = reference(graph, seeds, rank)
    batches = same_epochs(names["train_loader"], other, graph)

    names |= {"num_in_feats": products.NUM_FEATURES, "num_classes": products.NUM_CLASSES}
    torch.manual_seed(0)
    running.run("4.1 training", names)
    weights = torch.cat([p.detach().view(-1) for p in names["model"].parameters()])
    loss = names["loss"].item()
    names["train_loader"].shutdown()

    running.run("4.1 collocated", names)
    assert same_epochs(names["train_loader"], other, graph) == batches
    return {
        "role": role,
        "context": context,
        "batches": batches,
        "seeds": seeds.tolist(),
        "loss": loss,
        "weights": weights.double().sum().item(),
    }


def described(names):
    """What section 2.2 looks at in the context."""
    context = running.run_lines("2.2 context", names)
    return {"role": context.pop("dist_ctx.role").name, "context": context}


def job_server(arguments):
    """Section 2.2 on one of two servers."""
    rank = arguments["rank"]
    names = {"torch": torch, "ROOT": arguments["root"], "PARTITION": rank, "RANK": rank}
    names["PORT"] = arguments["port"]
    running.run("1.3 load", names)
    wait = running.run_around("2.2 server", "glt.distributed.wait_and_shutdown_server()", names)
    found = described(names)
    wait()
    return found


def job_client(arguments):
    """Sections 2.2 and 4.2 on one of four clients."""
    rank = arguments["rank"]
    graph = torch.load(arguments["graph"], weights_only=True)
    names = {"torch": torch, "RANK": rank, "PORT": arguments["port"]}
    leave = running.run_around("2.2 client", "glt.distributed.shutdown_client()", names)
    found = described(names)
    names["train_idx"] = seeds = seeds_of(arguments["root"], rank % 2, rank // 2)
    running.run("4.2 loader", names)
    batches = same_epochs(names["train_loader"], reference(graph, seeds, rank), graph)
    leave()
    return {
        **found,
        "server": names["target_server_rank"],
        "devices": names["target_server_device_count"],
        "batches": batches,
        "seeds": seeds.tolist(),
    }


if __name__ == "__main__":
    jobs.run(globals())
