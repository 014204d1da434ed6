"""Propagation of a node attribute over a partition folder's graph, into new attributes of nodes.

A column of the result depends on this column of the attribute alone. So columns are worked on in
groups that fit the memory: a group's values of all nodes are read into memory, propagated hop by
hop, and written to a stage file. Then the parts' files are written from the stage files. The values
do not depend on the groups. Imports no torch.
"""

from __future__ import annotations

import itertools
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from khop.cores import memory_limit
from khop.data.arrays import checksum
from khop.data.encoding import as_float32
from khop.data.hot_rows import parse_bytes
from khop.errors import FolderError
from khop.log import shown
from khop.partition.out_of_core.effort import left_overs
from khop.partition.out_of_core.resources import Resources
from khop.partition.out_of_core.stage import ANEW, FileColumn
from khop.partition.out_of_core.workspace import DiskWorkspace, run_name
from khop.partition.source import no_progress
from khop.partition.summary import FolderSummary
from khop.partition.writing.column_groups import ColumnGroups
from khop.partition.writing.nodes import save_rows
from khop.storage import aggregation
from khop.storage.aggregation import Aggregation, RowEdges, inverse_root
from khop.storage.folder import (
    INTS,
    AttrMeta,
    FolderMeta,
    FolderWriter,
    NodeTypeMeta,
    PartitionFolder,
    cache_attr_path,
    cache_path,
    edge_array,
    edge_rows,
    locked,
    node_attr_path,
)
from khop.typing import Array, EdgeType, Int64Array, Progress

# Share of the memory for values of nodes and degrees. Blocks of edges take the rest.
_USED = 0.6
# Most bytes of memory that an edge of a block takes: its weight, scale, position and row.
_EDGE_BYTES = 32


