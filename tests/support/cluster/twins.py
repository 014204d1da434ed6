"""Graphs with all features, distributed loaders of them, and comparison of their batches.

A distributed loader has a twin: the in-memory loader of the whole graph with the same arguments.
`same_batch` compares all attributes of two batches. `open_dataset` serves the other parts in
threads. So a graph costs milliseconds, not one process per part. Requests still use sockets.
"""

import contextlib
import tempfile
import threading
import warnings
from pathlib import Path

import numpy as np
import torch
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

from khop.channel.control import ControlLine, socket_pair
from khop.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistDataset,
    MpDistSamplingWorkerOptions,
)
from khop.distributed.job.worker_group import require_context
from khop.distributed.partitions.service import PartitionService
from khop.distributed.processes.socket_files import remove_socket
from khop.distributed.rpc.partition_handler import RequestHandler
from khop.distributed.rpc.partition_server import PartitionServer
from khop.partition import RandomPartitioner
from khop.sampler import NeighborSampler
from khop.storage.part import Part

# Graphs ---------------------------------------------------------------------------------------

SIZES = {"paper": 120, "author": 80, "venue": 6, "ghost": 3}
WRITES = ("author", "writes", "paper")
WRITTEN = ("paper", "rev_writes", "author")
CITES = ("paper", "cites", "paper")
PRINTS = ("venue", "prints", "paper")
NEVER = ("paper", "never", "venue")


