"""Trainers that exchange neighbours and rows by collective calls. They run like `cluster.jobs`."""

import contextlib
import os
import signal
import time

import torch
import torch.distributed as dist
from torch_geometric.sampler import NegativeSampling

from khop.channel import bundle
from khop.distributed import (
    DistClusterLoader,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
    MpDistSamplingWorkerOptions,
)
from khop.distributed.loaders import exchanged_parts
from khop.errors import RendezvousError
from khop.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader
from khop.sampler import FastGcn, Labor, Ladies, PinSage, Ppr, SaintWalks
from support.cluster import jobs, twins

ALL = {"collect_features": True, "with_edge": True}
COMMON = {"batch_size": 8, "shuffle": True, "seed": 7}
EXCHANGE = {"exchange": "all_to_all"}

# For each folder (graph, attributes of draws): fan-outs or method, and options.
NODES = {
    ("homogeneous", "plain"): [
        ([3, -1, 2], {}),
        ([3, 2], {"replace": True, "disjoint": True}),
        ([3, 2], {"subgraph_type": "bidirectional"}),
        ([3, 2], {"subgraph_type": "induced", "cache_memory": 0}),
        ([3, 0, 2], {"cache_memory": 0}),
        ([], {}),
        (Ppr(6, eps=1e-3), {}),
        (PinSage(3, num_layers=2), {}),
        (FastGcn([20, 30]), {}),
        (Ladies([20, 30]), {}),
        (SaintWalks(3), {}),
    ],
    ("homogeneous", "weight"): [([3, 2], {"weight_attr": "edge_weight"})],
    ("homogeneous", "time"): [
        ([3, 2], {"time_attr": "time", "temporal_strategy": "last"}),
        ([3, 2], {"time_attr": "time", "weight_attr": "edge_weight"}),
    ],
    ("homogeneous", "edge_time"): [([3, 2], {"time_attr": "edge_time", "input_time": True})],
    ("homogeneous", "labor"): [(Labor([3, 2]), {})],
    ("heterogeneous", "plain"): [([3, 2], {}), ([2, 2], {"replace": True})],
}


def join(arguments):
    """Join the group of trainers, and return the rank and a function that opens a folder.

    Trainers divide the partitions. With fewer partitions than trainers, some share one.
    """
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    num_parts = arguments["num_parts"]
    parts = list(range(rank, num_parts, size)) or [rank % num_parts]

    def opened(root, **options):
        return DistDataset().load(root, parts[0], also_serve=parts[1:], **options)

    return rank, opened


def seeds_of(rank, count, num_nodes):
    """Return a trainer's seeds. Some are repeated."""
    draw = torch.Generator().manual_seed(rank)
    return torch.randint(num_nodes, (count,), generator=draw)


def job_equal(arguments):
    """Check batches of all kinds of loaders and graphs against the loader in memory.

    Returns the processes of khop beside this one, and rows by origin, of all loaders.
    """
    rank, opened = join(arguments)
    rows, children = {"remote": 0, "reused": 0}, []

    def compare(loader, twin, epochs=1):
        twins.same_epochs(loader, twin, epochs)
        children.extend(jobs.khop_processes())
        for origin in rows:
            rows[origin] += loader.stats().rows[origin]
        loader.shutdown()

    for (graph, kind), cases in NODES.items():
        root = arguments["roots"].get(f"{graph}-{kind}")
        if root is None:
            continue
        dataset, data = opened(root), getattr(twins, graph)()
        for index, (method, options) in enumerate(cases[: arguments["most"]]):
            is_hetero = graph == "heterogeneous"
            seeds = seeds_of(rank, 37, 120 if is_hetero else 150)
            named = ("paper", seeds) if is_hetero else seeds
            both = {**COMMON, **options}
            cache = {n: both.pop(n) for n in ("cache_memory",) if n in both}
            if both.get("input_time"):
                both["input_time"] = torch.arange(37.0) % 11
            loader = DistNeighborLoader(dataset, method, named, **ALL, **EXCHANGE, **both, **cache)
            twin = NeighborLoader(data, method, named, stream=rank, **both)
            compare(loader, twin, epochs=1 if index else 2)
        if kind == "plain":
            compare(*links_of(rank, dataset, data, graph))
        if (graph, kind) == ("homogeneous", "plain"):
            seeds = seeds_of(rank, 37, 150)
            loader = DistSubGraphLoader(dataset, seeds, [3], **ALL, **EXCHANGE, **COMMON)
            compare(loader, SubGraphLoader(data, seeds, [3], stream=rank, **COMMON))
    dist.barrier()
    dist.destroy_process_group()
    return {"rows": rows, "children": children}


def links_of(rank, dataset, data, graph):
    """Return a loader of links with negatives, and its twin."""
    links = torch.stack([seeds_of(rank, 21, 70), seeds_of(rank + 50, 21, 70)])
    named = links if graph == "homogeneous" else (twins.WRITES, links)
    options = {"neg_sampling": NegativeSampling("binary", 1.5), "strict_negatives": True, **COMMON}
    loader = DistLinkNeighborLoader(
        dataset, [3, 2], edge_label_index=named, **ALL, **EXCHANGE, **options
    )
    return loader, LinkNeighborLoader(data, [3, 2], named, stream=rank, **options)


