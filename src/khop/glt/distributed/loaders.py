"""GLT's distributed loaders: khop's, with GLT's arguments and batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from khop.data.files import load_torch
from khop.distributed.dataset import DistDataset
from khop.distributed.job.context import get_context
from khop.distributed.loaders import link_neighbor_loader, neighbor_loader
from khop.distributed.options import RemoteDistSamplingWorkerOptions
from khop.distributed.remote.client.client_context import ClientContext
from khop.glt.arguments import in_order
from khop.glt.distributed import job
from khop.glt.distributed.dataset import SPLITS
from khop.glt.distributed.dist_server import DistServer
from khop.glt.loader import to_data, to_hetero_data
from khop.glt.sampler import HeteroSamplerOutput, SamplerOutput
from khop.glt.sampler.base import Negatives, to_pyg_negatives
from khop.glt.sampler.neighbor_sampler import sorted_subgraph
from khop.glt.typing import Device, InputEdges, InputNodes, NumNeighbors, Split
from khop.typing import NODE

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from khop.distributed.loaders.loader_options import LoaderOptions
    from khop.sampler.link_spec import ExcludeSeedEdges

    class _SharedOptions(LoaderOptions, total=False):
        with_weight: bool
        to_device: Device
        random_seed: int | None

    class _Options(_SharedOptions, total=False):
        input_time: Tensor | None

    class _LinkOptions(_SharedOptions, total=False):
        edge_label_index: InputEdges | None
        edge_label: Tensor | None
        edge_label_time: Tensor | None
        neg_sampling: Negatives
        neg_sampling_ratio: float | None
        strict_negatives: bool
        exclude_seed_edges: ExcludeSeedEdges


_Seeds = InputNodes | os.PathLike[str] | None

_SPLITS = dict(zip((Split.train, Split.valid, Split.test), SPLITS, strict=True))
_LINKS = ("edge_label_index", "edge_label", "src_index", "dst_pos_index", "dst_neg_index")


def _prepared(options: Any) -> Any:
    """Join the trainers' group if needed. Return worker options with the servers chosen."""
    if not isinstance(options, RemoteDistSamplingWorkerOptions):
        job.join(getattr(options, "master_addr", None), getattr(options, "master_port", None))
        return options
    if options.server_rank is None and get_context() is not None:
        servers = job.assigned_servers()
        return replace(options, server_rank=servers if len(servers) > 1 else servers[0])
    return options


def _seeds(seeds: Any, options: Any, node_type: str = NODE) -> Any:
    """Convert seeds of a GLT loader to khop's: files are read, splits become boolean attributes.

    `options` are the worker options. A list of seeds has an entry per server of the loader, or per
    server of the job. In the second case, other servers' entries are ignored.
    """
    if isinstance(seeds, tuple) and len(seeds) == 2 and isinstance(seeds[0], str):
        return seeds[0], _seeds(seeds[1], options, seeds[0])
    if isinstance(seeds, Split):
        return _split(_SPLITS[seeds], options, node_type)
    if isinstance(seeds, (str, os.PathLike)) and Path(seeds).exists():
        return load_torch(seeds, "pass the tensor")
    if isinstance(seeds, list) and seeds and not isinstance(seeds[0], int):
        parts = _seeds_of_servers(seeds, options, node_type)
        return parts if len(parts) > 1 else parts[0]
    return seeds


def _seeds_of_servers(parts: list[Any], options: Any, node_type: str) -> list[Any]:
    servers = getattr(options, "server_rank", None)
    if servers is None:
        return [_seeds(part, options, node_type) for part in parts]
    ranks = [servers] if isinstance(servers, int) else list(servers)
    chosen = parts if len(parts) == len(ranks) else [parts[rank] for rank in ranks]
    return [
        _seeds(part, replace(options, server_rank=rank), node_type)
        for part, rank in zip(chosen, ranks, strict=True)
    ]


def _split(name: str, options: Any, node_type: str) -> Any:
    """Return a split's attribute name, if khop can look it up, else its ids, a list per server."""
    context = get_context()
    if not isinstance(context, ClientContext):
        return name
    described = context.graph.meta.node_type(node_type)
    if name in described.splits or name not in described.attrs:
        return name
    servers = getattr(options, "server_rank", None)
    ranks = [servers] if isinstance(servers, int) else servers or range(context.num_servers())
    seeds = [DistServer(rank).get_node_mask(node_type, name) for rank in ranks]
    return seeds if len(seeds) > 1 else seeds[0]


