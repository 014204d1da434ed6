"""Checks of clients' requests about sessions, before processes start or memory is taken.

Run by graph servers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from khop.distributed.remote.messages import MAX_SEEDS
from khop.distributed.remote.server.session import SESSION_LEASE
from khop.distributed.rpc.protocol import check_index
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.errors import ProtocolError
from khop.storage.folder import FolderMeta
from khop.typing import Array, Int64Array

_MAX_FANOUT = 1 << 24


@dataclass(frozen=True)
class SessionLimits:
    """Limits of the sessions of all clients.

    Attributes:
        buffer_bytes: maximum bytes of all sessions together, for batches and arrays of requests.
        sessions: maximum number of sessions.
        samplers: maximum number of sampler processes of all sessions together.
        lease: seconds of silence after which a session ends.
    """

    buffer_bytes: int = 8 << 30
    sessions: int = 1024
    samplers: int = 1024
    lease: float = SESSION_LEASE


class SessionValidator:
    """Checks of clients' requests for batches against the graph. All raise ProtocolError.

    Args:
        meta: metadata of the folder, with additional labels.
    """

    def __init__(self, meta: FolderMeta) -> None:
        self._meta = meta

    def pipeline(self, pipeline: PipelineSpec) -> None:
        """Check that the graph has the types and attributes that a specification names."""
        try:
            self._check_types(pipeline)
        except ValueError as error:
            raise ProtocolError(f"'pipeline' does not fit the graph: {error}") from None

    def _check_types(self, pipeline: PipelineSpec) -> None:
        nodes, edges = self._meta.node_types, self._meta.edge_types
        sampling, collect = pipeline.sampling, pipeline.collect
        fanouts = sampling.fanouts
        if len(fanouts) != len(edges) or len({len(hops) for hops in fanouts}) > 1:
            raise ValueError(f"fan-outs for {len(fanouts)} of {len(edges)} edge types")
        if any(max(hops, default=0) > _MAX_FANOUT for hops in fanouts):
            raise ValueError(f"a fan-out is not an integer from -1 to {_MAX_FANOUT}")
        if sampling.weighted and len(sampling.weighted) != len(edges):
            raise ValueError("'weighted' has no entry for each edge type")
        for hop in sampling.distinct_requests():
            hop.options()  # raises if they contradict each other
        if sampling.method.needs_neighbor_ids and not self._meta.knows_neighbors:
            raise ValueError("the folder was partitioned without neighbours' original ids")
        if any(i >= len(edges) for *pair, _ in sampling.reversals for i in pair):
            raise ValueError("a reverse is no edge type")
        _check_names([t.attrs for t in nodes], collect.node_attrs, "node")
        _check_names([t.attrs for t in edges], collect.edge_attrs, "edge")
        if len(collect.with_edge) != len(edges):
            raise ValueError("'with_edge' has no entry for each edge type")
        check_index(pipeline.seed_type, len(nodes), "seed_type")
        if pipeline.link is not None:
            check_index(pipeline.link.src_type, len(nodes), "src_type")
            check_index(pipeline.link.dst_type, len(nodes), "dst_type")
            for relation in (pipeline.link.relation, *(r for r, _ in pipeline.link.excluded)):
                if relation is not None:
                    check_index(relation, len(edges), "relation")

    def arrays(
        self, pipeline: PipelineSpec, names: Sequence[str], arrays: Sequence[Array]
    ) -> dict[str, Array]:
        """Check the sampling weights that a request to open a session carries.

        Returns them by name, [num_nodes] float64 each.
        """
        if len(names) != len(arrays):
            raise ProtocolError("'names' must name the arrays that follow")
        if any(array.dtype != np.float64 or array.ndim != 1 for array in arrays):
            raise ProtocolError("a session takes float64 vectors alone")
        spec = pipeline.link
        for name, array in zip(names, arrays, strict=True):
            if spec is None:
                raise ProtocolError(f"'{name}' is of links, but batches are of nodes")
            node_type = spec.src_type if name == "src_weight" else spec.dst_type
            count = self._meta.node_types[node_type].count
            if len(array) != count:
                raise ProtocolError(f"'{name}' has {len(array)} entries for {count} nodes")
        return dict(zip(names, arrays, strict=True))

    def columns(self, pipeline: PipelineSpec, columns: Int64Array) -> None:
        """Check that the seeds of a batch, [num_columns, n] int64, are nodes of the graph.

        Raises:
            IndexError: a seed does not exist.
        """
        nodes, spec = self._meta.node_types, pipeline.link
        types = [pipeline.seed_type] if spec is None else [spec.src_type, spec.dst_type]
        num_columns = len(types) + pipeline.sampling.temporal
        if len(columns) != num_columns:
            raise ProtocolError(f"seeds come in {len(columns)} columns instead of {num_columns}")
        if columns.shape[1] > MAX_SEEDS:
            raise ProtocolError(f"a batch has {columns.shape[1]} seeds, more than {MAX_SEEDS}")
        for ids, node_type in zip(columns, types, strict=False):
            count = nodes[node_type].count
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < count:
                raise IndexError(
                    f"seeds {int(ids.min())} to {int(ids.max())} of node type "
                    f"'{nodes[node_type].name}', which has {count} nodes"
                )


def columns_of(arrays: Sequence[Array]) -> Int64Array:
    """Return the seeds that a request for a batch carries, [num_columns, n] int64.

    Raises:
        ProtocolError: it carries something else.
    """
    if len(arrays) != 1 or arrays[0].dtype != np.int64 or arrays[0].ndim != 2:
        raise ProtocolError("a request for a batch carries one int64 array of two axes")
    return np.array(arrays[0])  # a copy: the message's memory is released


def _check_names(known: Sequence[Collection[str]], names: list[list[str]], entity: str) -> None:
    """Check that each node or edge type (`entity`) has the attributes in `names`.

    `known` has the attributes of each type.
    """
    if len(names) != len(known):
        raise ValueError(f"there are no attributes for each {entity} type")
    for i, attrs in enumerate(known):
        unknown = [name for name in names[i] if name not in attrs]
        if unknown:
            raise ValueError(f"{entity} type {i} has no attributes {unknown}")
