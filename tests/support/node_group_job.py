"""Trainers whose devices hold a table together. They run like `support.cluster.jobs`."""

import gc
import os
import pickle
import signal
import time

import numpy as np
import torch
import torch.distributed as dist
from torch_geometric.data import Data, HeteroData

from fake_cuda import control
from khop import _native
from khop.data import Feature
from khop.data.device_feature import DeviceFeature
from khop.data.node_rows import NodeGroup
from khop.distributed import init_worker_group, shutdown_worker_group
from khop.errors import RendezvousError
from khop.glt.data import DeviceGroup, Feature as GltFeature
from khop.loader import DeviceOptions, NeighborLoader
from support.cluster import jobs
from support.devices import empty, get, put

NUM, WIDTH = 300, 6
ROW = 4 * WIDTH


def array():
    """Return the table, the same in all trainers."""
    return np.random.default_rng(0).standard_normal((NUM, WIDTH)).astype(np.float32)


def wanted(num_batches=4):
    """Return rows of batches, few of them often, and how often each row is wanted."""
    rng = np.random.default_rng(1)
    batches = [(NUM * rng.random(200) ** 4).astype(np.int64) for _ in range(num_batches)]
    return batches, np.bincount(np.concatenate(batches), minlength=NUM)


def join(arguments):
    """Join the group of trainers. Return the context and this trainer's device."""
    context = init_worker_group(lease=5)
    if arguments["device"] == "emulated":
        return context, _native.emulated_device(context.rank)
    control.set_options(
        devices=context.world_size, multiprocessors=2, count_reads=1, **arguments.get("fake", {})
    )
    return context, _native.cuda_device(context.rank)


def shared(device, context, name="x", table=None, **options):
    """Return the table that all trainers make together."""
    feature = Feature(array() if table is None else table)
    return DeviceFeature(feature, device, group=NodeGroup(name), **options)


def gather(device, feature, rows, width=WIDTH):
    """Return the rows that a device gathers."""
    out = empty(device, (len(rows), width), np.float32)
    feature.gather(put(device, rows), out)
    return get(out)


def violations():
    """Return the rules of the tests' own runtime that were broken, with all work done."""
    if not control.IS_FAKE:
        return []
    control.finish()
    return control.violations()


def job_gather(arguments):
    """Gather all batches from a table per set of options. Return what was read from where."""
    context, device = join(arguments)
    found = {}
    for name, options in arguments["options"].items():
        found[name] = _gather_all(context, device, name, options)
    del device
    shutdown_worker_group()
    gc.collect()
    used = control.used_memory(context.rank) if arguments["device"] == "fake" else 0
    return {"tables": found, "used": used, "violations": violations()}


def _gather_all(context, device, name, options):
    batches, heat = wanted()
    # The first trainer's choice counts for all.
    hotness = heat if context.rank == 0 else np.ones(NUM)
    feature = shared(device, context, name, hotness=hotness, **options)
    before = counted()
    for rows in batches:
        assert np.array_equal(gather(device, feature, rows), array()[rows])
    return {
        "bytes": [now - then for now, then in zip(counted(), before, strict=True)],
        "served": [*feature.served, feature.served_by_peers],
        "shards": feature.shards._asdict(),
        "hot": None if feature.hot_rows is None else feature.hot_rows.tolist(),
    }


def counted():
    """Return bytes of rows read from the device's own memory, from peers', and from the host's."""
    if not control.IS_FAKE:
        return [0, 0, 0]
    return [control.count(f"row_bytes_of_{memory}") for memory in ("device", "peers", "host")]


def job_lifetimes(arguments):
    """Make tables again and again, of which the first trainer drops its last."""
    context, device = join(arguments)
    used = []
    for turn in range(4):
        feature = shared(device, context, f"x-{turn}")
        rows = wanted(1)[0][0]
        assert np.array_equal(gather(device, feature, rows), array()[rows])
        if context.rank == 0:
            time.sleep(0.1)
        del feature
        if arguments["device"] == "fake":
            used.append(control.used_memory(context.rank))
    shutdown_worker_group()
    return {"used": used, "violations": violations()}


def job_after_leaving(arguments):
    """Gather from a table that outlives its job."""
    context, device = join(arguments)
    feature = shared(device, context)
    shutdown_worker_group()
    try:
        gather(device, feature, np.arange(3))
    except RendezvousError as error:
        return {"error": str(error), "violations": violations()}