def propagate(
    folder: str | os.PathLike[str],
    attr: str,
    out: str,
    *,
    hops: int = 1,
    reduce: str = "sum",
    norm: str | None = None,
    weight: str | None = None,
    edge_type: EdgeType | str | None = None,
    self_loops: bool = False,
    every_hop: bool = False,
    memory: str | int | None = None,
    tmp: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    clean: bool = False,
    progress: Progress | None = None,
) -> FolderSummary:
    """Add a node attribute to a folder: an attribute of each node's neighbours, hop by hop.

    With `norm='sym'` and `self_loops=True`, it is A^K X of SGC. With `every_hop=True`, it is the
    input of SIGN. Neighbours are in-neighbours, as in batches, unless the folder was partitioned by
    source. Values do not depend on the parts, the memory or the threads.

    The folder is whole at any time. It has another fingerprint afterwards, so change it while no
    job uses it. An interrupted run resumes if it is started again with the same arguments.

    Args:
        folder: the folder, with all parts on this machine.
        attr: attribute of numbers, of the neighbours' node type.
        out: name of the new attribute, float32 of the same shape.
        hops: number of hops, K.
        reduce: 'sum', 'mean', 'min' or 'max' of weight * row. A node without neighbours gets 0.
        norm: 'row' divides by the sum of the node's weights. 'sym' divides by the square roots of
            the sums of both ends, as GCN does.
        weight: edge attribute with one number per edge. If None, all weights are 1.
        edge_type: the edge type, or its three names in a text, with spaces between. If None, the
            only one.
        self_loops: add an edge of weight 1 to each node that has none to itself.
        every_hop: keep the rows of each hop, as attributes `out` + '1' to `out` + 'K'.
        memory: bytes to use, such as '8GB'. If None, half of the machine's memory.
        tmp: folder of the stage files. If None, the folder's parent.
        jobs: threads. If None, one per core, at most 8.
        clean: first remove what interrupted runs left beside the folder and in `tmp`.
        progress: called as progress(step, done, total).

    Returns:
        The summary of the folder.

    Raises:
        FolderError: the folder is missing, damaged or of an earlier format version, or parts are
            on other machines.
        KeyError, TypeError, ValueError: no such attribute or edge type, or arguments that do not
            fit one another. `memory` is too small for one column.
        BlockingIOError: another process changes the folder.
        OSError: the disk is full.

    Method: SGC (https://arxiv.org/abs/1902.07153), SIGN (https://arxiv.org/abs/2004.11198).

    Example:
        >>> _ = repartition(folder, path / "parts", 2)
        >>> _ = propagate(path / "parts", "x", "x2", hops=2, norm="sym", self_loops=True)
        >>> PartitionFolder(path / "parts").meta.node_type("node").attrs["x2"].shape
        (4,)
    """
    with locked(PartitionFolder(folder).root):
        opened = PartitionFolder(folder)
        files = opened.written()  # of this version
        names = [f"{out}{hop}" for hop in range(1, hops + 1)] if every_hop else [out]
        index = _edge_type(opened.meta, edge_type)
        rule = Aggregation(index, reduce, weight, norm, self_loops)
        rule.check(opened.meta, hops)
        run = _Run(opened, rule, attr, names, hops)
        run.check()
        limit = (memory_limit() or 8 << 30) // 2 if memory is None else parse_bytes(memory)
        groups = run.groups(int(_USED * limit))
        resources = Resources(int((1 - _USED) * limit), jobs)
        root = opened.root.resolve()
        if root.stat().st_dev != root.parent.stat().st_dev:
            raise ValueError(
                f"'{root}' is on another disk than '{root.parent}', where new files are written "
                "first: put the folder into a folder of its disk"
            )
        if clean:
            for left in left_overs(root, None if tmp is None else Path(tmp)):
                shutil.rmtree(left)
        name = run_name([str(root), opened.fingerprint, attr, names, hops, asdict(rule), groups])
        stage = Path(tmp or root.parent).absolute() / f".khop-{root.name}-{name}.stage"
        workspace = DiskWorkspace(resources, stage, name, root)
        with workspace, FolderWriter(root, True, workspace.unfinished) as writer:
            workspace.attach(writer)
            run.write(workspace, writer, groups, progress or no_progress)
            writer.extend(run.described(), files)
    return FolderSummary.of(PartitionFolder(folder))


def _edge_type(meta: FolderMeta, edge_type: EdgeType | str | None) -> int:
    """Return the index of an edge type."""
    types = [t.name for t in meta.edge_types]
    if edge_type is None and len(types) == 1:
        return 0
    for index, known in enumerate(types):
        if edge_type in (known, " ".join(known)):
            return index
    spelled = ", ".join(repr(" ".join(known)) for known in types)
    got = "" if edge_type is None else f" (got {shown(edge_type)})"
    raise KeyError(f"edge_type must be one of {spelled}{got}")


