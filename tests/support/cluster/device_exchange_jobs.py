"""Trainers whose devices draw the partitions together. They run like `cluster.jobs`."""

import os
import signal
import time

import torch
import torch.distributed as dist

from khop.distributed import DistClusterLoader, DistLinkNeighborLoader, DistNeighborLoader
from khop.distributed.loaders import device_backend
from khop.loader import NeighborLoader
from khop.sampler import Labor, Ppr
from support.cluster import jobs, twins
from support.cluster.exchange_jobs import ALL, COMMON, EXCHANGE, NODES, join, seeds_of

_ALIGNMENT = 16


def device_of(rank, **options):
    """Return the options of a loader whose trainer draws on a device."""
    return {"device": f"emulated:{rank}", **ALL, **EXCHANGE, **COMMON, **options}


def drawn_by_devices(cases):
    """Return those cases of `NODES` that devices draw."""
    for method, options in cases:
        if isinstance(method, list | Labor) and options.get("subgraph_type") != "induced":
            yield method, {name: value for name, value in options.items() if name != "cache_memory"}


def job_equal(arguments):
    """Check batches that devices draw against the loader in memory. Return rows by origin."""
    rank, opened = join(arguments)
    rows = {"local": 0, "remote": 0}
    for (graph, kind), cases in NODES.items():
        root = arguments["roots"].get(f"{graph}-{kind}")
        if root is None:
            continue
        dataset, data = opened(root, **arguments["load"]), getattr(twins, graph)()
        for index, (method, options) in enumerate(drawn_by_devices(cases)):
            is_hetero = graph == "heterogeneous"
            seeds = seeds_of(rank, 37, 120 if is_hetero else 150)
            named = ("paper", seeds) if is_hetero else seeds
            if options.get("input_time"):
                options["input_time"] = torch.arange(37.0) % 11
            loader = DistNeighborLoader(dataset, method, named, **device_of(rank, **options))
            twin = NeighborLoader(data, method, named, stream=rank, **COMMON, **options)
            assert twins.same_epochs(loader, twin, 1 if index else 2)
            for origin in rows:
                rows[origin] += loader.stats().rows[origin]
            loader.shutdown()
    dist.barrier()
    dist.destroy_process_group()
    return {"rows": rows}


def job_like_messages(arguments):
    """Check batches against a loader by messages: features in fewer bits, padding, resuming."""
    rank, opened = join(arguments)
    dataset, seeds = opened(arguments["root"]), seeds_of(rank, 30 + 11 * rank, 150)
    on_device = device_of(rank)

    def pair(**options):
        for how in (on_device, {}):
            yield DistNeighborLoader(dataset, [3, 2], seeds, **{**ALL, **COMMON, **how, **options})

    for options in ({}, {"widen": "sampler"}, {"pad": "auto"}, {"with_edge": False}):
        loaders = [*pair(**options)]
        twins.same_epochs(*loaders)
    for epochs in zip(*map(iter, loaders), strict=True):  # all leave the epoch early
        twins.same_batch(*epochs)
        break
    resumed = [*pair(with_edge=False)]
    for loader, earlier in zip(resumed, loaders, strict=True):
        loader.load_state_dict(earlier.state_dict())
    for batches in zip(*resumed, strict=True):
        twins.same_batch(*batches)
    dist.barrier()
    dist.destroy_process_group()
    return {"dtype": dataset.meta.node_types[0].attrs["x"].stored.dtype}