def job_dies(arguments):
    """Trainer 1 is killed, before it comes to a table or when all have it."""
    context, device = join(arguments)
    began = time.monotonic()
    try:
        feature = shared(device, context)
        if context.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            gather(device, feature, np.arange(NUM))
            time.sleep(0.01)
    except RendezvousError as error:
        seconds = time.monotonic() - began
        shutdown_worker_group(wait=False)
        return {"error": str(error), "seconds": seconds}


def job_fails(arguments):
    """Trainer 1 cannot make its part. Return each trainer's error, and whether a table follows."""
    context, device = join(arguments)
    how, table = arguments["how"], None
    if context.rank == 1:
        if how == "table":
            table = array()[:-1]
        elif how == "memory":
            control.fail("cudaMalloc")
        elif how == "handle":
            control.fail("cudaIpcOpenMemHandle", 1, "cudaErrorInvalidValue")
    error = None
    try:
        shared(device, context, table=table)
    except (RuntimeError, ValueError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    gc.collect()
    feature = None
    if how != "peers":
        feature = shared(device, context, "y")
        assert np.array_equal(gather(device, feature, np.arange(NUM)), array())
    del feature
    shutdown_worker_group()
    return {"error": error, "violations": violations()}


def graph(is_hetero):
    """Return a graph of which each node has a few neighbours, hubs many."""
    rng = np.random.default_rng(3)
    edges = torch.from_numpy((NUM * rng.random((2, 2000)) ** 2).astype(np.int64))
    x, y = torch.from_numpy(array()), torch.arange(NUM)
    if not is_hetero:
        return Data(x=x, y=y, edge_index=edges, edge_attr=torch.arange(2000.0))
    data = HeteroData()
    data["a"].x, data["b"].x = x, x.flip(0).double()
    data["a", "to", "b"].edge_index = edges
    data["b", "of", "a"].edge_index = edges.flip(0)
    return data


def job_load(arguments):
    """Two epochs of two loaders, with rows shared and without, against loaders of the CPU."""
    context = init_worker_group()
    data = graph(arguments["is_hetero"])
    seeds = torch.arange(context.rank, NUM, context.world_size)
    common = {"batch_size": 16, "shuffle": True, "seed": 3, "stream": context.rank}
    nodes = ("a", seeds) if arguments["is_hetero"] else seeds
    for options in ({}, {"budget": 40 * ROW + 4 * NUM}, {"split_ratio": 0.3}):
        there = DeviceOptions(feature_mode="CUDA", group="node", **options)
        loader = NeighborLoader(
            data,
            [4, 3],
            nodes,
            device=f"emulated:{context.rank}",
            device_options=there,
            num_workers=1,
            **common,
        )
        plain = NeighborLoader(data, [4, 3], nodes, **common)
        for _ in range(2):
            for ours, theirs in zip(loader, plain, strict=True):
                for one, other in zip(ours.stores, theirs.stores, strict=True):
                    for name, value in other.items():
                        if isinstance(value, torch.Tensor):
                            assert torch.equal(one[name], value), name
        shards = {name: shard._asdict() for name, shard in loader.shards.items()}
        del loader
    shutdown_worker_group()
    return shards


def job_glt(arguments):
    """Rows of GLT's feature, whose groups are of two devices each. Return how many lie where."""
    context = init_worker_group()
    dist.init_process_group(
        "gloo", store=context.store, rank=context.rank, world_size=context.world_size
    )
    groups = [DeviceGroup(0, [0, 1]), DeviceGroup(1, ["cuda:2", "cuda:3"])]
    order = np.random.default_rng(2).permutation(NUM)
    feature = GltFeature(array(), order, 0.5, groups, f"emulated:{context.rank}")
    rows = wanted(1)[0][0]
    assert np.array_equal(feature[rows].numpy(), array()[order[rows]])
    copied = pickle.loads(pickle.dumps(feature))
    assert copied._on_device is None
    missing = False
    try:
        feature[torch.tensor([0, NUM])]
    except IndexError:
        missing = True
    shards = feature._on_device._table.shards._asdict()
    del feature
    dist.destroy_process_group()
    shutdown_worker_group()
    return {"shards": shards, "missing": missing}


if __name__ == "__main__":
    jobs.run(globals())
