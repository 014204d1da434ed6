"""`layerwise_inference`: a model's output for every node, from complete neighbourhoods.

```
layer 0   rows of the partition folder ──> own nodes ──> layer-0/<type>/part-<p>.npy
layer 1   rows of all layer-0 files ─────> own nodes ──> layer-1/<type>/part-<p>.npy
```

Trainers compute the nodes of their home partitions, batch by batch, with all in-neighbours. Each
layer needs one hop, so nothing is computed twice. All trainers finish a layer before the next
begins. A thread reads the next batches while a layer runs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from khop.codec import from_json, to_json
from khop.data import RowStore
from khop.distributed.dataset import DistDataset, check_dataset
from khop.distributed.inference.files import RowSpec, Share, ShareRows, remove_outputs
from khop.distributed.inference.inputs import EdgeAttrs, LayerInput, NodeInputs
from khop.distributed.inference.layer_runner import LayerRunner
from khop.distributed.inference.layers import as_layers, device_of, takes_pairs
from khop.distributed.inference.peers import InferencePeers
from khop.distributed.inference.result import LayerwiseOutputs, NodeOutputs
from khop.distributed.job.worker_group import require_context
from khop.distributed.membership.barrier import Barrier
from khop.distributed.tensors.row_files import output_file
from khop.loader.arguments import check_positive
from khop.sampler.rows.row_fetcher import FetchedRows, PartRows
from khop.storage.folder import FolderMeta
from khop.typing import NodeType


def layerwise_inference(
    data: DistDataset,
    model: nn.Module | Sequence[Callable[..., object]],
    output_dir: str | os.PathLike[str],
    *,
    x: str | Callable[[Tensor], Tensor] | Mapping[NodeType, str | Callable[[Tensor], Tensor]] = "x",
    edge_attrs: Sequence[str] = (),
    batch_size: int = 4096,
    max_edges: int = 1 << 20,
    device: torch.device | str | int | None = None,
    dtype: torch.dtype | str | None = None,
    bipartite: bool | None = None,
    overwrite: bool = False,
    timeout: float = 180.0,
) -> LayerwiseOutputs:
    """Compute a model's output for all nodes, as one forward pass over the whole graph would.

    All trainers of the group call it together. Each computes the nodes of its home partition, and
    of partitions that it serves and that are no trainer's home. Trainers at home in one partition
    divide it if they share `output_dir`. Layers run one after the other, so
    every node is computed once per layer. Memory is bounded by the batches: a layer's output goes
    to files, from which the next layer reads the rows that it needs. Trainers that share
    `output_dir` read each other's files there. Other trainers request rows over the network.

    Args:
        data: the trainer's partition. A heterogeneous folder must have `edge_dir` 'in'.
        model: PyG `BasicGNN` (`GraphSAGE`, `GAT`, `GIN`, `PNA`, `EdgeCNN`), or a list of layers in
            evaluation mode. A layer is called as `layer(x, edge_index)`, for a heterogeneous graph
            `layer(x_dict, edge_index_dict)`, with the nodes of a batch and their in-neighbours. It
            returns rows ({node type: rows}). The batch's own nodes come first, and further rows are
            ignored. A layer's output for a node may depend only on the node and its in-neighbours.
        output_dir: folder for outputs, empty or absent. Only the last layer's outputs are kept.
        x: input of the first layer: name of a node attribute, or a callable from [n] int64 original
            ids to rows (an `Embedding`). {node type: input} if types differ. A name applies to all
            types that have it.
        edge_attrs: names of edge attributes that layers get as further arguments. For a
            heterogeneous graph, each argument is {edge type: rows} of the types that have it.
        batch_size: maximum number of nodes computed at a time.
        max_edges: maximum number of edges of a batch, to bound memory: batches get fewer nodes
            instead. A single node with more edges is a batch of its own.
        device: device of the layers. If None, the device of the model's parameters, else the CPU.
        dtype: floating-point dtype of stored outputs: 'float16', 'bfloat16', 'float32', 'float64'.
            The next layer gets them back in the dtype that they were computed in. If None, they are
            stored in that dtype.
        bipartite: pass x as a pair: rows of all nodes of the batch, and rows of its own nodes (for
            heterogeneous graphs two dictionaries). Layers then compute no unneeded rows. Many of
            PyG's convolutions take such pairs. If None, True for PyG's models of `SAGEConv`,
            `GATConv`, `GATv2Conv`, `GINConv` and `EdgeConv`.
        overwrite: replace outputs in `output_dir`.
        timeout: seconds that a request to another trainer may take.

    Returns:
        The last layer's outputs: `out[ids]` (`out[node_type][ids]`), `.local`, `.gather_all()`.

    Raises:
        ValueError, TypeError, KeyError: bad arguments, or layers that return no rows.
        FileExistsError: `output_dir` is not empty.
        RendezvousError: another trainer has failed or ended, or makes a different call.
        PartitionUnavailableError: rows of another trainer are unreachable.

    PyG's `BasicGNN.inference` and DGL's layer-wise inference work the same way.

    Example:
        >>> dataset = DistDataset().load(folder, partition_idx=0)
        >>> model = torch_geometric.nn.GraphSAGE(4, 8, num_layers=2, out_channels=3).eval()
        >>> out = layerwise_inference(dataset, model, path / "out")
        >>> out["node"].gather_all().shape
        torch.Size([6, 3])
    """
    context = require_context()
    name = context.next_name("inference")
    # On failure: publish it first, then remove files that other trainers may be reading.
    with contextlib.ExitStack() as on_failure, Barrier(context.members, name) as barrier:
        check_dataset(data)
        check_arguments(data.meta, batch_size, max_edges)
        layers = as_layers(model, bool(edge_attrs))
        inputs, attrs = NodeInputs(data, x), EdgeAttrs(data, edge_attrs)
        runner = LayerRunner(
            data.meta,
            attrs,
            device_of(model, device),
            stored_dtype(dtype),
            takes_pairs(model) if bipartite is None else bipartite,
            batch_size,
            max_edges,
        )
        peers = InferencePeers(context, barrier, name, data, Path(output_dir))
        on_failure.callback(peers.close)
        peers.meet(attrs.by_type, len(layers), overwrite, timeout)
        on_failure.callback(_discard, peers, len(layers))
        rows = inputs.of_first_layer(partial(_rows_of, peers, data.partition_idx))
        for i, layer in enumerate(layers):
            with torch.no_grad():
                own = runner.run(layer, i, rows, peers, barrier.check)
            gathered = barrier.all_gather(f"layer-{i}", to_json(own))
            specs = agree_on_specs(gathered, peers.shares, i)
            if i > 0:  # no trainer reads them any more
                remove_outputs(peers.root, i - 1, [share for share, _ in peers.own])
            rows = _outputs_of(i, specs, data, peers)
        last = len(layers) - 1
        outputs = {
            node_type.name: NodeOutputs(
                data,
                node_type.name,
                cast(FetchedRows, of_type.reader),
                [
                    (share, output_file(peers.root, last, node_type.name, share.file_name))
                    for share, _ in peers.own
                ],
            )
            for node_type, of_type in zip(data.meta.node_types, rows, strict=True)
            if of_type is not None
        }
        result = LayerwiseOutputs(peers.root, outputs, peers.end, peers.close_clients)
        on_failure.pop_all()
    return result


def _discard(peers: InferencePeers, num_layers: int) -> None:
    """Remove this trainer's files after a failed inference, so that the folder can be reused."""
    for layer in range(num_layers):
        remove_outputs(peers.root, layer, [share for share, _ in peers.own])


