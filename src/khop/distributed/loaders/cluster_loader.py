"""`DistClusterLoader`: batches of whole clusters of a partitioned graph. Runs in the trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from khop.data.arrays import check_range, to_int64
from khop.distributed.dataset import DistDataset
from khop.distributed.graph import PartitionedGraph
from khop.distributed.loaders.collate import Tensors
from khop.distributed.loaders.loader_options import InducedOptions
from khop.distributed.loaders.neighbor_loader import DistNeighborLoader
from khop.distributed.loaders.sampling_options import check_data
from khop.distributed.loaders.split import divide
from khop.loader.inputs import as_tensor
from khop.loader.iteration.resume import EpochProgress
from khop.options import resolved, takes_options
from khop.partition.writing.cluster_ids import CLUSTER
from khop.sampler.plan import EpochPlan
from khop.typing import NODE, Int64Array, Numbers

if TYPE_CHECKING:
    from typing_extensions import Unpack


@takes_options(InducedOptions)
class DistClusterLoader(DistNeighborLoader):
    """Loader of whole clusters: a distributed `khop.loader.ClusterLoader`.

    A batch has all nodes of some clusters, and all edges between these nodes. Nodes are in the
    order in which clusters are drawn, and ascending within a cluster. With the same clusters, seed
    and stream, `ClusterLoader` makes the same batches. Its `ClusterData` then has
    `sparse_format='csc'` for folders of in-neighbours, 'csr' for folders of out-neighbours.

    Method: Cluster-GCN (https://arxiv.org/abs/1905.07953).

    Args:
        data: the trainer's partition, of a homogeneous graph. If None, the graph of this client's
            servers, with `RemoteDistSamplingWorkerOptions`.
        clusters: [n] numbers of the clusters to draw from. If None, this trainer's share of all
            clusters. Shares are even, and mostly of clusters in the trainer's partition.
        assignment: [num_nodes] integers, the cluster of each node. If None, the clusters that the
            folder keeps (`cluster_ids` of partitioners, `khop partition --cluster-ids`).
        halo: also deliver all neighbours of the clusters' nodes, as GNNAutoScale needs
            (https://arxiv.org/abs/2106.05609). A batch then has the edges that lead to the
            clusters' nodes. These nodes come first, and `batch_size` is their number.
        **options: `InducedOptions`. With `num_virtual_ranks`, pass the clusters of all trainers.

    Raises:
        ValueError, TypeError, IndexError: the graph is heterogeneous or has no clusters, or an
            argument is invalid.

    Example:
        >>> dataset = DistDataset().load(folder, partition_idx=0)
        >>> clusters = torch.tensor([0, 0, 1, 1, 2, 2])
        >>> loader = DistClusterLoader(dataset, batch_size=2, assignment=clusters)
        >>> [batch.n_id.tolist() for batch in loader]
        [[0, 1, 2, 3], [4, 5]]
    """

    def __init__(
        self,
        data: DistDataset | None,
        clusters: Numbers | None = None,
        *,
        assignment: Numbers | None = None,
        halo: bool = False,
        **options: Unpack[InducedOptions],
    ) -> None:
        chosen: InducedOptions = resolved(InducedOptions, self, options)
        graph = check_data(data, chosen["edge_dir"], chosen["worker_options"])
        is_whole = chosen["num_virtual_ranks"] is not None
        of_node = _assignment(graph, assignment)
        sizes = np.bincount(of_node)
        if clusters is None or is_whole:
            self._homes = _homes_of(graph, of_node, len(sizes))
        if clusters is not None:
            self.clusters = _checked(clusters, len(sizes))
        elif is_whole:
            self.clusters = np.arange(len(sizes))
        else:
            self.clusters = _divided(graph, self._homes, graph.homes)[graph.context.rank]
        by_cluster, ends = np.argsort(of_node, kind="stable"), np.cumsum(sizes)
        pieces = [by_cluster[ends[c] - sizes[c] : ends[c]] for c in self.clusters.tolist()]
        nodes = np.concatenate([np.empty(0, np.int64), *pieces])
        self._bounds = np.concatenate([[0], np.cumsum(sizes[self.clusters])]).astype(np.int64)
        self._has_halo = halo
        hops, edges = ([-1], "directional") if halo else ([], "induced")
        super().__init__(data, hops, nodes, subgraph_type=edges, **chosen)

    def _num_items(self) -> int:
        return len(self.clusters)

    def _most_seeds(self) -> int:
        largest = np.sort(np.diff(self._bounds))[-self._plan.batch_size :]
        return max(1, int(largest.sum()))

    def _epoch_plan(self, progress: EpochProgress) -> tuple[EpochPlan, Int64Array | None]:
        """Return an epoch's division into batches, and its nodes' positions in order."""
        plan, order = super()._epoch_plan(progress)
        drawn = np.arange(plan.num_seeds) if order is None else order
        bounds = [plan.bounds(batch) for batch in range(plan.num_batches)]
        drawn = drawn[: max((last for _, last in bounds), default=0)]
        positions, counts = self._nodes_of(drawn)
        sizes = [int(counts[low:high].sum()) for low, high in bounds]
        plan = EpochPlan(len(positions), self._most_seeds(), sizes=sizes, keys=plan.keys)
        return plan, positions

    def _nodes_of(self, clusters: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the positions of the nodes of these clusters, one after the other.

        The second value is the number of nodes of each cluster.
        """
        first, counts = self._bounds[clusters], np.diff(self._bounds)[clusters]
        start = np.cumsum(counts) - counts
        return np.repeat(first - start, counts) + np.arange(int(counts.sum())), counts

    def _described_seeds(self, share: Int64Array | None) -> list[Any]:
        if share is None:
            return [*super()._described_seeds(None), self._bounds]
        positions, counts = self._nodes_of(share)
        bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return [*super()._described_seeds(positions), bounds]

    def _shares(self, homes: Sequence[int]) -> list[Int64Array]:
        return _divided(self.data, self._homes[self.clusters], homes)

    def _annotate(self, batch: Any, tensors: Tensors, positions: Int64Array) -> None:
        """Add the number of nodes of clusters, if the batch has other nodes, too."""
        if self._has_halo:
            batch.batch_size = len(positions)


def _assignment(graph: PartitionedGraph, assignment: Numbers | None) -> Int64Array:
    meta = graph.meta
    if meta.heterogeneous:
        raise ValueError("DistClusterLoader takes a homogeneous graph (got one of several types)")
    (node_type,) = meta.node_types
    if assignment is None:
        if not isinstance(graph, DistDataset) or CLUSTER not in node_type.attrs:
            raise ValueError(
                "the clusters are not known: pass assignment=, the cluster of each node, or load a "
                "folder that keeps them (khop partition --cluster-ids)"
            )
        assignment = graph.reader.attribute("node", 0, CLUSTER, graph.peers)
    values = as_tensor(assignment, "assignment")
    if values.dim() != 1 or len(values) != node_type.count:
        raise ValueError(
            f"assignment must hold a cluster for each of {node_type.count} nodes (got "
            f"{list(values.shape)})"
        )
    of_node = to_int64(values, "assignment")
    # A number far beyond the nodes is an error, and would take memory for each number below it.
    check_range(of_node, node_type.count, "assignment")
    return of_node


def _checked(clusters: Numbers, count: int) -> Int64Array:
    chosen = to_int64(as_tensor(clusters, "clusters"), "clusters")
    check_range(chosen, count, "clusters")
    if len(np.unique(chosen)) < len(chosen):
        raise ValueError("clusters names a cluster twice")
    return chosen


def _homes_of(graph: PartitionedGraph, of_node: Int64Array, count: int) -> Int64Array:
    """Return the partition of most nodes of each cluster. `of_node` has each node's cluster."""
    num_parts = graph.num_partitions
    new_ids = graph.to_new_ids(np.arange(len(of_node)), "nodes", NODE)
    owners = graph.meta.node_types[0].book.owner(new_ids)
    held = np.bincount(of_node * num_parts + owners, minlength=count * num_parts)
    homes: Int64Array = np.argmax(held.reshape(count, num_parts), axis=1)
    return homes


def _divided(
    graph: PartitionedGraph, clusters: Int64Array, homes: Sequence[int]
) -> list[Int64Array]:
    """Divide clusters among trainers: for each trainer, the positions of its clusters.

    `clusters` and `homes` have the partition of each cluster and of each trainer.
    """
    order = np.argsort(clusters, kind="stable")
    return [np.sort(share) for share in divide(clusters, order, graph.num_partitions, homes)]