_ORDER = {
    "batch_size": 1,
    "shuffle": False,
    "drop_last": False,
    "with_edge": False,
    "with_weight": False,
    "edge_dir": None,
    "collect_features": False,
    "to_device": None,
    "random_seed": None,
    "worker_options": None,
}
"""GLT's options after the seeds, in GLT's order, with GLT's defaults."""

_NAMES = {"to_device": "device", "random_seed": "seed"}


def _options(
    convert: Callable[[Any], Any],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    links: Sequence[str] = (),
) -> dict[str, Any]:
    """Convert the arguments of a GLT loader to keyword arguments of khop's loader.

    Args:
        convert: function from khop's batch to GLT's batch.
        args: positional arguments, in GLT's order.
        kwargs: keyword arguments.
        links: names of the arguments that follow `batch_size`, before the rest of `_ORDER`.
    """
    order = ["batch_size", *links, *list(_ORDER)[1:]]
    options = {"transform": convert, **_ORDER, **in_order("the loader", order, args, kwargs)}
    options["worker_options"] = _prepared(options["worker_options"])
    if getattr(options["worker_options"], "use_all2all", False):
        options["exchange"] = "all_to_all"
    if options.pop("with_weight") and options.get("weight_attr") is None:
        options["weight_attr"] = True
    return {_NAMES.get(name, name): value for name, value in options.items()}


class DistNeighborLoader(neighbor_loader.DistNeighborLoader):
    """`khop.distributed.DistNeighborLoader` with GLT's batches.

    Batches have `node`, `edge` (with `with_edge`), `batch` (ids of the seeds), and
    `num_sampled_nodes` and `num_sampled_edges` as tensors.

    Args:
        data, num_neighbors: as for `khop.distributed.DistNeighborLoader`.
        input_nodes: seeds, as there. Or the path of a local `.pt` file, or a `Split` (attribute
            'train_mask', 'val_mask' or 'test_mask'), or a list with one of these per server.
        *args: batch_size, shuffle, drop_last, with_edge, with_weight, edge_dir, collect_features,
            to_device, random_seed and worker_options, with GLT's defaults: no edge ids and no
            features.
        **kwargs: the same by name, and khop's further arguments.
    """

    def __init__(
        self,
        data: DistDataset | None,
        num_neighbors: NumNeighbors,
        input_nodes: _Seeds = None,
        *args: object,
        **kwargs: Unpack[_Options],
    ) -> None:
        options = _options(self._convert, args, kwargs)
        seeds = _seeds(input_nodes, options["worker_options"])
        super().__init__(data, num_neighbors, seeds, **options)

    def _convert(self, batch: Any) -> Any:
        return _to_glt(batch, self.data.meta.edge_dir, self._seed_type)


class DistSubGraphLoader(neighbor_loader.DistSubGraphLoader):
    """`khop.distributed.DistSubGraphLoader` with GLT's batches: induced subgraphs of seeds.

    Nodes are ascending, and `mapping` has the positions of the seeds. Edges are sorted by partition
    and then by node, as in GLT. First is the partition of this process, or of a client's first
    server. Clients request the partitions of a batch's nodes.

    `data`, `input_nodes` (seeds), `num_neighbors` (fan-outs) and options are as for
    `DistNeighborLoader`, but seeds come before fan-outs.
    """

    def __init__(
        self,
        data: DistDataset | None,
        input_nodes: _Seeds = None,
        num_neighbors: NumNeighbors | None = None,
        *args: object,
        **kwargs: Unpack[_Options],
    ) -> None:
        options = _options(self._convert, args, kwargs)
        seeds = _seeds(input_nodes, options["worker_options"])
        super().__init__(data, seeds, num_neighbors, **options)
        self._own_part = _own_part(data, options["worker_options"])

    def _convert(self, batch: Any) -> Any:
        return _sorted(batch, self._turns(batch.n_id)) if isinstance(batch, Data) else batch

    def _turns(self, ids: Tensor) -> Tensor:
        """Return, for each node, how many partitions come before its own in the order of edges."""
        described = self.data.meta.node_type(NODE)
        owners = described.book.owner(self.data.to_new_ids(ids.cpu(), "nodes"))
        return torch.from_numpy((owners - self._own_part) % described.book.num_parts).to(ids.device)


def _own_part(data: DistDataset | None, options: Any) -> int:
    """Return the partition of this process, or for a client of its first server."""
    if data is not None and not isinstance(get_context(), ClientContext):
        return int(data.partition_idx)
    rank = options.server_rank
    part: int = DistServer(rank if isinstance(rank, int) else rank[0]).get_dataset_meta()[1]
    return part


