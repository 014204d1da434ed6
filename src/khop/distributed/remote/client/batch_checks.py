"""Checks of batches from graph servers. Run by receivers, before batches reach the trainer.

A damaged or hostile server can fail a batch, but must do no other damage. With an index outside of
a batch, kernels would read other memory, or end a process that uses a GPU. So a layout must have
the arrays that the loader has requested. In each batch, the counters must agree with the sizes of
arrays, `edge_index` with the numbers of nodes, and ids with the graph. Each array is read once.

Batches of samplers on the trainer's machine are not checked. These processes have the trainer's
user, and can do all that the trainer can. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from khop.channel.layout import Layout, Received
from khop.codec import Id
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.errors import ProtocolError
from khop.sampler.link_spec import LinkSpec
from khop.storage.folder import FolderMeta
from khop.trace.clock import ROWS, BatchTimings
from khop.typing import Array

# Bound of times in nanoseconds, of bytes and of process ids.
_MOST = 1 << 62


@dataclass(frozen=True)
class BatchSchema:
    """Form that a server's batches for a loader must have, and the sizes of the graph.

    Attributes:
        num_nodes, num_edges: numbers of nodes and edges of the graph, by type.
        ends: per edge type, the node types in row 0 (neighbours) and row 1 of `edge_index`.
        arrays: name, dtype and axes of each array of a batch, as in a layout.
        counters: name and length of each counter.
    """

    num_nodes: list[Id]
    num_edges: list[Id]
    ends: list[tuple[Id, Id]]
    arrays: list[tuple[str, str, list[int]]]
    counters: list[tuple[str, Id]]

    @classmethod
    def create(cls, meta: FolderMeta, spec: PipelineSpec) -> BatchSchema:
        """Compute the form from the graph's metadata and the specification of the batches."""
        index = {t.name: i for i, t in enumerate(meta.node_types)}
        ends = [
            (index[meta.neighbor_type(t).name], index[meta.row_type(t).name])
            for t in meta.edge_types
        ]
        return cls(
            [t.count for t in meta.node_types],
            [t.count for t in meta.edge_types],
            ends,
            [*_stored_arrays(meta, spec), *_link_arrays(meta, spec)],
            _counters(meta, spec),
        )


def _stored_arrays(meta: FolderMeta, spec: PipelineSpec) -> list[tuple[str, str, list[int]]]:
    """Return name, dtype and axes of the arrays of nodes and edges that batches have."""
    num_types, collect = len(meta.node_types), spec.collect
    arrays: list[tuple[str, str, list[int]]] = []
    for i, node_type in enumerate(meta.node_types):
        arrays.append((f"n{i}.id", "int64", [-1 - i]))
        if collect.with_trees:
            arrays.append((f"t{i}", "int64", [-1 - i]))
        for name in collect.node_attrs[i]:
            dtype, shape = collect.row(node_type.attrs[name])
            arrays.append((f"n{i}.{name}", dtype, [-1 - i, *shape]))
        for name in spec.sampling.method.value_names("n"):
            arrays.append((f"n{i}.{name}", "float32", [-1 - i]))
    for i, edge_type in enumerate(meta.edge_types):
        axis = -1 - num_types - i
        arrays.append((f"e{i}.edge_index", "int64", [2, axis]))
        for name in spec.sampling.method.value_names("e"):
            arrays.append((f"e{i}.{name}", "float32", [axis]))
        if collect.with_edge[i]:
            arrays.append((f"e{i}.edge_id", "int64", [axis]))
            for name in collect.edge_attrs[i]:
                dtype, shape = collect.row(edge_type.attrs[name])
                arrays.append((f"e{i}.{name}", dtype, [axis, *shape]))
    return arrays


def _link_arrays(meta: FolderMeta, spec: PipelineSpec) -> list[tuple[str, str, list[int]]]:
    """Return name, dtype and axes of the arrays with the positions of links' ends in a batch."""
    if spec.link is None:
        return []
    axes = {"edge_label_index": 2}
    if spec.link.mode == "triplet":
        negatives = 1 if int(spec.link.amount) == 1 else 2
        axes = {"src_index": 1, "dst_pos_index": 1, "dst_neg_index": negatives}
    used = len(meta.node_types) + len(meta.edge_types)
    arrays = []
    for name, count in axes.items():
        arrays.append((f"s.{name}", "int64", [-1 - used - axis for axis in range(count)]))
        used += count
    return arrays


def _counters(meta: FolderMeta, spec: PipelineSpec) -> list[tuple[str, int]]:
    counters = [("batch", 1), ("nodes", 1), ("edges", 1), ("rows", len(ROWS))]
    counters.append(("made", len(BatchTimings._fields)))
    if spec.collect.counts_hops:
        num_hops = spec.sampling.num_hops
        counters += [(f"n{i}.hops", 1 + num_hops) for i in range(len(meta.node_types))]
        counters += [(f"e{i}.hops", num_hops) for i in range(len(meta.edge_types))]
    return counters


