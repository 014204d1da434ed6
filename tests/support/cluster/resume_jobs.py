"""Programs for tests of resuming after a stop.

python -m support.cluster.resume_jobs NAME ARGUMENTS      runs a job, see `cluster.jobs`
"""

import os
from pathlib import Path

import torch
import torch.distributed as dist

from support.cluster import jobs

_SEEDS = {"seeded": 5, "drawn": None}
"""Of the loaders in the checkpoint; the second asks torch's generator."""


def make_loaders(arguments):
    """Return this trainer's loaders, by their names in the checkpoint."""
    from khop.distributed import DistDataset, DistNeighborLoader, MpDistSamplingWorkerOptions

    rank = int(os.environ["RANK"])
    dataset = DistDataset().load(arguments["root"], arguments["homes"][rank])
    return {
        name: DistNeighborLoader(
            dataset,
            jobs.FANOUTS,
            jobs.seeds_of_rank(rank),
            batch_size=jobs.BATCH_SIZE,
            shuffle=True,
            with_edge=True,
            collect_features=True,
            worker_options=MpDistSamplingWorkerOptions(num_workers=arguments["num_workers"]),
            seed=seed,
        )
        for name, seed in _SEEDS.items()
    }


def make_twins():
    """Return in-memory loaders that make the same batches."""
    from khop.loader import NeighborLoader

    seeds, graph = jobs.seeds_of_rank(int(os.environ["RANK"])), jobs.make_graph()
    common = {"batch_size": jobs.BATCH_SIZE, "shuffle": True}
    return {
        name: NeighborLoader(graph, jobs.FANOUTS, seeds, seed=seed, **common)
        for name, seed in _SEEDS.items()
    }


def digests(batches):
    """Return a digest of each batch."""
    from khop.loader.iteration.fingerprint import digest

    return [digest(batch[name] for name in jobs.ATTRIBUTES) for batch in batches]


def job_save(arguments):
    """Stop in the second epoch, and save the states of all trainers in one checkpoint.

    Returns the remaining batches of this epoch, and the next epoch's.
    """
    import torch.distributed.checkpoint as dcp

    dist.init_process_group("gloo")
    rank, folder = dist.get_rank(), Path(arguments["folder"])
    loaders = make_loaders(arguments)
    torch.manual_seed(rank)
    for loader in loaders.values():
        list(loader)
    iterators = {name: iter(loader) for name, loader in loaders.items()}
    for iterator in iterators.values():
        for _ in range(arguments["batches"]):
            next(iterator)
    dcp.save({**loaders, "step": torch.tensor(3)}, checkpoint_id=folder / "all")
    torch.save(torch.get_rng_state(), folder / f"torch-{rank}")
    found = {name: [digests(iterators[name]), digests(loaders[name])] for name in loaders}
    dist.destroy_process_group()
    return found


def job_go_on(arguments):
    """Load the checkpoint into new loaders, over partitions and in memory. Return their batches."""
    import torch.distributed.checkpoint as dcp

    dist.init_process_group("gloo")
    folder, found = Path(arguments["folder"]), []
    for loaders in (make_loaders(arguments), make_twins()):
        torch.manual_seed(99)
        dcp.load({**loaders, "step": torch.tensor(0)}, checkpoint_id=folder / "all")
        torch.set_rng_state(torch.load(folder / f"torch-{dist.get_rank()}"))
        found.append({n: [digests(loader), digests(loader)] for n, loader in loaders.items()})
    dist.destroy_process_group()
    return found


VIRTUAL = {"fanouts": [4, 3], "batch_size": 6, "shuffle": True, "seed": 5}
"""Options of the loaders of virtual ranks, and of their twins in memory."""


def virtual_loaders(arguments, is_first):
    """Return loaders with twelve, seven and three virtual ranks, or at first as many trainers."""
    from khop.distributed import (
        DistDataset,
        DistNeighborLoader,
        MpDistSamplingWorkerOptions,
        node_split,
    )

    rank, also = dist.get_rank(), arguments.get("also_serve", {})
    root, home = arguments["root"], arguments["homes"][rank]
    dataset = DistDataset().load(root, home, also_serve=also.get(str(rank), []))
    options = {**VIRTUAL, "data": dataset, "num_neighbors": VIRTUAL["fanouts"]}
    del options["fanouts"]
    workers = {"worker_options": MpDistSamplingWorkerOptions(num_workers=1)}
    made = {
        "twelve": DistNeighborLoader(
            input_nodes="train_mask", num_virtual_ranks=12, **workers, **options
        ),
        "seven": DistNeighborLoader(input_nodes="train_mask", num_virtual_ranks=7, **options),
    }
    if is_first:
        made["three"] = DistNeighborLoader(input_nodes=node_split("train_mask"), **options)
    else:
        uneven = {"num_virtual_ranks": 3, "even_batches": False}
        made["three"] = DistNeighborLoader(input_nodes="train_mask", **uneven, **options)
    return made


def refuse_other_seeds(dataset):
    """Check that trainers that pass their own shares of seeds all get an error."""
    from khop.distributed import DistNeighborLoader, node_split
    from khop.errors import RendezvousError

    try:
        DistNeighborLoader(dataset, [2], node_split("train_mask"), num_virtual_ranks=2, seed=1)
    except RendezvousError as error:
        assert "the seeds of all trainers, not a share" in str(error)
    else:
        raise AssertionError("shares were taken for the seeds of all")


def virtual_digests(batches):
    """Return a digest of each batch, without positions of seeds, which depend on their list."""
    from khop.loader.iteration.fingerprint import digest

    names = [name for name in jobs.ATTRIBUTES if name != "input_id"]
    return [digest(batch[name] for name in names) for batch in batches]


def job_virtual(arguments):
    """Begin or resume an epoch of virtual ranks, save it in the middle, and end it.

    Returns the batches before and after the save, and the next epoch's batches.
    """
    import torch.distributed.checkpoint as dcp

    dist.init_process_group("gloo")
    loaders = virtual_loaders(arguments, arguments["from"] is None)
    refuse_other_seeds(loaders["twelve"].data)
    if arguments["from"] is None:
        for loader in loaders.values():
            list(loader)
    else:
        dcp.load({**loaders}, checkpoint_id=arguments["from"])
    lengths = {name: len(loader) for name, loader in loaders.items()}
    epochs = {name: iter(loader) for name, loader in loaders.items()}
    found = {
        name: [virtual_digests(next(epoch) for _ in range(arguments["batches"]))]
        for name, epoch in epochs.items()
    }
    dcp.save({**loaders}, checkpoint_id=arguments["to"])
    for name, loader in loaders.items():
        found[name] += [virtual_digests(epochs[name]), virtual_digests(loader)]
        assert epochs[name].delivered == lengths[name]
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    jobs.run(globals())