class DistLinkNeighborLoader(link_neighbor_loader.DistLinkNeighborLoader):
    """`khop.distributed.DistLinkNeighborLoader` with GLT's batches.

    Args:
        data, num_neighbors: as for khop's loader.
        *args: batch_size, edge_label_index, edge_label and neg_sampling (also GLT's
            `NegativeSampling`), then shuffle and so on, as for `DistNeighborLoader`.
        **kwargs: the same by name, and khop's further arguments.
    """

    def __init__(
        self,
        data: DistDataset | None,
        num_neighbors: NumNeighbors,
        *args: object,
        **kwargs: Unpack[_LinkOptions],
    ) -> None:
        links = ("edge_label_index", "edge_label", "neg_sampling")
        options = _options(self._convert, args, kwargs, links)
        options["neg_sampling"] = to_pyg_negatives(options.get("neg_sampling"))
        super().__init__(data, num_neighbors, **options)

    def _convert(self, batch: Any) -> Any:
        return _to_glt(batch, self.data.meta.edge_dir, self._link_type, of_links=True)


def _to_glt(batch: Any, edge_dir: Any, input_type: Any, of_links: bool = False) -> Any:
    """Convert a batch of khop's loader to GLT's attributes.

    `edge_dir` is the direction of sampling, and `input_type` the type of the seeds.
    """
    if isinstance(batch, Data):
        return _homogeneous(batch, of_links)
    nodes, label_type = batch.node_types, None if of_links else input_type
    kept = {t: batch[t].n_id for t in nodes if len(batch[t].n_id) or t == input_type}
    # Links have a store without edge_index.
    edge_types = [t for t in batch.edge_types if "edge_index" in batch[t]]
    drawn = [t for t in edge_types if batch[t].edge_index.size(1)]
    seeds: dict[Any, Tensor] = {}
    if label_type is not None:
        ids = batch[label_type].n_id
        seeds[label_type] = ids[: batch[label_type].num_sampled_nodes[0]]
    links = {}
    for store in [batch[t] for t in (*nodes, *batch.edge_types)]:
        links.update({name: store[name] for name in _LINKS if name in store})
    edge_ids = {t: batch[t].e_id for t in drawn if "e_id" in batch[t]}
    out = HeteroSamplerOutput(
        kept,
        {t: batch[t].edge_index[0] for t in drawn},
        {t: batch[t].edge_index[1] for t in drawn},
        edge_ids or None,
        seeds,
        {t: batch[t].num_sampled_nodes for t in kept},
        {t: batch[t].num_sampled_edges for t in drawn},
        edge_types,
        input_type,
        metadata=links or None,
    )
    features = {t: batch[t].x for t in kept if "x" in batch[t]}
    attrs = {t: batch[t].edge_attr for t in drawn if "edge_attr" in batch[t]}
    labels = {t: batch[t].y for t in seeds if "y" in batch[t]}
    return to_hetero_data(out, labels, features, attrs, edge_dir)


def _homogeneous(batch: Data, of_links: bool) -> Data:
    links = {name: batch[name] for name in _LINKS if name in batch}
    seeds = None if of_links else batch.n_id[: batch.num_sampled_nodes[0]]
    row, col = batch.edge_index
    counts = torch.tensor(batch.num_sampled_nodes), torch.tensor(batch.num_sampled_edges)
    out = SamplerOutput(
        batch.n_id, row, col, batch.get("e_id"), seeds, *counts, metadata=links or None
    )
    labels = None if of_links else batch.get("y")
    return to_data(out, labels, batch.get("x"), batch.get("edge_attr"))


def _sorted(batch: Data, turns: Tensor) -> Data:
    """Sort a subgraph's nodes by id. Sort edges by the nodes that drew them: by turn, then id."""
    ids, (row, col) = batch.n_id, batch.edge_index
    seeds, positions = ids[batch.mapping], torch.arange(row.numel(), device=row.device)
    out = sorted_subgraph(ids, (row, col), positions, seeds)
    by_node, by_edge = torch.argsort(ids), out.edge
    assert by_edge is not None
    order = torch.argsort(turns[by_node][out.col], stable=True)
    out.row, out.col, by_edge = out.row[order], out.col[order], by_edge[order]
    edge = batch.get("e_id")
    out.edge = None if edge is None else edge[by_edge]
    out.batch, out.metadata = seeds, {"mapping": out.metadata}
    attrs = {name: batch.get(name) for name in ("y", "x", "edge_attr")}
    y, x = (None if attrs[n] is None else attrs[n][by_node] for n in ("y", "x"))
    edge_attr = None if attrs["edge_attr"] is None else attrs["edge_attr"][by_edge]
    return to_data(out, y, x, edge_attr)