def check_arguments(meta: FolderMeta, batch_size: object, max_edges: object) -> None:
    """Raise an error for bounds of batches that are no numbers, or a graph of out-neighbours."""
    check_positive(batch_size, "batch_size")
    check_positive(max_edges, "max_edges")
    if meta.heterogeneous and meta.edge_dir != "in":
        raise ValueError(
            "the folder was partitioned for out-neighbours, but messages of a heterogeneous graph "
            "flow along its edges: partition again with edge_dir='in' (--edge-dir in)"
        )


def stored_dtype(dtype: torch.dtype | str | None) -> str | None:
    """Check option `dtype` and return its name, such as 'float16'. None stays None."""
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.")
    if name not in ("float16", "bfloat16", "float32", "float64"):
        raise ValueError(f"dtype must be float16, bfloat16, float32 or float64 (got '{dtype}')")
    return name


def agree_on_specs(
    gathered: Sequence[Sequence[object]], shares: Sequence[Share], layer: int
) -> list[RowSpec | None]:
    """Return shape and dtypes of a layer's output rows for each node type.

    All trainers' values (`gathered`) must agree. Trainers without nodes of a type have none.
    """
    agreed: list[RowSpec | None] = []
    for node_type in range(len(gathered[0])):
        seen = {
            r: from_json(RowSpec, specs[node_type], f"rows of trainer {r}")
            for r, specs in enumerate(gathered)
            if specs[node_type]
        }
        if len(set(seen.values())) > 1:
            raise ValueError(f"layer {layer} gave trainers rows of different kinds: {seen}")
        lacking = [
            share.rank for share in shares if share.num_rows(node_type) and share.rank not in seen
        ]
        if seen and lacking:
            raise ValueError(
                f"layer {layer} gave trainers {sorted(seen)} rows of a node type (number "
                f"{node_type}) of which it gave trainers {lacking} none"
            )
        agreed.append(next(iter(seen.values()), None))
    return agreed


def _rows_of(peers: InferencePeers, home: int, index: int, name: str) -> RowStore:
    """Return the rows of an attribute of a node type, from files or from other trainers."""
    parts, client = peers.parts, peers.folder_client
    return FetchedRows(PartRows(parts[home], "node", index, [name], client, parts), client)


def _outputs_of(
    layer: int, specs: Sequence[RowSpec | None], data: DistDataset, peers: InferencePeers
) -> list[LayerInput | None]:
    """Return readers of a layer's outputs for each node type, as the next layer's input.

    `specs` has shape and dtypes of the rows. None for types without output.
    """
    client = peers.output_client
    inputs: list[LayerInput | None] = []
    for i, (node_type, spec) in enumerate(zip(data.meta.node_types, specs, strict=True)):
        if spec is None:
            inputs.append(None)
            continue
        type_of_rows = (i, node_type.name)
        rows = ShareRows(peers.root, peers.shares, layer, type_of_rows, spec, peers.visible, client)
        dtype: torch.dtype = getattr(torch, spec.computed)
        inputs.append(LayerInput(FetchedRows(rows, client), partial(Tensor.to, dtype=dtype)))
    return inputs
