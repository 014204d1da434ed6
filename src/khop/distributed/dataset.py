"""`DistDataset`: a trainer's partition of a data set. Runs in trainers and worker processes."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from khop.data import RowStore
from khop.data.steps import run
from khop.data.tickets import Ticket
from khop.distributed.graph import PartitionedGraph, described_types
from khop.distributed.job.context import WorkerContext
from khop.distributed.job.worker_group import require_context
from khop.distributed.partitions.reader import PartitionReader
from khop.distributed.partitions.service import PartitionService
from khop.distributed.partitions.shared_client import SharedClient
from khop.distributed.processes.hosts import maps_same_host
from khop.distributed.stores.dataset_stores import PartitionStores
from khop.distributed.stores.user_data import open_stores, read_labels
from khop.sampler.drawing.graph_rows import GraphRows
from khop.sampler.drawing.view import GraphView
from khop.storage.disk_choice import choose_disk
from khop.storage.folder import FolderMeta, PartitionFolder
from khop.storage.part import Part
from khop.tables import html_table
from khop.typing import EDGE, NODE, EdgeType, Int64Array, IntArray, NodeType


class DistDataset(PartitionStores, PartitionedGraph):
    """One partition of a folder, with access to the other partitions. A trainer loads it.

        dataset = DistDataset().load('products-parts', partition_idx=rank)

    Loading maps files and reads none of them. All processes of a machine share the page cache.

    It is also PyG's `FeatureStore` and `GraphStore` of the whole graph, read-only and by original
    ids: `torch_geometric.loader.NodeLoader((dataset, dataset), PartitionSampler(dataset, ...))`
    makes batches with attributes of nodes and edges (`khop.distributed.stores.dataset_stores`). If
    there are several partitions, the first read connects all trainers: all must read then.

    Attributes:
        folder: the partition folder, or None before `load`.
        partition_idx: the home partition, which this trainer has loaded.
        same_host_reads: True if partitions of this host are read from their files, see `load`.
        node_labels: {node type: [num_nodes, ...]} labels from `whole_node_label_file`, by original
            id.
        graph_mode: placement of the graph for samplers that draw on devices.
        feature_mode: placement of attributes for them: 'CPU', 'ZERO_COPY' or 'CUDA'.

    Example:
        >>> dataset = DistDataset().load(folder, partition_idx=0)
        >>> dataset.meta.node_type("node").count, dataset.parts
        (6, [0])
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder: PartitionFolder | None = None
        self.partition_idx = 0
        self.graph_mode = "ZERO_COPY"
        self.feature_mode = "ZERO_COPY"
        self.node_labels: dict[NodeType, Tensor] = {}
        self._also_serve: list[int] = []
        self.same_host_reads = True
        self._others: list[int] = []
        self._connected_part: Part | None = None
        self._service: PartitionService | None = None
        self._peers: SharedClient | None = None
        self._reader: PartitionReader | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the folder and the endpoints of other partitions, for worker processes."""
        made_again = dict.fromkeys(("_service", "_reader", "_connected_part"))
        return {**self.__dict__, **made_again, "_others": self._parts_to_read()}

    def load(
        self,
        root_dir: str | os.PathLike[str] | None = None,
        partition_idx: int = 0,
        graph_mode: str = "ZERO_COPY",
        input_layout: str = "COO",
        feature_with_gpu: bool = False,
        graph_caching: bool = False,
        device_group_list: object = None,
        whole_node_label_file: str
        | os.PathLike[str]
        | Mapping[NodeType, str | os.PathLike[str]]
        | None = None,
        device: object = None,
        *,
        graph_dir: str | os.PathLike[str] | None = None,
        also_serve: Sequence[int] = (),
        same_host_reads: bool | None = None,
        stores: Mapping[str | tuple[NodeType | EdgeType, str], Callable[[], RowStore]]
        | None = None,
        features_on_disk: bool | Sequence[str] | Literal["auto"] = False,
        disk_memory: int | str | None = None,
        structure_on_disk: bool | Literal["auto"] = False,
    ) -> DistDataset:
        """Open a partition.

        Args:
            root_dir: the partition folder.
            partition_idx: the home partition of this trainer.
            graph_mode: placement of the graph for samplers on devices
                (`MpDistSamplingWorkerOptions.worker_devices`). 'ZERO_COPY': in the host's memory,
                read in place. 'CUDA': each sampler copies it to its device at its start. 'CPU':
                samplers on devices are an error, and trainers that exchange by collective calls
                draw on the CPU. Samplers on the CPU ignore it.
            input_layout: accepted, not needed: the folder has the layout.
            feature_with_gpu: samplers on devices copy the attributes that batches carry to their
                device at their start. If False, they read them in the host's memory, in place.
            graph_caching: accepted, not needed: data is mapped.
            device_group_list: accepted, not needed: each sampler is a process with separate memory.
            device: accepted, not needed: samplers have devices, data has none.
            whole_node_label_file: labels by original id, for folders without labels: batches carry
                them as `y`. A file `.pt` (a tensor, read without unpickling code) or `.npy`, or for
                a heterogeneous graph {node type: file}.
            graph_dir: another name for `root_dir`.
            also_serve: further partitions that this trainer serves: their files are on this
                machine, and they are no trainer's home.
            same_host_reads: read partitions of other trainers on this host from their files, if
                this folder has them and they can be read. Batches are the same, no rows are copied
                between processes, and no server is needed for these partitions. If False, all
                partitions but the home are requested from servers. If None,
                $KHOP_SAME_HOST_READS (0 or 1), or True without it.
            stores: attributes whose rows are elsewhere than in the folder: {(node or edge type,
                name): function that opens a `khop.data.RowStore`}. For nodes of a homogeneous
                graph, {name: function} is enough. Rows are by original id. All trainers name the
                same attributes. A trainer reads the rows of its own part, and its partition server
                serves them. Samplers import the function, so it must belong to a module, or be a
                `functools.partial` of a module's function.
            features_on_disk: attributes of nodes and edges that are larger than memory, by name.
                Their rows are read past the page cache. Rows that are needed again are kept.
                True: all attributes with rows of 64 bytes or more. 'auto': all of these, but for
                the small ones that fit in the available memory beside the structure. The log has
                the choice (`disk-chosen`). If False, files are mapped. Samplers on devices map
                them in any case.
            disk_memory: bytes for what is read past the page cache, which the samplers of this
                trainer divide. A number, or a text such as '4GB'. If None, 1 GB. With 'auto', half
                of the memory that mapped files leave, divided by the trainers of this machine.
            structure_on_disk: also read neighbours and edge ids past the page cache, and times,
                weights and neighbours' original ids where there are any. Row pointers stay
                mapped. 'auto': if they do not fit in the available memory. Samplers on devices,
                `CooperativeLoader` and `inference` map all of it.

        Returns:
            The dataset itself.

        Raises:
            FolderError: the folder is absent, damaged or of another version, or lacks a part here.
            IndexError, TypeError: no such partition.
            KeyError: a store of a type that does not exist.
            ValueError: an unknown graph_mode or $KHOP_SAME_HOST_READS, a store with another number
                of rows, or a store of an attribute that the folder has itself. `features_on_disk`
                names no attribute of the folder, or one with rows of more than 1 MiB.
        """
        del input_layout, graph_caching, device_group_list, device
        if (root_dir is None) == (graph_dir is None):
            raise TypeError("give root_dir (or its other name, graph_dir)")
        if graph_mode not in ("CPU", "ZERO_COPY", "CUDA"):
            raise ValueError(
                f"graph_mode must be 'CPU', 'ZERO_COPY' or 'CUDA' (got '{graph_mode}')"
            )
        folder = PartitionFolder(root_dir if root_dir is not None else str(graph_dir))
        self.partition_idx = folder.check_part(partition_idx)
        self.graph_mode = graph_mode
        self.feature_mode = "CUDA" if feature_with_gpu else "ZERO_COPY"
        self._also_serve = [folder.check_part(part) for part in also_serve]
        self.same_host_reads = maps_same_host(same_host_reads)
        here = (
            range(folder.num_parts)
            if self.same_host_reads
            else (self.partition_idx, *self._also_serve)
        )
        parts = [part for part in here if folder.has_part(part)]
        disk = choose_disk(folder, parts, features_on_disk, structure_on_disk, disk_memory)
        self.folder = folder.attach(open_stores(folder.meta, stores or {}), disk)
        self.close()
        self.node_labels = read_labels(self.meta, whole_node_label_file)
        _loaded.append(weakref.ref(self))
        return self

    @classmethod
    def from_folder(
        cls, root: str | os.PathLike[str], partition_idx: int = 0, **options: Any
    ) -> DistDataset:
        """Open a partition: `DistDataset().load(root, partition_idx, **options)`."""
        return cls().load(root, partition_idx, **options)

    def __repr__(self) -> str:
        """Return text for Python's prompt: folder, home partition and size of the graph."""
        if self.folder is None:
            return f"{type(self).__name__}()"
        nodes = sum(t.count for t in self.meta.node_types)
        edges = sum(t.count for t in self.meta.edge_types)
        return (
            f"{type(self).__name__}({self.where}, partition {self.partition_idx} of "
            f"{self.num_partitions}, {nodes:,} nodes, {edges:,} edges)"
        )

    def _repr_html_(self) -> str:
        return html_table(repr(self), [] if self.folder is None else described_types(self.meta))

    @property
    def meta(self) -> FolderMeta:
        """Description of the partition folder: types, attributes and sizes."""
        return self.opened.meta

    @property
    def parts(self) -> list[int]:
        """Indices of the partition that this trainer has loaded, and of further ones it serves."""
        return sorted({self.partition_idx, *self._also_serve})

    @property
    def where(self) -> str:
        """Path of the folder, for error messages."""
        return f"'{self.opened.root}'"

    @property
    def context(self) -> WorkerContext:
        """Role and rank of this trainer. Without a context, it joins the group by defaults."""
        return require_context()

    @property
    def homes(self) -> list[int]:
        """The partition that each trainer of the group has loaded, by rank."""
        return self.service().homes

    def connect(self) -> None:
        """Connect to the other partitions. All trainers of the group call this together."""
        self.service()

    def split(self, node_type: NodeType, name: str) -> Int64Array:
        """Return new ids, [n] int64 ascending, of the nodes whose attribute `name` is True."""
        return self.opened.split(node_type, name).astype(np.int64)

    def times_of(self, node_type: NodeType, new_ids: Int64Array) -> Int64Array | None:
        """Return [n] int64 keys that sort as the times of `new_ids`. None if the type has none."""
        times = self.opened.node_times(node_type)
        return None if times is None else times[new_ids]

    @property
    def opened(self) -> PartitionFolder:
        """The partition folder. Before `load`, RuntimeError is raised."""
        if self.folder is None:
            raise RuntimeError("the dataset holds nothing yet: call load() first")
        return self.folder

    def local_nodes(self, node_type: NodeType = NODE) -> Tensor:
        """Return original ids of the nodes of this trainer's partition: [n] int64, ascending."""
        ids = self.opened.node_ids(self.partition_idx, node_type)
        return torch.from_numpy(np.sort(ids).astype(np.int64))

    def _new_ids_of(self, original: IntArray, node_type: NodeType) -> Int64Array:
        return self.opened.id_map(node_type)[original].astype(np.int64)

    def to_original_ids(self, new_ids: IntArray, node_type: NodeType = NODE) -> Int64Array:
        """Return the original ids, [n] int64, of nodes by their new ids (folder's numbering)."""
        return self.opened.original_ids(node_type)[new_ids].astype(np.int64)

    def owned_edges(self, edge_type: EdgeType = EDGE) -> Int64Array:
        """Return the edges of a type that this trainer trains on, by original ids: [2, n] int64.

        They are the edges of its home partition, and of partitions that it serves and that are no
        trainer's home. Trainers with the same partition get its edges in turn.
        """
        index = self.edge_type_index(edge_type)
        rank, shares = self.context.rank, []
        for part in range(self.num_partitions):
            owners = self.service().owners(part)
            if rank in owners:
                turn = slice(owners.index(rank), None, len(owners))
                shares.append(Part(self.opened, part).edge_ends(index)[:, turn])
        return np.concatenate(shares, axis=1)

    def service(self) -> PartitionService:
        """Access of this trainer to the partitions. All trainers create it together, once.

        :meta private:
        """
        if self._service is None:
            self._service = PartitionService(
                self.context,
                self.opened,
                self.partition_idx,
                self._also_serve,
                same_host_reads=self.same_host_reads,
            )
            self.context.close_before_leaving(self)  # its servers end then
        return self._service

    def close(self) -> None:
        """Forget the connections to other partitions. The next use makes new ones.

        :meta private:
        """
        self._others, self._connected_part = [], None
        self._service = self._peers = self._reader = None

    def connected_part(self) -> Part:
        """Return the home part with the parts of this host. If there are others, connect first.

        :meta private:
        """
        if self._connected_part is None:
            others = self._parts_to_read()
            self._connected_part = Part(self.opened, self.partition_idx, others)
        return self._connected_part

    def _parts_to_read(self) -> list[int]:
        """Return the other partitions that are read from files. Workers have their trainer's."""
        return self._others if self._service is None else self._service.others

    def peers(self) -> SharedClient:
        """Return this process's connections to the other partitions.

        All trainers make the first call together.

        Raises:
            RuntimeError: in a worker process, if the dataset was not connected before.

        :meta private:
        """
        if self._peers is None:
            if self._service is None and torch.utils.data.get_worker_info() is not None:
                raise RuntimeError(
                    "worker processes cannot meet the other trainers: make the PartitionSampler, "
                    "or call dataset.peers(), before the loader starts them"
                )
            service = self.service()
            self._peers = SharedClient(
                service.endpoints(), service.credentials, service.endpoint_registry
            )
        return self._peers

    @property
    def reader(self) -> PartitionReader:
        """Reader of rows and whole attributes of all partitions.

        :meta private:
        """
        if self._reader is None:
            self._reader = PartitionReader(self.opened, self.partition_idx, self.connected_part)
        return self._reader

    def run_on_rows(self, steps: Callable[[GraphRows], Generator[list[Ticket], None, Any]]) -> Any:
        """Run a generator that requests rows of the graph, and return its result.

        Args:
            steps: function that makes the generator from the graph's rows. If there are several
                partitions, all trainers make the first such call together.

        :meta private:
        """
        with self.reader.session(self.peers) as client:
            return run(steps(GraphRows(GraphView.of_part(self.connected_part()), client)), client)


def check_dataset(data: Any, name: str = "data") -> DistDataset:
    """Check that an argument is a `DistDataset`, and return it.

    Args:
        data: the argument.
        name: its name.

    Raises:
        TypeError: the argument has another type.
    """
    if isinstance(data, DistDataset):
        return data
    remedy = "of a folder, pass DistDataset().load(folder)"
    if not isinstance(data, (str, os.PathLike)):
        remedy += "; graphs in memory have loaders in khop.loader"
    raise TypeError(f"{name} must be a DistDataset (got '{type(data).__name__}'): {remedy}")


_loaded: list[weakref.ref[DistDataset]] = []


def last_loaded() -> DistDataset:
    """Return the `DistDataset` that was loaded last and still exists.

    Raises:
        RuntimeError: there is none.
    """
    for reference in reversed(_loaded):
        dataset = reference()
        if dataset is not None:
            return dataset
    raise RuntimeError("no DistDataset has been loaded in this process: pass dataset=")
