"""GraphSAGE on a Ray cluster: partitioning, graph servers and Ray Train.

    ray start --head
    python examples/ray_sage.py --parts /shared/parts --servers 2 --trainers 2

The machines of the cluster partition the Debian package graph together, unless the folder is there.
The folder is on storage that all machines share. Graph servers are actors, and have the samplers.
Trainers are workers of `TorchTrainer` that get batches from them, and read no folder. If a machine
with a server is lost, Ray restarts the server on another one, and batches stay the same.

If a machine with a trainer is lost, Ray Train starts all trainers again, on the machines that are
left. They load the newest checkpoint, which has the state of the loaders, too. So they go on in the
middle of the epoch, and no loss value changes. Checkpoints are written every `--save-every` batches
to `--storage`, which all machines share.
`--packages 4000` takes the first packages of the graph, for a quick look.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
import torch.distributed as dist
import torch.nn.functional as F

import khop
from khop.datasets import DebianPackages
from khop.distributed import (
    DistNeighborLoader,
    RemoteDistSamplingWorkerOptions,
    shutdown_client,
)
from khop.ray import GraphServers

NUM_SECTIONS = 58


def train(config: dict[str, Any]) -> None:
    """Train on this worker's share of the training packages."""
    from torch_geometric.nn import GraphSAGE  # in workers only: it takes seconds

    rank = ray.train.get_context().get_world_rank()
    config["servers"].init_client(rank)
    options = RemoteDistSamplingWorkerOptions(num_workers=1)
    common = {"batch_size": config["batch_size"], "worker_options": options, "seed": 0}
    loader = DistNeighborLoader(None, [10, 10], "train_mask", shuffle=True, **common)
    tests = DistNeighborLoader(None, [10, 10], "test_mask", **common)
    torch.manual_seed(0)
    net = GraphSAGE(config["width"], 64, 2, NUM_SECTIONS, dropout=0.5)
    model = ray.train.torch.prepare_model(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    stateful = {"net": net, "optimizer": optimizer, "loader": loader, "tests": tests}
    begun, step, total = load(stateful, rank)
    for epoch in range(begun, config["epochs"]):
        model.train()
        for batch in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(*predict(model, batch))
            loss.backward()
            optimizer.step()
            total, step = total + loss.item(), step + 1
            if step % config["save_every"] == 0 and step < len(loader):
                save(stateful, rank, {}, (epoch, step, total))
        loss, share = total / len(loader), accuracy(model, tests)
        step, total = 0, 0.0
        metrics = {"epoch": epoch, "loss": loss, "accuracy": share}
        save(stateful, rank, metrics, (epoch + 1, step, total))
        if rank == 0:
            print(f"epoch {epoch}, loss: {loss:.6f}, test accuracy: {share:.3f}", flush=True)
    shutdown_client()  # the worker goes on


def save(stateful: dict[str, Any], rank: int, metrics: dict[str, Any], progress: Any) -> None:
    """Report metrics and a checkpoint, together with all other workers."""
    state = {name: part.state_dict() for name, part in stateful.items()}
    state |= {"torch": torch.get_rng_state(), "progress": progress}  # dropout uses the generator
    with tempfile.TemporaryDirectory() as folder:
        torch.save(state, Path(folder) / f"rank-{rank}.pt")
        ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))


def load(stateful: dict[str, Any], rank: int) -> tuple[int, int, float]:
    """Load the newest checkpoint, if there is one. Return its epoch, step and sum of losses."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0, 0, 0.0
    with checkpoint.as_directory() as folder:
        state = torch.load(Path(folder) / f"rank-{rank}.pt")
    for name, part in stateful.items():
        part.load_state_dict(state[name])
    torch.set_rng_state(state["torch"])
    epoch, step, total = state["progress"]
    if rank == 0:
        print(f"goes on in epoch {epoch} after step {step}", flush=True)
    return epoch, step, total


def predict(model, batch):
    """Return logits and labels of the seeds, the first nodes of a batch."""
    out = model(batch.x, batch.edge_index)
    return out[: batch.batch_size], batch.y[: batch.batch_size]


@torch.no_grad()
def accuracy(model, loader) -> float:
    """Return the share of correct predictions over the seeds of all workers."""
    model.eval()
    counts = torch.zeros(2)
    for batch in loader:
        out, y = predict(model, batch)
        counts += torch.tensor([(out.argmax(-1) == y).sum(), len(y)])
    dist.all_reduce(counts)
    return float(counts[0] / counts[1])


def main() -> None:
    """Partition, start servers and train. Ray prints what the trainers print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", required=True, type=Path, help="folder, on shared storage")
    parser.add_argument("--storage", type=Path, help="folder of checkpoints, beside --parts")
    parser.add_argument("--packages", type=int, help="number of packages, all by default")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--save-every", type=int, default=20, help="batches between checkpoints")
    parser.add_argument("--failures", type=int, default=3, help="of trainers, before the run ends")
    parser.add_argument("--cpus", type=float, default=1.0, help="of each server and trainer")
    args = parser.parse_args()
    ray.init(address="auto")
    if not args.parts.exists():
        data = DebianPackages(undirected=True)[0]
        if args.packages is not None:
            data = data.subgraph(torch.arange(args.packages))
        khop.partition_graph(data, args.parts, args.servers, method="random", on="ray")
    _, (width,) = khop.partition.PartitionFolder(args.parts).meta.node_types[0].attrs["x"].delivered
    counts = {"num_servers": args.servers, "num_clients": args.trainers}
    with GraphServers(args.parts, **counts, num_cpus=args.cpus) as servers:
        trainer = ray.train.torch.TorchTrainer(
            train,
            train_loop_config={
                **{"servers": servers.address, "width": width},
                **{"epochs": args.epochs, "batch_size": args.batch_size},
                "save_every": args.save_every,
            },
            scaling_config=ray.train.ScalingConfig(
                num_workers=args.trainers, resources_per_worker={"CPU": args.cpus}
            ),
            run_config=ray.train.RunConfig(
                storage_path=str((args.storage or args.parts.with_name("checkpoints")).absolute()),
                failure_config=ray.train.FailureConfig(max_failures=args.failures),
                checkpoint_config=ray.train.CheckpointConfig(num_to_keep=1),
            ),
        )
        trainer.fit()


if __name__ == "__main__":
    main()
