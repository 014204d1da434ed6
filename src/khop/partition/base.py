"""Base class of partitioners, with the steps that all methods share.

A subclass chooses the part of each node (`assign_nodes`), and optionally nodes that parts copy
(`cached_nodes`). The base class gives nodes new ids, cuts the edges and writes the folder.
"""

from __future__ import annotations

import abc
import inspect
import operator
import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from khop.data.arrays import checksum, storage_dtype, to_array
from khop.options import refuse_unknown, split_options, takes_options
from khop.partition.draws import DrawAttrs
from khop.partition.options import CutOptions, PartitionOptions
from khop.partition.out_of_core.effort import open_workspace
from khop.partition.out_of_core.plan import Effort, Plan
from khop.partition.out_of_core.resources import Resources
from khop.partition.out_of_core.workspace import Workspace
from khop.partition.source import GraphSource, no_progress
from khop.partition.writing.cluster_ids import check_cluster_ids, clusters_by_type, with_clusters
from khop.partition.writing.nodes import write_node_type
from khop.partition.writing.numbering import FolderJob, Numbering
from khop.partition.writing.order import check_order, row_keys
from khop.partition.writing.rows import write_edge_type
from khop.storage.folder import ORDERS, FolderMeta, FolderWriter
from khop.typing import (
    ArrayLike,
    EdgeDir,
    EdgeType,
    Int32Array,
    Int64Array,
    IntArray,
    NodeType,
    Progress,
)

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData
    from typing_extensions import Unpack

Self = TypeVar("Self", bound="PartitionerBase")