class BatchChecks:
    """Checks of the batches that a receiver gets for one loader. All raise ProtocolError.

    Args:
        schema: required form of the batches.
        spec: specification of the batches.
    """

    def __init__(self, schema: BatchSchema, spec: PipelineSpec) -> None:
        self._schema = schema
        self._spec = spec
        self._arrays = {name: (dtype, tuple(axes)) for name, dtype, axes in schema.arrays}
        self._counters = dict(schema.counters)

    def check_layout(self, layout: Layout) -> None:
        """Check that a layout has the arrays and counters of the schema, in any order."""
        arrays = {a.name: (a.dtype, a.shape) for a in layout.arrays}
        counters = {c.name: c.length for c in layout.counters}
        for title, sent, required in (
            ("arrays", arrays, self._arrays),
            ("counters", counters, self._counters),
        ):
            if sent != required:
                names = sorted(n for n in {*sent, *required} if sent.get(n) != required.get(n))
                raise ProtocolError(
                    f"a layout whose {title} {ascii(names[:8])[:400]} are not as requested"
                )

    def check_batch(self, layout: Layout, raw: Array, batch: int, num_seeds: int) -> None:
        """Check that the contents of a batch agree with each other and with the graph.

        Args:
            layout: layout of the batch, which `check_layout` has accepted.
            raw: the batch, [nbytes] uint8.
            batch: index of the batch in the epoch.
            num_seeds: number of nodes or links in the request.
        """
        received = layout.read(raw)
        arrays = dict(zip(layout.index, received.arrays, strict=True))
        count = len(self._schema.num_nodes)
        nodes = received.numbers[:count]
        edges = received.numbers[count : count + len(self._schema.num_edges)]
        self._check_counters(received, batch, nodes, edges)
        for i, total in enumerate(self._schema.num_nodes):
            _check_range(arrays[f"n{i}.id"], total, f"n{i}.id")
        for i, (total, ends) in enumerate(
            zip(self._schema.num_edges, self._schema.ends, strict=True)
        ):
            for row, node_type in zip(arrays[f"e{i}.edge_index"], ends, strict=True):
                _check_range(row, nodes[node_type], f"e{i}.edge_index")
            if f"e{i}.edge_id" in arrays:
                _check_range(arrays[f"e{i}.edge_id"], total, f"e{i}.edge_id")
        self._check_seeds(received, arrays, nodes, num_seeds)
        for name, array in arrays.items():
            if array.dtype == np.bool_:
                _check_range(array.view(np.uint8), 2, name)

    def _check_counters(
        self, received: Received, batch: int, nodes: Sequence[int], edges: Sequence[int]
    ) -> None:
        counter = received.counter
        sums = {"nodes": sum(nodes), "edges": sum(edges), "rows": sum(nodes)}
        if self._spec.collect.counts_hops:
            sums.update({f"n{i}.hops": size for i, size in enumerate(nodes)})
            sums.update({f"e{i}.hops": size for i, size in enumerate(edges)})
        for name, total in {"batch": batch, **sums}.items():
            values = counter(name)
            if sum(values) != total or min(values, default=0) < 0:
                raise ProtocolError(
                    f"a batch whose counters '{name}' are {values[:16]}, which must be positive "
                    f"and {total} in all"
                )
        if not all(0 <= value < _MOST for value in counter("made")):
            raise ProtocolError(f"a batch that was made with {counter('made')}")

    def _check_seeds(
        self, received: Received, arrays: Mapping[str, Array], nodes: Sequence[int], num_seeds: int
    ) -> None:
        """Check ids of trees, the number of seeds, and the positions of links' ends in a batch.

        `arrays` are the batch's by name, and `nodes` its numbers of nodes by type. `num_seeds`
        seeds were requested.
        """
        link_spec, num_trees = self._spec.link, num_seeds
        if link_spec is None:
            i = self._spec.seed_type
            hops = received.counter(f"n{i}.hops")[0] if f"n{i}.hops" in self._counters else None
            if nodes[i] < num_seeds or hops not in (None, num_seeds):
                raise ProtocolError(f"a batch of {nodes[i]} nodes that begins without its seeds")
        else:
            num_trees = 2 * (num_seeds + link_spec.num_negatives(num_seeds))
            for name, shape, types in _ends_of_links(link_spec, num_seeds):
                array = arrays[f"s.{name}"]
                if array.shape != shape:
                    raise ProtocolError(f"a batch whose '{name}' is {array.shape}, not {shape}")
                rows = [array] if len(types) == 1 else array
                for row, node_type in zip(rows, types, strict=True):
                    _check_range(row, nodes[node_type], f"s.{name}")
        if self._spec.collect.with_trees:
            for i in range(len(nodes)):
                _check_range(arrays[f"t{i}"], num_trees, f"t{i}")


def _ends_of_links(
    spec: LinkSpec, num_links: int
) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Return name, shape and node types (one, or one per row) of each array of links' ends.

    The batch has `num_links` links.
    """
    src, dst, amount = spec.src_type, spec.dst_type, int(spec.amount)
    if spec.mode != "triplet":
        num_pairs = num_links + spec.num_negatives(num_links)
        return [("edge_label_index", (2, num_pairs), (src, dst))]
    negatives = (num_links,) if amount == 1 else (num_links, amount)
    return [
        ("src_index", (num_links,), (src,)),
        ("dst_pos_index", (num_links,), (dst,)),
        ("dst_neg_index", negatives, (dst,)),
    ]


def _check_range(values: Array, below: int, name: str) -> None:
    """Check that integers are at least 0 and below a bound, in one pass over them.

    Negative integers, read as unsigned ones, are larger than any bound.
    """
    unsigned = values.view(np.uint64) if values.dtype == np.int64 else values
    if values.size and int(unsigned.max()) >= below:
        wrong = values.reshape(-1)[int(unsigned.argmax())]
        raise ProtocolError(f"a batch whose '{name}' holds {wrong}, not 0 to {below - 1}")