def job_like_messages(arguments):
    """Check batches against a loader by messages: uneven seeds, virtual ranks, clusters.

    Also with messages that do not fit in one round, and with two epochs at the same time.
    """
    rank, opened = join(arguments)
    dataset = opened(arguments["root"])
    bundle.BUNDLE_BYTES = 1000
    seeds = seeds_of(rank, 30 + 11 * rank, 150)

    def pair(make):
        return make(), make(**EXCHANGE)

    def nodes(**options):
        return DistNeighborLoader(dataset, [3, 2], seeds, **{**ALL, **COMMON, **options})

    def shares(**options):
        every = torch.arange(150)
        options = {"num_virtual_ranks": 5, **ALL, **COMMON, **options}
        return DistNeighborLoader(dataset, [3, 2], every, **options)

    def clusters(**options):
        options = {**ALL, **COMMON, "batch_size": 2, **options}
        return DistClusterLoader(dataset, assignment=torch.arange(150) % 12, **options)

    def from_disk(**options):
        data = opened(arguments["root"], features_on_disk=["x"], structure_on_disk=True)
        return DistNeighborLoader(data, [3, 2], seeds, **{**ALL, **COMMON, **options})

    for make in (nodes, shares, clusters, from_disk):
        by_messages, exchanged = pair(make)
        assert twins.same_epochs(exchanged, by_messages, 2)
    loader, twin = nodes(**EXCHANGE), nodes()
    for _ in range(2):  # all leave epochs early, and two epochs take turns
        for epochs in zip(iter(loader), iter(twin), strict=True):
            twins.same_batch(*epochs)
            break
    turns = [zip(iter(one), iter(one), strict=True) for one in (loader, twin)]
    for ours, theirs in zip(*turns, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            twins.same_batch(one, other)
    state, resumed = loader.state_dict(), nodes(**EXCHANGE)
    resumed.load_state_dict(state)
    twins.same_epochs(resumed, twin)
    dist.barrier()
    dist.destroy_process_group()
    return {"seeds": len(seeds)}


def job_refused(arguments):
    """Return the errors of loaders that differ between trainers, or cannot exchange at all."""
    rank, opened = join(arguments)
    dataset, errors = opened(arguments["root"]), {}
    seeds = seeds_of(rank, 30, 150)

    def refused(name, **options):
        try:
            DistNeighborLoader(dataset, options.pop("fanouts", [3]), seeds, **options)
        except (ValueError, RuntimeError) as error:
            errors[name] = f"{type(error).__name__}: {error}"

    refused("one exchanges", **(EXCHANGE if rank else {}))
    refused("batch sizes", batch_size=4 + rank, **EXCHANGE)
    refused("fan-outs", fanouts=[3 + rank], **EXCHANGE)
    refused("replacement", replace=bool(rank), **EXCHANGE)
    refused("virtual", num_virtual_ranks=2, seed=1, **(EXCHANGE if rank else {}))
    refused("uneven", even_batches=False, **EXCHANGE)
    refused("samplers", worker_options=MpDistSamplingWorkerOptions(num_workers=1), **EXCHANGE)
    refused("group alone", exchange_group=dist.group.WORLD)
    refused("unknown", exchange="nccl")
    half = dist.new_group([0])
    if rank == 0:
        refused("half a group", exchange_group=half, even_batches=True, **EXCHANGE)
    else:
        refused("half a group", exchange_group=dist.group.WORLD, **EXCHANGE)
    dist.destroy_process_group()
    refused("no group", **EXCHANGE)
    return errors


def job_ends(arguments):
    """Make a loader for each way to end, which trainer 1 takes after some batches.

    Returns {way: [error, the seconds until it]} of this trainer's loaders. Loaders that have
    failed take no further batches.
    """
    rank, opened = join(arguments)
    dataset, found = opened(arguments["root"]), {}
    for how in arguments["ways"]:
        loader = DistNeighborLoader(dataset, [3, 2], torch.arange(150), batch_size=2, **EXCHANGE)
        begin = time.monotonic()
        try:
            for count, _ in enumerate(loader):
                begin = time.monotonic()
                if count >= 3 and rank == 1:
                    if how == "leave":
                        break
                    _end(how, loader)
                elif count >= 3 and how == "interrupt":
                    time.sleep(1)
            error = None
        except BaseException as raised:
            error = f"{type(raised).__name__}: {raised}"
            with contextlib.suppress(RendezvousError):
                next(iter(loader))
                error = "it goes on"
        found[how] = [error, time.monotonic() - begin]
        exchanged_parts.Bundle = bundle.Bundle
    return found


def _end(how, loader):
    """End in some way, at once or in the next round."""
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "raise":
        loader._backend._pipeline.request = _raise
    elif how == "interrupt":
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
    else:
        exchanged_parts.Bundle = {"size": _TooLarge, "malformed": _Liar}[how]


def _raise(*_):
    raise OSError("the disk has failed")


def _interrupt(*_):
    raise KeyboardInterrupt


class _TooLarge(bundle.Bundle):
    """Bundle that announces more bytes than are allowed."""

    def __init__(self, queue):
        super().__init__(queue)
        self.nbytes = 1 << 40


class _Liar(bundle.Bundle):
    """Bundle with another table than its messages have."""

    def write(self, out):
        out[:] = 255


if __name__ == "__main__":
    jobs.run(globals())
