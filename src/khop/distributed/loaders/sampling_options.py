"""Checks of the loaders' sampling options against a partition folder. Runs in trainers."""

from __future__ import annotations

from typing import Any

from khop.data.times import seed_time_keys
from khop.distributed.dataset import DistDataset
from khop.distributed.graph import PartitionedGraph
from khop.distributed.job.context import get_context
from khop.distributed.options import RemoteDistSamplingWorkerOptions, WorkerOptions
from khop.distributed.remote.client.membership import ClientContext
from khop.sampler.collect import CollectSpec
from khop.sampler.methods import as_method
from khop.sampler.spec import SamplingSpec
from khop.storage.folder import FolderMeta
from khop.typing import Int64Array, NodeType


def sampling_spec(
    data: PartitionedGraph,
    num_neighbors: Any,
    *,
    replace: bool,
    with_edge: bool,
    subgraph_type: Any = "directional",
    disjoint: bool = False,
    temporal_strategy: str = "uniform",
    time_attr: str | None = None,
    weight_attr: str | None = None,
) -> SamplingSpec:
    """Return the sampling specification for options of PyG's loaders.

    Raises:
        ValueError: malformed options; times, weights or neighbours' ids that the folder was not
            partitioned with.
    """
    method = as_method(num_neighbors)
    replace, weight_attr = method.settle(replace, weight_attr)
    meta = data.meta
    if method.needs_neighbor_ids and not meta.knows_neighbors:
        raise ValueError(
            f"{type(method).__name__} keys draws by neighbours' original ids, but {data.where} was "
            "partitioned without them: partition again with neighbor_ids=True (--neighbor-ids)"
        )
    edge_types = [t.name for t in meta.edge_types]
    for option, name, known in (
        ("time_attr", time_attr, meta.time_attr and meta.time_attr.name),
        ("weight_attr", weight_attr, meta.weight_attr),
    ):
        if name is not None and name != known:
            what = f"with {option}='{known}'" if known else f"without {option}"
            raise ValueError(
                f"{option}='{name}', but {data.where} was partitioned {what}: partition "
                f"again with {option}='{name}' (--{option.replace('_', '-')} {name})"
            )
    weighted = [weight_attr is not None and t.weighted for t in meta.edge_types]
    return SamplingSpec.create(
        num_neighbors,
        edge_types,
        replace,
        with_edge,
        subgraph_type=subgraph_type,
        disjoint=disjoint,
        temporal_strategy=temporal_strategy,
        temporal=time_attr is not None,
        weighted=weighted,
        heterogeneous=meta.heterogeneous,
    )


def weight_of(data: PartitionedGraph, with_weight: bool, weight_attr: str | None) -> str | None:
    """Return the attribute to draw by: `weight_attr`, or the folder's if only `with_weight`."""
    if not with_weight or weight_attr is not None:
        return weight_attr
    if data.meta.weight_attr is None:
        raise ValueError(
            f"with_weight=True, but {data.where} was partitioned without weights: "
            "partition again with edge_weights= or weight_attr= (--weight-attr)"
        )
    return data.meta.weight_attr


def seed_times(
    data: PartitionedGraph, node_type: NodeType, new_ids: Int64Array, given: Any, what: str
) -> Int64Array:
    """Return the times of seeds, as [n] int64 keys that kernels compare.

    Args:
        data: the dataset.
        node_type: the seeds' node type.
        new_ids: [n] their new ids.
        given: [n] their times. If None, those of the nodes.
        what: name of the argument in error messages.

    Raises:
        ValueError: another number of times than seeds, or no times and nodes without times.
    """
    time_attr = data.meta.time_attr
    assert time_attr is not None
    if given is not None:
        keys = seed_time_keys(given, time_attr.floating, what)
        if len(keys) != len(new_ids):
            raise ValueError(f"{what} holds {len(keys)} times for {len(new_ids)} seeds")
        return keys
    times = data.times_of(node_type, new_ids)
    if times is None:
        raise ValueError(
            f"nodes of type '{node_type}' have no '{time_attr.name}' of their own: pass {what}"
        )
    return times


def collect_spec(meta: FolderMeta, sampling: SamplingSpec, collect_features: bool) -> CollectSpec:
    """Return the attributes that batches carry: all with `collect_features`, else only labels."""
    node_attrs = [
        list(t.attrs) if collect_features else [n for n in t.attrs if n == "y"]
        for t in meta.node_types
    ]
    recorded = [sampling.records_edge(i) for i in range(len(meta.edge_types))]
    edge_attrs = [
        list(t.attrs) if collect_features and is_recorded else []
        for t, is_recorded in zip(meta.edge_types, recorded, strict=True)
    ]
    return CollectSpec(node_attrs, edge_attrs, recorded, sampling.disjoint, sampling.counts_hops)


def check_data(data: Any, edge_dir: str | None, options: WorkerOptions | None) -> PartitionedGraph:
    """Check a loader's data and return its graph.

    Args:
        data: the trainer's dataset. If None, the graph that this client's servers serve.
        edge_dir: the requested direction. If None, the folder's.
        options: the loader's worker options.

    Raises:
        RuntimeError: no data, and this process is no client.
        TypeError: data of another type.
        ValueError: data and options contradict each other, or another direction than the folder's.
    """
    graph = _graph_of(data, options)
    if edge_dir not in (None, "in", "out"):
        raise ValueError(f"edge_dir must be 'in' or 'out' (got '{edge_dir}')")
    meta = graph.meta
    if edge_dir is not None and edge_dir != meta.edge_dir:
        strategy = "by_dst" if edge_dir == "in" else "by_src"
        raise ValueError(
            f"edge_dir='{edge_dir}', but {graph.where} was partitioned for "
            f"'{meta.edge_dir}': a loader would silently miss neighbours. Partition again with "
            f"edge_assign_strategy='{strategy}' (--edge-dir {edge_dir}), or leave edge_dir out"
        )
    return graph


def _graph_of(data: Any, options: WorkerOptions | None) -> PartitionedGraph:
    is_remote = isinstance(options, RemoteDistSamplingWorkerOptions)
    if data is None:
        if not is_remote and options is not None:
            raise ValueError(
                f"data=None is for graph servers, but worker_options are '{type(options).__name__}'"
                ": pass RemoteDistSamplingWorkerOptions, or a DistDataset"
            )
        context = get_context()
        if not isinstance(context, ClientContext):
            raise RuntimeError(
                "data=None: this process is no client of graph servers. Call init_client first, or "
                "pass a DistDataset"
            )
        return context.graph
    if not isinstance(data, DistDataset):
        raise TypeError(f"data must be a DistDataset (got '{type(data).__name__}')")
    if is_remote:
        raise ValueError(
            "RemoteDistSamplingWorkerOptions sample what graph servers serve: pass data=None, or "
            "other worker_options"
        )
    return data
