"""Checks of the loaders' data and sampling options. Runs in trainers."""

from __future__ import annotations

from dataclasses import replace

from khop.data.info import GraphInfo
from khop.distributed.dataset import DistDataset, check_dataset
from khop.distributed.graph import PartitionedGraph
from khop.distributed.job.context import get_context
from khop.distributed.loaders.loader_options import LoaderOptions
from khop.distributed.options import RemoteDistSamplingWorkerOptions, WorkerOptions
from khop.distributed.remote.client.client_context import ClientContext
from khop.sampler.methods import SamplingMethod, as_method
from khop.sampler.rows.collect import CollectSpec
from khop.sampler.spec import SamplingOptions, SamplingSpec
from khop.storage.folder import FolderMeta
from khop.typing import NumNeighbors


def check_sampling(
    data: DistDataset | None, num_neighbors: NumNeighbors | SamplingMethod, options: LoaderOptions
) -> tuple[PartitionedGraph, GraphInfo, SamplingSpec, CollectSpec]:
    """Check a loader's data, fan-outs and sampling options.

    Args:
        data: the trainer's dataset. If None, the graph that this client's servers serve.
        num_neighbors: fan-outs or a method, as users pass them.
        options: values of all options of the loader.

    Returns:
        The graph, its description from `info_for`, the specification of the draws, and the
        attributes of the batches.

    Raises:
        RuntimeError, TypeError, ValueError: see `check_data`, `info_for`, `SamplingOptions.spec`.
    """
    graph = check_data(data, options["edge_dir"], options["worker_options"])
    weight_attr = options["weight_attr"]
    if weight_attr is True and graph.meta.weight_attr is None:
        raise ValueError(
            f"weight_attr=True, but {graph.where} was partitioned without weights: "
            "partition again with edge_weights= or weight_attr= (--weight-attr)"
        )
    if isinstance(weight_attr, bool):
        weight_attr = graph.meta.weight_attr if weight_attr else None
    draws = SamplingOptions(
        options["replace"],
        options["with_edge"],
        options["subgraph_type"],
        options["disjoint"],
        options["temporal_strategy"],
        options["time_attr"],
        weight_attr,
    )
    info = info_for(graph, num_neighbors, draws)
    sampling = draws.spec(num_neighbors, info)
    collect = collect_spec(graph.meta, sampling, options["collect_features"])
    return graph, info, sampling, collect


def info_for(
    data: PartitionedGraph, num_neighbors: NumNeighbors | SamplingMethod, options: SamplingOptions
) -> GraphInfo:
    """Return types and counts of a graph, with only those times and weights that draws use.

    Args:
        data: the graph.
        num_neighbors: fan-outs or a method, as users pass them.
        options: the other options.

    Raises:
        ValueError: the folder has no times, weights or neighbours' ids, but the draws use them.
    """
    method, options, meta = as_method(num_neighbors), options.settled(num_neighbors), data.meta
    if method.spec().needs_neighbor_ids and not meta.knows_neighbors:
        raise ValueError(
            f"{type(method).__name__} keys draws by neighbours' original ids, but {data.where} was "
            "partitioned without them: partition again with neighbor_ids=True (--neighbor-ids)"
        )
    for option, name, known in (
        ("time_attr", options.time_attr, meta.time_attr and meta.time_attr.name),
        ("weight_attr", options.weight_attr, meta.weight_attr),
    ):
        if name is not None and name != known:
            actual = f"with {option}='{known}'" if known else f"without {option}"
            raise ValueError(
                f"{option}='{name}', but {data.where} was partitioned {actual}: partition "
                f"again with {option}='{name}' (--{option.replace('_', '-')} {name})"
            )
    info = data.info
    return replace(
        info,
        timed=None if options.time_attr is None else info.timed,
        weighted=[options.weight_attr is not None and has for has in info.weighted],
    )


def collect_spec(meta: FolderMeta, sampling: SamplingSpec, collect_features: bool) -> CollectSpec:
    """Return the attributes that batches have: all if `collect_features`, else only labels."""
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


def check_data(
    data: DistDataset | None, edge_dir: str | None, options: WorkerOptions | None
) -> PartitionedGraph:
    """Check a loader's data and return its graph.

    Args:
        data: the trainer's dataset. If None, the graph that this client's servers serve.
        edge_dir: the requested direction. If None, the folder's.
        options: the loader's worker options.

    Raises:
        RuntimeError: `data` is None, and this process is no client.
        TypeError: `data` has another type.
        ValueError: data and options contradict each other, or `edge_dir` is not the folder's.
    """
    graph = _graph_of(data, options)
    if edge_dir not in (None, "in", "out"):
        raise ValueError(f"edge_dir must be 'in' or 'out' (got '{edge_dir}')")
    meta = graph.meta
    if edge_dir is not None and edge_dir != meta.edge_dir:
        raise ValueError(
            f"edge_dir='{edge_dir}', but {graph.where} was partitioned for "
            f"'{meta.edge_dir}': a loader would silently miss neighbours. Partition again with "
            f"edge_dir='{edge_dir}' (--edge-dir {edge_dir}), or leave it out here"
        )
    return graph


def _graph_of(data: DistDataset | None, options: WorkerOptions | None) -> PartitionedGraph:
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
    dataset = check_dataset(data)
    if is_remote:
        raise ValueError(
            "RemoteDistSamplingWorkerOptions sample what graph servers serve: pass data=None, or "
            "other worker_options"
        )
    return dataset