@takes_options(PartitionOptions, further=True)
class PartitionerBase(abc.ABC):
    """Base of all partitioners. Subclasses implement `assign_nodes`, and `_configure` for options.

    Args:
        output_dir: the partition folder to write.
        num_parts: number of parts.
        num_nodes: number of nodes, or {node type: number of nodes}.
        edge_index: [2, num_edges] sources and destinations, or {edge type: [2, num_edges]}.
        node_feat: [num_nodes, ...] features, stored as attribute 'x', or {node type: features}.
        node_feat_dtype: dtype of the stored features: of NumPy, of torch, or a name. If None, the
            features' own dtype.
        edge_feat: [num_edges, ...] features, stored as 'edge_attr', or {edge type: features}.
        edge_feat_dtype: as `node_feat_dtype`.
        edge_weights: [num_edges] weights, stored as 'edge_weight', or {edge type: weights}. If not
            None, 'edge_weight' is the default of `weight_attr`.
        node_attrs: further node attributes, name -> array or {node type: array}: labels, masks.
        edge_attrs: further edge attributes.
        **options: options of `PartitionOptions`, and arguments of the subclass's `_configure`.

    Raises:
        ValueError, TypeError: the arguments do not fit one another.
        FileExistsError: `output_dir` exists and `overwrite` is False.

    Example:
        >>> class AssignedPartitioner(PartitionerBase):
        ...     def assign_nodes(self, node_type):
        ...         return np.array([0, 0, 0, 1, 1, 1], np.int32)
        >>> AssignedPartitioner(path / "parts", 2, 6, data.edge_index).partition().num_parts
        2
    """

    makes_clusters = False
    """True if the method itself makes clusters of nodes, which `cluster_ids=True` then keeps."""

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        num_parts: int,
        num_nodes: int | Mapping[NodeType, int],
        edge_index: ArrayLike | Mapping[EdgeType, ArrayLike],
        *,
        node_feat: ArrayLike | Mapping[NodeType, ArrayLike] | None = None,
        node_feat_dtype: object = None,
        edge_feat: ArrayLike | Mapping[EdgeType, ArrayLike] | None = None,
        edge_feat_dtype: object = None,
        edge_weights: ArrayLike | Mapping[EdgeType, ArrayLike] | None = None,
        node_attrs: Mapping[str, ArrayLike | Mapping[NodeType, ArrayLike]] | None = None,
        edge_attrs: Mapping[str, ArrayLike | Mapping[EdgeType, ArrayLike]] | None = None,
        **options: Any,
    ) -> None:
        nodes = dict(node_attrs or {})
        edges = dict(edge_attrs or {})
        if node_feat is not None:
            nodes["x"] = _cast(node_feat, node_feat_dtype)
        if edge_feat is not None:
            edges["edge_attr"] = _cast(edge_feat, edge_feat_dtype)
        if edge_weights is not None:
            edges["edge_weight"] = edge_weights
            options["weight_attr"] = options.get("weight_attr") or "edge_weight"
        source = GraphSource.from_arrays(num_nodes, edge_index, nodes, edges)
        self._set_up(source, output_dir, num_parts, options)

    @classmethod
    @takes_options(PartitionOptions, further=True)
    def from_data(
        cls: type[Self],
        data: Data | HeteroData | GraphSource,
        output_dir: str | os.PathLike[str],
        num_parts: int,
        **options: Any,
    ) -> Self:
        """Create a partitioner for a PyG `Data` or `HeteroData`, or a `GraphSource`.

        Args:
            data: the graph. Attributes with a row for each node or edge are kept.
                `GraphSource.left_out` lists the attributes that are not kept.
            output_dir: the partition folder to write.
            num_parts: number of parts.
            **options: options of the subclass, such as `probs`.
        """
        self = cls.__new__(cls)
        source = data if isinstance(data, GraphSource) else GraphSource.from_data(data)
        self._set_up(source, output_dir, num_parts, options)
        return self

    def _set_up(
        self,
        source: GraphSource,
        output_dir: str | os.PathLike[str],
        num_parts: int,
        options: Mapping[str, Any],
    ) -> None:
        """Check the arguments, and store them as attributes.

        `__init__` and `from_data` call it last. `options` has options of `PartitionOptions` and of
        the subclass, by name. The other arguments are as in `from_data`.
        """
        name = type(self).__name__
        chosen, own = split_options(PartitionOptions, self, options)
        further = inspect.signature(self._configure).parameters
        if not any(p.kind is p.VAR_KEYWORD for p in further.values()):
            refuse_unknown(name, own, [*further, *chosen])
        if num_parts < 1:
            raise ValueError(f"num_parts must be at least 1 (got {num_parts})")
        if chosen["edge_dir"] not in ("in", "out"):
            raise ValueError(f"edge_dir must be 'in' or 'out' (got {chosen['edge_dir']!r})")
        if not 0 <= operator.index(chosen["seed"]) < 2**64:
            raise ValueError(f"seed must lie in [0, 2^64) (got {chosen['seed']})")
        self.source = source
        self.output_dir = output_dir
        self.num_parts = num_parts
        self.edge_dir: EdgeDir = chosen["edge_dir"]
        self.seed: int = chosen["seed"]
        self.overwrite: bool = chosen["overwrite"]
        self.progress: Progress = chosen["progress"] or no_progress
        self.numbering: dict[NodeType, Numbering] = {}
        self._workspace: Workspace | None = None
        limits = ("memory", "tmp", "jobs", "clean", "on_plan", "on")
        self.effort = Effort.of(**{option: chosen[option] for option in limits})
        self.draws = DrawAttrs.of(source, chosen["time_attr"], chosen["weight_attr"])
        self.neighbor_ids: bool = chosen["neighbor_ids"]
        self.edge_ids: bool = chosen["edge_ids"]
        self.order: str = chosen["order"]
        self.cluster_ids: int | bool = chosen["cluster_ids"]
        check_order(self.order)
        check_cluster_ids(self.cluster_ids, source, name, self.makes_clusters)
        self._configure(**own)

    if TYPE_CHECKING:  # subclasses have options of their own

        def _configure(self, *args: Any, **options: Any) -> None: ...
    else:

        def _configure(self) -> None:
            """Check the options of a subclass, and store them as attributes.

            `_set_up` calls it last. The options are keyword arguments of this method. The base
            class has none.
            """

    @abc.abstractmethod
    def assign_nodes(self, node_type: NodeType) -> IntArray:
        """Return the part of each node, by original id: [num_nodes] integers in [0, num_parts)."""

    def cached_nodes(self, node_type: NodeType, part: int, owners: IntArray) -> Int64Array:
        """Return the nodes of other parts that `part` keeps a copy of, hottest first.

        Args:
            node_type: the node type.
            part: the part that would keep copies.
            owners: [num_nodes] part of each node.

        Returns:
            [n] int64 original ids. The default implementation returns none.
        """
        del node_type, part, owners
        return np.empty(0, np.int64)

    def identity(self) -> dict[str, Any]:
        """Return the values that the assignment of nodes to parts depends on, except the graph.

        The values can be written as JSON. An interrupted run is resumed by a later run that has the
        same identity. By default, the identity is `describe()` and a checksum of the assignment,
        which is computed here.
        """
        owners = {t: checksum(np.asarray(self.assign_nodes(t))) for t in self.source.nodes}
        return {**self.describe(), "owners": owners}

    def plan(self) -> Plan:
        """Estimate memory, disk and time of `partition` from the sizes of the graph alone.

        The plan's `check_memory` and `check_disk` raise ValueError if there is too little of
        either.
        """
        return Plan.of(self)

    def assignment_bytes(self) -> int:
        """Estimate the memory of `assign_nodes`, in bytes, besides a few bytes per node.

        Default: 0.
        """
        return 0

    def scratch_bytes(self) -> int:
        """Estimate the bytes of temporary files of `assign_nodes` with option `memory`.

        Default: 0.
        """
        return 0

    @property
    def workspace(self) -> Workspace:
        """Storage in which `assign_nodes` may keep edges: memory, or files with option `memory`.

        :meta private:
        """
        return self._workspace or Workspace(Resources(None, self.effort.jobs))

    def describe(self) -> dict[str, Any]:
        """Return the name and arguments of the partitioning method, which meta.json records."""
        return {
            "name": type(self).__name__,
            "seed": self.seed,
            **({"cluster_ids": self.cluster_ids} if self.cluster_ids else {}),
            **({"order": self.order} if self.order != ORDERS[0] else {}),
        }

    def cluster_nodes(self) -> dict[NodeType, IntArray]:
        """Return {node type: [num_nodes] cluster of each node}, as option `cluster_ids` asks."""
        return clusters_by_type(self.source, int(self.cluster_ids), self.seed, self.progress)

    def summarize(self, numbering: Mapping[NodeType, Numbering]) -> dict[str, Any]:
        """Return entries that a partitioning method adds to the summary in meta.json.

        It is called after nodes are assigned. `numbering` has their parts and new ids by node type.
        By default, there are no entries.

        :meta private:
        """
        del numbering
        return {}

    def partition(self) -> FolderMeta:
        """Assign nodes, cut the graph and write the folder. Return the content of its meta.json."""
        with (
            open_workspace(self) as workspace,
            FolderWriter(self.output_dir, self.overwrite, workspace.unfinished) as writer,
        ):
            workspace.attach(writer)
            numbering = self.number_nodes(workspace)
            if self.cluster_ids:
                self.source = with_clusters(self.source, self.cluster_nodes())
            job = FolderJob(
                writer,
                workspace,
                numbering,
                self.num_parts,
                self.edge_dir,
                self.draws,
                self.neighbor_ids,
                self.edge_ids,
                self.progress,
            )
            node_metas = [
                write_node_type(job, t, node, self.cached_nodes)
                for t, node in self.source.nodes.items()
            ]
            shape = (self.num_parts, self.num_parts)
            between = workspace.array("cut", lambda: np.zeros(shape, np.int64), changes=True)
            edge_metas = [
                write_edge_type(job, t, edge, between) for t, edge in self.source.edges.items()
            ]
            meta = FolderMeta(
                num_parts=self.num_parts,
                edge_dir=self.edge_dir,
                heterogeneous=self.source.heterogeneous,
                node_types=node_metas,
                edge_types=edge_metas,
                method=self.describe(),
                summary={
                    "edges_between_parts": between.tolist(),
                    **({"left_out": self.source.left_out} if self.source.left_out else {}),
                    **self.summarize(numbering),
                },
                time_attr=self.draws.time,
                weight_attr=self.draws.weight_attr,
                order=self.order,
            )
            self.progress("checksums", 0, 1)
            writer.finish(meta)
            self.progress("checksums", 1, 1)
        return meta

    def number_nodes(self, workspace: Workspace | None = None) -> dict[NodeType, Numbering]:
        """Assign all nodes to parts, and give them new ids: contiguous numbers within each part.

        Args:
            workspace: storage that keeps the assignment for a run that resumes this one. If None,
                nothing is written.

        Returns:
            {node type: the part and the new id of each node}.

        :meta private:
        """
        self.numbering, self._workspace = {}, workspace
        for node_type in self.source.nodes:
            make = partial(self._owners, node_type)
            owners = make() if workspace is None else workspace.array(f"owners-{node_type}", make)
            self.numbering[node_type] = Numbering(owners, self.num_parts)
        if self.order != ORDERS[0]:
            keys = row_keys(self.source, self.edge_dir, self.order, self.seed, self.progress)
            self.numbering = {
                t: Numbering(known.owners, self.num_parts, keys[t])
                for t, known in self.numbering.items()
            }
        return self.numbering

    def _owners(self, node_type: NodeType) -> Int32Array:
        count = self.source.nodes[node_type].count
        owners = np.asarray(self.assign_nodes(node_type))
        if owners.shape != (count,) or owners.dtype.kind not in "iu":
            raise ValueError(
                f"assign_nodes('{node_type}') must return {count} integers "
                f"(got {owners.dtype} {owners.shape})"
            )
        if count and (int(owners.min()) < 0 or int(owners.max()) >= self.num_parts):
            raise ValueError(
                f"assign_nodes('{node_type}') named a part outside 0 .. {self.num_parts - 1}"
            )
        return np.ascontiguousarray(owners, np.int32)


class MethodPartitioner(PartitionerBase):
    """Base of khop's own partitioners. Type checkers know their options, from `CutOptions`."""

    if TYPE_CHECKING:

        @classmethod
        def from_data(  # type: ignore[override]
            cls: type[Self],
            data: Data | HeteroData | GraphSource,
            output_dir: str | os.PathLike[str],
            num_parts: int,
            **options: Unpack[CutOptions],
        ) -> Self: ...


def _cast(values: Any, dtype: object) -> Any:
    """Convert features to a dtype (of torch or NumPy, or a name). None leaves them as they are."""
    if dtype is None:
        return values
    if isinstance(values, Mapping):
        return {key: _cast(value, dtype) for key, value in values.items()}
    name = np.dtype(dtype).name if isinstance(dtype, type) else str(dtype).removeprefix("torch.")
    if hasattr(values, "detach"):
        import torch

        return values.to(getattr(torch, name))
    array, _ = to_array(values, "features")
    return array.astype(storage_dtype(name), copy=False)