def _ends(generator, num_src, num_dst, count):
    """Return random edges, some of them repeated. The last nodes have none."""
    ends = [torch.randint(max(n - 2, 1), (count,), generator=generator) for n in (num_src, num_dst)]
    edges = torch.stack(ends)
    edges[:, -(count // 10) :] = edges[:, : count // 10]
    return edges


def _weights(generator, count):
    """Return random weights, a third of which are zero."""
    return torch.rand(count, generator=generator) * (torch.rand(count, generator=generator) > 0.33)


def homogeneous():
    """Return a graph of 150 nodes and 1,200 edges, with parallel ones, loops, times, weights."""
    generator = torch.Generator().manual_seed(1)
    num_nodes, num_edges = 150, 1200
    data = Data(
        x=torch.arange(num_nodes).float().view(-1, 1).repeat(1, 3),
        y=torch.arange(num_nodes),
        edge_index=_ends(generator, num_nodes, num_nodes, num_edges),
        edge_attr=torch.arange(num_edges).view(-1, 1),
        edge_weight=_weights(generator, num_edges),
        time=torch.randint(0, 20, (num_nodes,), generator=generator),
        edge_time=torch.rand(num_edges, generator=generator) * 20,
    )
    data.edge_time = data.edge_time.round()  # ties of floats
    data.edge_weight[data.edge_index[1] < 10] = 0.0  # rows that weigh nothing
    return data


def heterogeneous():
    """Return a heterogeneous graph, some of whose types lack features, times, weights or edges.

    It has edge types from a node type to itself, and reverses.
    """
    generator = torch.Generator().manual_seed(2)
    data = HeteroData()
    data["paper"].x = torch.arange(120).float().view(-1, 1)
    data["paper"].y = torch.arange(120)
    data["paper"].time = torch.rand(120, generator=generator).mul(9).round()
    data["author"].x = torch.arange(80).to(torch.bfloat16)
    data["author"].time = torch.randint(0, 9, (80,), generator=generator)
    data["venue"].num_nodes = 6
    data["ghost"].num_nodes = 3
    for edge_type, count in ((WRITES, 400), (WRITTEN, 400), (CITES, 500), (PRINTS, 90), (NEVER, 0)):
        store = data[edge_type]
        store.edge_index = _ends(generator, SIZES[edge_type[0]], SIZES[edge_type[2]], count)
        if edge_type != PRINTS:
            store.edge_attr = torch.arange(count).to(torch.int16).view(-1, 1)
            store.edge_time = torch.randint(-4, 4, (count,), generator=generator)
        if edge_type != CITES:
            store.edge_weight = _weights(generator, count)
    return data


_SOME_SIZE = st.integers(1, 14)


def _random_times(rng, count):
    dtype = rng.choice(["int64", "int32", "float32", "float64"])
    return torch.from_numpy(rng.integers(-3, 5, count).astype(dtype))


def _random_weights(rng, count):
    dtype = rng.choice(["float32", "float64"])
    weights = (rng.random(count) * 10.0 ** rng.integers(-6, 6) * (rng.random(count) > 0.4)).astype(
        dtype
    )
    return torch.from_numpy(weights)


@st.composite
def homogeneous_graphs(draw):
    """Draw a graph of up to 30 nodes and 100 edges, with 'time', 'edge_time', 'edge_weight'."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    num_nodes = draw(st.integers(1, 30))
    linked = draw(st.integers(1, num_nodes))
    num_edges = draw(st.integers(0, 100))
    data = Data(
        edge_index=torch.from_numpy(rng.integers(0, linked, (2, num_edges))),
        edge_attr=torch.arange(num_edges),
        edge_weight=_random_weights(rng, num_edges),
        time=_random_times(rng, num_nodes),
        edge_time=_random_times(rng, num_edges),
        num_nodes=num_nodes,
    )
    if draw(st.booleans()):
        data.x = torch.arange(num_nodes).view(-1, 1)
    return data


_RELATIONS = (
    ("a", "to", "b"),
    ("b", "rev_to", "a"),
    ("a", "self", "a"),
    ("a", "other", "b"),
    ("b", "back", "a"),
    ("c", "in", "a"),
    ("b", "out", "c"),
    ("c", "rev_out", "b"),
)


@st.composite
def heterogeneous_graphs(draw):
    """Draw a graph of three node types and one to five edge types.

    Each may lack times, weights, features or edges. Of type 'c' there may be no nodes at all.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sizes = {"a": draw(_SOME_SIZE), "b": draw(_SOME_SIZE), "c": draw(st.integers(0, 9))}
    types = draw(st.lists(st.sampled_from(_RELATIONS), min_size=1, max_size=5, unique=True))
    data = HeteroData()
    for i, (node_type, count) in enumerate(sizes.items()):
        data[node_type].num_nodes = count
        if rng.random() < 0.7:
            data[node_type].x = torch.arange(count)
        if i == 0 or rng.random() < 0.6:
            data[node_type].time = _random_times(rng, count)
    for i, edge_type in enumerate(types):
        some = rng.random() < 0.85 and min(sizes[edge_type[0]], sizes[edge_type[2]]) > 0
        count = int(rng.integers(0, 60)) if some else 0
        src, dst = (rng.integers(0, max(sizes[edge_type[j]], 1), count) for j in (0, 2))
        store = data[edge_type]
        store.edge_index = torch.from_numpy(np.stack([src, dst]))
        if i == 0 or rng.random() < 0.6:
            store.edge_weight = _random_weights(rng, count)
        if i == 0 or rng.random() < 0.6:
            store.edge_time = _random_times(rng, count)
        if rng.random() < 0.5:
            store.edge_attr = torch.arange(count)
    return data


# Partitions -----------------------------------------------------------------------------------

FAST = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where the folders of many small graphs lie: they are written to disk, file by file, elsewhere."""

ATTRS = {
    "plain": {},
    "neighbors": {"neighbor_ids": True},
    "numbered": {"edge_ids": False},
    "numbered_time": {"edge_ids": False, "time_attr": "time", "weight_attr": "edge_weight"},
    "weight": {"weight_attr": "edge_weight"},
    "time": {"time_attr": "time", "weight_attr": "edge_weight"},
    "edge_time": {"time_attr": "edge_time", "weight_attr": "edge_weight"},
    "labor": {"neighbor_ids": True, "weight_attr": "edge_weight"},
    "labor_time": {"neighbor_ids": True, "weight_attr": "edge_weight", "time_attr": "time"},
}
"""Attributes that draws depend on, by the name of the folder that is partitioned with them."""


def partitioned(data, root, num_parts, kind="plain", strategy="by_dst", order="original"):
    """Partition a graph in `root`, and return the folder."""
    options = {**ATTRS[kind], "order": order}
    RandomPartitioner.from_data(
        data, root, num_parts, edge_dir="in" if strategy == "by_dst" else "out", **options
    ).partition()
    return root


class _InThreads(PartitionService):
    """Partition service whose servers are threads of this process."""

    def _start_server(self, part, near, far):
        assert near and not far
        ours, theirs = socket_pair()
        path = f"{tempfile.mkdtemp()}/server"
        handler = RequestHandler(Part(self._folder, part))
        server = PartitionServer(handler, path, None, None)
        thread = threading.Thread(target=server.serve, args=(ControlLine(theirs),))
        thread.start()

        def stop():
            ours.close()
            thread.join(5)
            assert not thread.is_alive()
            server.close()
            theirs.close()
            remove_socket(path)

        self.__dict__.setdefault("_stops", []).append(stop)
        return {"ipc": server.addresses["ipc"], "tcp": None, "key": None}

    def close(self):
        for stop in self.__dict__.pop("_stops", []):
            stop()


@contextlib.contextmanager
def open_dataset(root, num_parts):
    """Yield a dataset of a trainer at home in part 0, whose threads serve the other parts."""
    others = list(range(1, num_parts))
    dataset = DistDataset().load(root, 0, also_serve=others)
    dataset._service = _InThreads(require_context(), dataset.opened, 0, others)
    try:
        yield dataset
    finally:
        dataset._service.close()


def workers(num_workers):
    """Return worker options with this number of samplers. None: the trainer's process samples."""
    if num_workers is None:
        return CollocatedDistSamplingWorkerOptions()
    return MpDistSamplingWorkerOptions(num_workers=num_workers)


# Twins ----------------------------------------------------------------------------------------


def make_twin(loader, data, fanouts, seeds, strategy="by_dst", **options):
    """Return the in-memory loader that makes the batches of a distributed loader of a folder.

    Args:
        loader: `NeighborLoader` or `LinkNeighborLoader`.
        data: the graph.
        fanouts: fan-out of each hop.
        seeds: nodes or links.
        strategy: strategy of the partitioning. With 'by_src', neighbours are out-neighbours.
        **options: the loader's options.
    """
    if strategy == "by_dst":
        return loader(data, fanouts, seeds, **options)
    names = ("replace", "disjoint", "temporal_strategy", "subgraph_type", "weight_attr")
    sampler = NeighborSampler(
        data,
        fanouts,
        sample_direction="backward",
        time_attr=options.get("time_attr"),
        **{name: options.pop(name) for name in names if name in options},
    )
    return loader(data, fanouts, seeds, neighbor_sampler=sampler, **options)


def as_distributed(batch, strategy="by_dst", link_type=None):
    """Convert an in-memory batch to the form of a distributed one: edges point towards seeds.

    With `strategy` 'by_src', edges are turned round. Between two node types they then have the
    reverse edge type. Attributes of links stay with the links' type.
    """
    if strategy == "by_dst":
        return batch
    if isinstance(batch, Data):
        batch.edge_index = batch.edge_index.flip(0)
        return batch
    turned = HeteroData()
    for node_type in batch.node_types:
        turned[node_type].update(batch[node_type])
    for edge_type in batch.edge_types:
        for name, value in batch[edge_type].items():
            if name in ("input_id", "edge_label_index", "edge_label", "edge_label_time"):
                turned[edge_type][name] = value
            else:
                store = turned[turned_round(edge_type)]
                store[name] = value.flip(0) if name == "edge_index" else value
    return turned


def turned_round(edge_type):
    """Return the name of an edge type in batches of out-neighbours."""
    src, relation, dst = edge_type
    if src == dst:
        return edge_type
    bare = relation.removeprefix("rev_")
    return dst, bare if bare != relation else f"rev_{relation}", src


# Comparison -----------------------------------------------------------------------------------


def same_batch(ours, theirs):
    """Raise AssertionError unless two batches have equal attributes.

    Only `num_nodes` may differ, which the in-memory loader keeps where the whole graph has it. It
    must be right.
    """
    assert type(ours) is type(theirs)
    if isinstance(theirs, HeteroData):
        assert ours.node_types == theirs.node_types
        assert set(ours.edge_types) == set(theirs.edge_types)
        for key in (*theirs.node_types, *theirs.edge_types):
            _same_store(ours[key], theirs[key], key)
        stores = [(ours[t], theirs[t]) for t in theirs.node_types]
    else:
        _same_store(ours._store, theirs._store, "batch")
        stores = [(ours, theirs)]
    for own, other in stores:
        assert own.num_nodes == other.num_nodes == other.n_id.numel()


def _same_store(ours, theirs, where):
    ours = {k: v for k, v in ours.items() if k != "num_nodes"}
    theirs = {k: v for k, v in theirs.items() if k != "num_nodes"}
    assert set(ours) == set(theirs), where
    for name, value in theirs.items():
        assert type(ours[name]) is type(value), (where, name)
        if isinstance(value, torch.Tensor):
            assert ours[name].dtype == value.dtype, (where, name)
            assert torch.equal(ours[name], value), (where, name, ours[name], value)
        else:
            assert ours[name] == value, (where, name)


def same_epochs(loader, twin, num_epochs=1, strategy="by_dst"):
    """Check that a loader and its twin make the same batches. Return the twin's last epoch."""
    seen = []
    for _ in range(num_epochs):
        seen = []
        for ours, theirs in zip(loader, twin, strict=True):
            seen.append(as_distributed(theirs, strategy))
            same_batch(ours, seen[-1])
    assert len(loader) == len(twin) == len(seen)
    return seen


@contextlib.contextmanager
def quiet():
    """Silence the warning that an edge type has no reverse."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*has no reverse that is unique")
        yield


def twins_or_errors(make_loader, make_twin):
    """Make both loaders. Return None if both refuse their arguments with errors of one type."""
    made, errors = [], []
    for make in (make_loader, make_twin):
        try:
            with quiet():
                made.append(make())
            errors.append(None)
        except (ValueError, TypeError, IndexError) as error:
            errors.append(error)
    assert type(errors[0]) is type(errors[1]), errors
    return tuple(made) if made else None


def folder_name(*parts):
    """Return a name for a folder with these properties."""
    return "-".join(map(str, parts))


def with_parts(cases):
    """Yield each case with numbers of parts: 1 and, in turns, 3, 2 or 5."""
    cases = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [((1, (3, 2, 5)[i % 3]), *case) for i, case in enumerate(cases)]


def partitions_in(base):
    """Return a function (graph, num_parts, kind, strategy) to a folder, made once in `base`."""
    made = {}

    def folder_of(graph, num_parts, kind="plain", strategy="by_dst"):
        key = (graph, num_parts, kind, strategy)
        if key not in made:
            root = base / folder_name(*key)
            made[key] = partitioned(globals()[graph](), root, num_parts, kind, strategy)
        return made[key]

    return folder_of