@dataclass(frozen=True)
class _Run:
    """One propagation.

    Attributes:
        folder: the folder.
        rule: the aggregation.
        attr: attribute that is read.
        names: new attributes: of the last hop, or of each hop.
        hops: number of hops.
    """

    folder: PartitionFolder
    rule: Aggregation
    attr: str
    names: list[str]
    hops: int

    @property
    def _source(self) -> NodeTypeMeta:
        """Node type of the neighbours."""
        return self.folder.meta.neighbor_type(self.rule.described(self.folder.meta))

    @property
    def _target(self) -> NodeTypeMeta:
        """Node type of the rows."""
        return self.folder.meta.row_type(self.rule.described(self.folder.meta))

    @property
    def _shape(self) -> tuple[int, ...]:
        return self._source.attrs[self.attr].shape

    def check(self) -> None:
        """Raise an error unless the attribute exists, and the new ones do not."""
        known = self._source.attrs
        if self.attr not in known:
            raise KeyError(
                f"node type '{self._source.name}' has no attribute '{self.attr}': there are "
                f"{list(known)}"
            )
        for name in self.names:
            if name in self._target.attrs:
                raise ValueError(
                    f"node type '{self._target.name}' has an attribute '{name}' already: choose "
                    "another name"
                )
        self.described()  # ValueError for a name that no attribute may have
        for part in range(self.folder.num_parts):
            self.folder.check_part(part)

    def described(self) -> FolderMeta:
        """Return the description of the folder with the new attributes."""
        meta, target = self.folder.meta, self._target
        attrs = {**target.attrs, **{n: AttrMeta.of("float32", self._shape) for n in self.names}}
        types = [replace(t, attrs=attrs) if t is target else t for t in meta.node_types]
        return replace(meta, node_types=types)

    def groups(self, memory: int) -> list[tuple[int, int]]:
        """Return groups of columns whose values fit in memory: first and last plus one of each."""
        width = math.prod(self._shape)
        counts = self._source.count + self._target.count
        degrees = 4 * self._target.count if self.rule.norm == "sym" else 0
        most = (memory - degrees) // max(4 * counts, 1)
        if most < 1 <= width:
            needed = int((degrees + 4 * counts) / _USED) + 1
            raise ValueError(
                f"one column of '{self.attr}' takes {needed:,} bytes of memory: raise memory "
                "(--memory)"
            )
        num_groups = -(-width // max(most, 1))
        bounds = [width * i // max(num_groups, 1) for i in range(num_groups + 1)]
        return list(itertools.pairwise(bounds))

    def write(
        self,
        workspace: DiskWorkspace,
        writer: FolderWriter,
        groups: list[tuple[int, int]],
        progress: Progress,
    ) -> None:
        """Compute the rows of all groups of columns, then write the files of the new attributes."""
        count, bounds = self._target.count, self._target.bounds
        entries = count * math.prod(self._shape)
        columns = [
            FileColumn(workspace.folder, f"{i}.stage", np.dtype(np.float32), (), entries)
            for i in range(len(self.names))
        ]
        stored = [ColumnGroups(column, groups, count, self._shape) for column in columns]
        for done, group in enumerate(groups):
            progress("columns", done, len(groups))
            self._compute(workspace, columns, stored, group)
        for done, (name, rows) in enumerate(zip(self.names, stored, strict=True)):
            progress("writing", done, len(self.names))
            for part, copied in enumerate(self._target.cached or [0] * self.folder.num_parts):
                path = node_attr_path(part, self._target.name, name)
                save_rows(writer, workspace, path, rows, np.arange(*bounds[part : part + 2]))
                if copied:
                    path = cache_attr_path(part, self._target.name, name)
                    save_rows(writer, workspace, path, rows, self._copied(part, copied))
        for column in columns:
            column.close()

    def _copied(self, part: int, count: int) -> Int64Array:
        """Return the positions of the nodes of other parts that a part has copies of."""
        path = cache_path(part, self._target.name, "new_id")
        with _damage_of(self.folder):
            ids = self.folder.open_as(path, (count,), *INTS)
            if count and not 0 <= int(ids.min()) <= int(ids.max()) < self._target.count:
                raise IndexError(f"'{path}' names nodes that do not exist")
        return ids.astype(np.int64)

    def _compute(
        self,
        workspace: DiskWorkspace,
        columns: list[FileColumn],
        stored: list[ColumnGroups],
        group: tuple[int, int],
    ) -> None:
        """Write a group of columns of each new attribute to its stage file, unless they are there.

        Raises:
            ValueError: a stage file has changed since an interrupted run wrote it.
        """
        begin, computed = group[0] * self._target.count, []

        def make() -> Array:
            for column, rows in zip(columns, self._hops(workspace, group), strict=True):
                column.write(begin, rows.reshape(-1))
                column.sync()
                computed.append(checksum(rows))
            return np.array(computed, np.uint64)

        known = workspace.array(f"columns {group}", make)
        if computed:
            return
        for column, rows, expected in zip(columns, stored, known, strict=True):
            if checksum(rows.of_group(group)) != int(expected):
                raise ValueError(f"stage file '{column.path}' is damaged: {ANEW}")
            rows.release()

    def _hops(self, workspace: DiskWorkspace, group: tuple[int, int]) -> Iterator[Array]:
        """Yield the rows of each new attribute, for a group of columns: [num_nodes, n] float32."""
        roots = None
        if self.rule.norm == "sym":
            roots = np.empty(self._target.count, np.float32)
            for edges, begin, end in self._blocks(workspace):
                block = self.rule.block(edges, begin, end)
                roots[block.positions] = inverse_root(block.sums())
        values = self._read(group)
        out = np.empty((self._target.count, values.shape[1]), np.float32)
        for hop in range(self.hops):
            if hop:
                values, out = out, values
            self._hop(workspace, values, out, roots)
            if hop == self.hops - 1 or len(self.names) > 1:
                yield out

    def _read(self, group: tuple[int, int]) -> Array:
        """Return a group of columns of the attribute, of all parts: [num_nodes, n] float32."""
        first, last = group
        values = np.empty((self._source.count, last - first), np.float32)
        for part in range(self.folder.num_parts):
            low, high = self._source.bounds[part : part + 2]
            rows = self.folder.node_feature(part, self._source.name, self.attr)
            step = max(1, aggregation.EDGES_AT_ONCE // max(1, math.prod(self._shape)))
            for begin in range(low, high, step):
                end = min(begin + step, high)
                read = rows.gather(np.arange(begin - low, end - low))
                chunk = as_float32(read, rows.dtype, rows.encoding).reshape(end - begin, -1)
                values[begin:end] = chunk[:, first:last]
        return values

    def _hop(
        self, workspace: DiskWorkspace, values: Array, out: Array, roots: Array | None
    ) -> None:
        """Reduce the rows of all nodes' neighbours, block by block, in threads."""

        def reduce_block(item: tuple[RowEdges, int, int]) -> None:
            edges, begin, end = item
            with _damage_of(self.folder):
                block = self.rule.block(edges, begin, end)
                rows = slice(edges.low + begin, edges.low + end)
                near_far = None if roots is None else (roots[rows], roots[block.neighbors])
                self.rule.reduce_rows(block, block.neighbors, [values], out[rows], near_far)

        for _ in workspace.resources.in_order(reduce_block, list(self._blocks(workspace))):
            pass

    def _blocks(self, workspace: DiskWorkspace) -> Iterator[tuple[RowEdges, int, int]]:
        """Yield the edges of a part, and the first and last plus one row of a block, for all."""
        meta, name = self.folder.meta, self.rule.described(self.folder.meta).name
        resources = workspace.resources
        assert resources.memory is not None
        fitting = resources.memory // (_EDGE_BYTES * resources.in_flight)
        edges_at_once = max(1, min(aggregation.EDGES_AT_ONCE, fitting))
        for part in range(self.folder.num_parts):
            indptr, indices = (
                edge_array(self.folder, part, name, array) for array in ("indptr", "indices")
            )
            weights = None
            if self.rule.weight is not None:
                weights = edge_rows(self.folder, part, self.rule.described(meta), self.rule.weight)
            edges = RowEdges(self._target.bounds[part], indptr, indices, weights)
            rows_at_once = min(edges_at_once, aggregation.ROWS_AT_ONCE)
            for begin, end in edges.spans(edges_at_once, rows_at_once):
                yield edges, begin, end


@contextmanager
def _damage_of(folder: PartitionFolder) -> Iterator[None]:
    """Context in which an IndexError or ValueError means that the folder's edges are damaged."""
    try:
        yield
    except (IndexError, ValueError) as error:
        raise FolderError(
            f"'{folder.root}' is damaged: {error}. 'khop verify {folder.root}' reports what else "
            "is wrong"
        ) from None