def job_traffic(arguments):
    """Return calls, bytes sent and received, and the bytes that this trainer's batches need."""
    rank, opened = join(arguments)
    dataset, size, hops = opened(arguments["root"]), dist.get_world_size(), 2
    options = device_of(rank, time_attr="time", disjoint=True)
    loader = DistNeighborLoader(dataset, [3, 2], seeds_of(rank, 37, 150), **options)
    needed, num_batches = 0, 0
    for batch in loader:
        num_batches += 1
        needed += (size - 1) * 8 * (hops * (3 + 1 + 2) + 3 + 2)  # numbers of rows
        owners = owners_of(dataset, batch.n_id)
        of_edges = owners[batch.edge_index[1]]
        starts = [0, *torch.tensor(batch.num_sampled_nodes).cumsum(0).tolist()]
        frontier = owners[: starts[hops]]
        needed += (16 + 8) * int((frontier != rank).sum())  # keys and times, counts
        needed += 16 * int((of_edges != rank).sum())  # neighbours and edges
        for other in range(size):
            for of, names in ((owners, ("n_id", "x", "y", "time")), (of_edges, EDGE_NAMES)):
                rows = int((of == other).sum()) * (other != rank)
                sizes = [rows * batch[name][0].nbytes for name in names]
                needed += 8 * rows + sum(-(-nbytes // _ALIGNMENT) * _ALIGNMENT for nbytes in sizes)
    exchange = loader._backend._exchange
    dist.destroy_process_group()
    return {
        "calls": exchange.num_calls / num_batches,
        "sent": exchange.bytes_sent,
        "received": exchange.bytes_received,
        "needed": needed,
    }


EDGE_NAMES = ("e_id", "edge_attr", "edge_weight", "edge_time")


def owners_of(dataset, ids):
    """Return the partition of each node."""
    new_ids = dataset.to_new_ids(ids.numpy(), "ids", "node")
    bounds = torch.tensor(dataset.meta.node_types[0].bounds[1:-1])
    return torch.bucketize(torch.from_numpy(new_ids), bounds, right=True)


def job_refused(arguments):
    """Return the errors of loaders that devices cannot draw, and loaders that the CPU draws."""
    rank, opened = join(arguments)
    root, errors = arguments["root"], {}
    seeds = seeds_of(rank, 30, 150)
    links = torch.stack([seeds, seeds])

    def refused(name, loader=DistNeighborLoader, method=(3,), named=seeds, load=None, **options):
        try:
            dataset = opened(root, **(load or {}))
            options = {**device_of(rank), **options}
            if loader is DistClusterLoader:
                loader(dataset, assignment=torch.arange(150) % 12, **options)
            elif loader is DistLinkNeighborLoader:
                loader(dataset, list(method), edge_label_index=named, **options)
            else:
                method = method if isinstance(method, Ppr) else list(method)
                loader(dataset, method, named, **options)
            errors[name] = None
        except (ValueError, RuntimeError) as error:
            errors[name] = f"{type(error).__name__}: {error}"

    refused("links", DistLinkNeighborLoader, named=links)
    refused("PPR", method=Ppr(6))
    refused("induced", subgraph_type="induced")
    refused("clusters", DistClusterLoader)
    refused("disk", load={"features_on_disk": ["x"]})
    refused("one draws", load={"graph_mode": "CPU"} if rank else {})
    refused("links by the CPU", DistLinkNeighborLoader, named=links, load={"graph_mode": "CPU"})
    dist.barrier()
    dist.destroy_process_group()
    return errors


def job_ends(arguments):
    """Make a loader for each way to end, which trainer 1 takes. Return errors and seconds.

    First, trainer 1 cannot make its loader.
    """
    rank, opened = join(arguments)
    dataset, found = opened(arguments["root"]), {}
    begin, graphs_on = time.monotonic(), device_backend.graphs_on
    try:
        if rank == 1:
            device_backend.graphs_on = _raise
        next(iter(DistNeighborLoader(dataset, [3, 2], torch.arange(150), **device_of(rank))))
    except (OSError, RuntimeError) as error:
        found["lacks memory"] = [f"{type(error).__name__}: {error}", time.monotonic() - begin]
    device_backend.graphs_on = graphs_on
    for how in arguments["ways"]:
        options = device_of(rank, batch_size=2)
        loader = DistNeighborLoader(dataset, [3, 2], torch.arange(150), **options)
        begin, error = time.monotonic(), None
        try:
            for count, _ in enumerate(loader):
                begin = time.monotonic()
                if count >= 3 and rank == 1:
                    if how == "leave":
                        break
                    _end(how, loader._backend)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        found[how] = [error, time.monotonic() - begin]
    return found


def _end(how, backend):
    """End in some way, or send what is wrong from now on."""
    exchange = backend._exchange
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "raise":
        backend._pipeline.request = _raise
    elif how == "too many rows":
        _tamper(exchange._group, "send_numbers", lambda sent: [[1 << 40, *of[1:]] for of in sent])
    else:
        # In a hop: ids, counts, and pairs of neighbours and edges. Then ids of rows, and rows.
        turn, change = {
            "ids": (0, lambda rows: rows + 10**6),
            "negative": (1, lambda rows: rows - 5),
            "large": (1, lambda rows: rows + (1 << 40)),
            "too many": (1, lambda rows: rows + 7),
            "neighbours": (2, lambda rows: rows + 10**6),
            "ids of rows": (6, lambda rows: rows + 10**6),
        }[how]
        turns = iter(range(9))
        _tamper(exchange, "send", lambda rows: change(rows) if next(turns) == turn else rows)


def _raise(*_):
    raise OSError("the GPU has failed")


def _tamper(owner, name, change):
    send = getattr(owner, name)
    setattr(owner, name, lambda first, *rest: send(change(first), *rest))


if __name__ == "__main__":
    jobs.run(globals())
