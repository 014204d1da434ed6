"""GLT's `DistRandomPartitioner`: processes that hold pieces of a graph make its parts together."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from khop.codec import from_json, to_json
from khop.glt.arguments import by_type
from khop.glt.partition.part_writer import EdgePart, Files, GraphPart, NodePart
from khop.glt.partition.parts import EDGE_FEATURES, FEATURES
from khop.glt.typing import EdgeType, NodeLabel, NodeType, TensorDataType
from khop.glt.utils import convert_to_tensor
from khop.partition.methods.random import random_owners
from khop.storage.folder import FolderMeta, check_output
from khop.typing import EDGE, NODE, EdgeDir, Int64Array


class DistRandomPartitioner:
    """Random partitioner of a graph whose edges and features are spread over processes.

    Each process passes the edges and feature rows that it has, in any division. It writes one part
    as a khop folder, the same part that `RandomPartitioner` makes of the whole graph. Owners of
    nodes are computed, not exchanged. Edges and rows are sent directly to the process of their
    part.

    Args:
        output_dir: this process's folder.
        num_nodes: number of nodes of the whole graph, or {node type: number}.
        edge_index: [2, n] edges of this process, or {edge type: edges}.
        edge_ids: [n] ids of these edges in the whole graph, or {edge type: ids}.
        node_feat: [m, ...] rows of nodes of this process, or {node type: rows}.
        node_feat_ids: [m] nodes of these rows, or {node type: nodes}.
        edge_feat: [n, ...] rows of this process's edges, or {edge type: rows}.
        edge_feat_ids: [n] edge ids of these rows, the same as `edge_ids`.
        num_parts: number of parts, which is also the number of processes.
        current_partition_idx: part of this process.
        node_feat_dtype, edge_feat_dtype: dtypes to store features in.
        edge_assign_strategy: 'by_src' (neighbours along the edges) or 'by_dst'.
        chunk_size, num_rpc_threads: accepted, not needed.
        master_addr, master_port: address of process 0. If None, $MASTER_ADDR and $MASTER_PORT.
        seed: seed of the random choices, the same for all processes.
        timeout: seconds to wait for other processes.

    Raises:
        ValueError: arguments do not fit one another.
        FileExistsError: `output_dir` exists.
    """

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        num_nodes: int | Mapping[NodeType, int],
        edge_index: Tensor | Mapping[EdgeType, Tensor],
        edge_ids: Tensor | Mapping[EdgeType, Tensor],
        node_feat: NodeLabel | None = None,
        node_feat_ids: Tensor | Mapping[NodeType, Tensor] | None = None,
        edge_feat: TensorDataType | Mapping[EdgeType, TensorDataType] | None = None,
        edge_feat_ids: Tensor | Mapping[EdgeType, Tensor] | None = None,
        num_parts: int | None = None,
        current_partition_idx: int | None = None,
        node_feat_dtype: torch.dtype = torch.float32,
        edge_feat_dtype: torch.dtype = torch.float32,
        edge_assign_strategy: str = "by_src",
        chunk_size: int = 10000,
        master_addr: str | None = None,
        master_port: int | str | None = None,
        num_rpc_threads: int = 16,
        *,
        seed: int = 0,
        timeout: float = 300.0,
    ) -> None:
        del chunk_size, num_rpc_threads
        if num_parts is None or current_partition_idx is None:
            raise ValueError("give num_parts and current_partition_idx, the part of this process")
        if not 0 <= current_partition_idx < num_parts:
            raise ValueError(f"part {current_partition_idx} is not one of {num_parts} parts")
        if edge_assign_strategy not in ("by_src", "by_dst"):
            raise ValueError(
                f"edge_assign_strategy must be 'by_src' or 'by_dst' (got {edge_assign_strategy!r})"
            )
        check_output(output_dir, False)
        self.output_dir = Path(output_dir)
        self.num_parts, self.part = num_parts, current_partition_idx
        self._heterogeneous = isinstance(num_nodes, Mapping)
        self._out = edge_assign_strategy == "by_src"
        self._counts = by_type(num_nodes, NODE)
        self._edges = {t: torch.stack([*e]) for t, e in by_type(edge_index, EDGE).items()}
        self._edge_ids = by_type(edge_ids, EDGE)
        self._rows = by_type(convert_to_tensor(node_feat, node_feat_dtype), NODE)
        self._row_ids = by_type(node_feat_ids, NODE)
        self._edge_rows = by_type(convert_to_tensor(edge_feat, edge_feat_dtype), EDGE)
        for edge_type, ids in by_type(edge_feat_ids, EDGE).items():
            if not torch.equal(ids, self._edge_ids[edge_type]):
                raise ValueError(
                    f"edge_feat_ids of {edge_type} are not edge_ids: give the rows of the edges "
                    "that this process has, in their order"
                )
        self._seed, self._timeout = seed, timeout
        self._address = (
            master_addr or os.environ.get("MASTER_ADDR", "localhost"),
            int(os.environ.get("MASTER_PORT", "0") if master_port is None else master_port),
        )

    def partition(self) -> FolderMeta:
        """Cut the graph together with the other processes, and write this process's part.

        Returns:
            The content of the folder's meta.json, the same for all processes.

        Raises:
            RuntimeError: another process failed, or did not join in time.
            ValueError: rows are missing or duplicated, or edges name nodes that do not exist.
        """
        peers = _Peers(self._address, self.part, self.num_parts, self._timeout)
        with contextlib.closing(peers):
            return self._partition_with(peers)

    def _partition_with(self, peers: _Peers) -> FolderMeta:
        owners = {
            t: random_owners(t, count, self.num_parts, self._seed).astype(np.int64)
            for t, count in self._counts.items()
        }
        nodes = {t: NodePart(known) for t, known in owners.items()}
        for node_type, rows in self._rows.items():
            ids = torch.as_tensor(self._row_ids[node_type])
            nodes[node_type].attrs[FEATURES] = self._own_rows(
                peers, owners[node_type], ids, rows, node_type
            )
        edges = {t: self._own_edges(peers, owners, t) for t in self._edges}
        direction: EdgeDir = "out" if self._out else "in"
        typed = self._heterogeneous
        part = GraphPart(self.part, self.num_parts, direction, typed, nodes, edges)
        name, above = self.output_dir.name, self.output_dir.parent
        above.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=above))
        try:
            meta = part.write(made, peers.join)
            made.chmod(0o755)
            made.rename(self.output_dir)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
        peers.wait()
        return meta

    def _own_rows(
        self, peers: _Peers, owners: Int64Array, ids: Tensor, rows: Tensor, node_type: NodeType
    ) -> Tensor:
        to = torch.from_numpy(owners[ids.numpy()])
        own_ids, own_rows = peers.send(to, ids), peers.send(to, rows)
        order = torch.argsort(own_ids)
        if not np.array_equal(own_ids[order].numpy(), np.flatnonzero(owners == self.part)):
            raise ValueError(
                f"the features of node type '{node_type}' that all processes have together do not "
                "name each node once"
            )
        return own_rows[order]

    def _own_edges(
        self, peers: _Peers, owners: Mapping[NodeType, Int64Array], edge_type: EdgeType
    ) -> EdgePart:
        ends, ids = self._edges[edge_type], torch.as_tensor(self._edge_ids[edge_type])
        row_type = edge_type[0] if self._out else edge_type[2]
        to = torch.from_numpy(owners[row_type][ends[0 if self._out else 1].numpy()])
        src, dst, own_ids = (peers.send(to, values) for values in (ends[0], ends[1], ids))
        attrs = {}
        if edge_type in self._edge_rows:
            attrs[EDGE_FEATURES] = peers.send(to, self._edge_rows[edge_type])
        counts = peers.gather(len(own_ids))
        return EdgePart(src.numpy(), dst.numpy(), own_ids.numpy(), counts, attrs)


class _Peers:
    """Group of the processes that cut a graph together, to exchange rows and values.

    The rank of a process is its part.

    Args:
        address: host and port of process 0.
        rank: part of this process.
        size: number of processes.
        timeout: seconds to wait for other processes.
    """

    def __init__(self, address: tuple[str, int], rank: int, size: int, timeout: float) -> None:
        limit = timedelta(seconds=timeout)
        self._store = TCPStore(*address, size, rank == 0, limit)
        self._group: Any = dist.ProcessGroupGloo(self._store, rank, size, limit)
        self._size = size

    def send(self, to: Tensor, rows: Tensor) -> Tensor:
        """Send each row to a process. Return the rows that this process received, by sender.

        Args:
            to: [n] process of each row.
            rows: [n, ...] rows, of the same shape in all processes.
        """
        order = torch.argsort(to, stable=True)
        sizes = torch.bincount(to, minlength=self._size)
        received = torch.empty_like(sizes)
        self._exchange(received, sizes, [1] * self._size, [1] * self._size)
        width = rows.new_empty(0).element_size()
        for extent in rows.shape[1:]:
            width *= extent
        sent = rows[order].contiguous().view(torch.uint8).view(-1)
        result = torch.empty(int(received.sum()) * width, dtype=torch.uint8)
        self._exchange(result, sent, (received * width).tolist(), (sizes * width).tolist())
        return result.view(rows.dtype).view(-1, *rows.shape[1:])

    def _exchange(self, out: Tensor, sent: Tensor, to: list[int], sizes: list[int]) -> None:
        self._group.alltoall_base(out, sent, to, sizes, dist.AllToAllOptions()).wait()

    def gather(self, value: int) -> list[int]:
        """Send an integer to all processes. Return the integers of all processes, by rank."""
        out = torch.empty(self._size, dtype=torch.int64)
        self._exchange(out, torch.full_like(out, value), [1] * self._size, [1] * self._size)
        return [int(each) for each in out]

    def join(self, files: Files) -> Files:
        """Exchange {path: length and checksums} of files with all processes. Return all entries."""
        own = torch.frombuffer(bytearray(json.dumps(to_json(files)).encode()), dtype=torch.uint8)
        everyone = torch.arange(self._size).repeat_interleave(len(own))
        text = bytes(self.send(everyone, own.repeat(self._size)).numpy()).decode()
        decoder, joined, position = json.JSONDecoder(), {}, 0
        while position < len(text):
            content, position = decoder.raw_decode(text, position)
            joined.update(from_json(Files, content, "another process's list of files"))
        return joined

    def wait(self) -> None:
        """Wait for all processes, since their common store ends with process 0."""
        self._group.barrier().wait()

    def close(self) -> None:
        """Leave the group. Its threads must release tensors before the interpreter ends."""
        self._group = None
