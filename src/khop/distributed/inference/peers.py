"""Division of nodes among the trainers of layer-wise inference, and access to the others' rows.

Runs in trainers. Trainers agree in three steps: they detect which trainers share the output folder,
publish the nodes that each computes, and start servers for files that other trainers do not see.
The server of a part has its rows. So trainers that share a part also share an output folder: a
trainer that does not see the folder of the part's first owner computes nothing of the part.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Sequence
from pathlib import Path

from khop.codec import from_json, to_json
from khop.distributed.dataset import DistDataset
from khop.distributed.inference.files import (
    PROBE,
    RowSpec,
    RowWriter,
    Share,
    check_shares,
    clear_folder,
)
from khop.distributed.inference.neighborhoods import FullNeighbors
from khop.distributed.job.context import WorkerContext
from khop.distributed.membership.barrier import Barrier
from khop.distributed.partitions.service import PartitionService
from khop.distributed.rpc.partition_client import PartitionClient
from khop.distributed.tensors import row_files
from khop.errors import RendezvousError
from khop.storage.part import Part


class InferencePeers:
    """A trainer's view of layer-wise inference: the nodes, files and servers of all trainers.

    `name` is the inference's name, the same in all trainers. `context` is the trainer's group,
    whose members wait for each other at `barrier`. `data` is the graph.

    Attributes:
        parts: the parts whose files are on this machine, by number.
        root: the output folder, as absolute path.
        shares: nodes that each trainer computes, in the order of their ids.
        own: this trainer's shares, with the readers of their neighbours.
        visible: ranks of the trainers whose files are in this trainer's output folder.
        folder_client: client for rows of parts that are not on this machine. None if all are.
        output_client: client for outputs that this trainer does not see. None if it sees all.
    """

    def __init__(
        self, context: WorkerContext, barrier: Barrier, name: str, data: DistDataset, root: Path
    ) -> None:
        self._context = context
        self._barrier = barrier
        self._name = name
        self._service: PartitionService = data.service()
        self._data = data
        folder = data.opened
        self.parts = {p: Part(folder, p) for p in range(folder.num_parts) if folder.has_part(p)}
        self.root = root.absolute()
        self.shares: list[Share] = []
        self.own: list[tuple[Share, FullNeighbors]] = []
        self.visible: list[int] = [context.rank]
        self.folder_client: PartitionClient | None = None
        self.output_client: PartitionClient | None = None
        self._servers: PartitionService | None = None

    def meet(
        self, edge_attrs: Sequence[Sequence[str]], num_layers: int, overwrite: bool, timeout: float
    ) -> None:
        """Agree with the other trainers on the nodes that each computes, on files and servers.

        Args:
            edge_attrs: names of the edge attributes that layers get, for each edge type.
            num_layers: number of layers, the same for all.
            overwrite: replace outputs in the folder.
            timeout: seconds that a request to another trainer may take.

        Raises:
            FileExistsError: the folder is not empty.
            RendezvousError: trainers contradict each other, or one has failed.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        probe = self.root / f"{PROBE}{uuid.uuid4().hex}"
        probe.touch()
        try:
            began = self._barrier.all_gather("begin", [probe.name, num_layers])
            counts = [count for _, count in began]
            if len(set(counts)) > 1:
                raise RendezvousError(f"trainers have models of {counts} layers")
            seen = [r for r, (name, _) in enumerate(began) if (self.root / name).exists()]
            self.visible = sorted({*seen, self._context.rank})
            if self.visible[0] == self._context.rank:
                clear_folder(self.root, overwrite, [name for name, _ in began])
            visible = self._barrier.all_gather("visible", self.visible)
            for part in range(self._data.num_partitions):
                owners = self._service.owners(part)
                computing = [r for r in owners if owners[0] in visible[r]]
                if self._context.rank in computing:
                    self.own.append(self._own_share(part, computing, edge_attrs))
            lacks_parts = len(self.parts) < self._data.num_partitions
            gathered = self._barrier.all_gather(
                "shares", [lacks_parts, to_json([share for share, _ in self.own])]
            )
        finally:
            with contextlib.suppress(OSError):
                probe.unlink()
        shares = [
            from_json(Share, share, f"a share of trainer {rank}")
            for rank, (_, its) in enumerate(gathered)
            for share in its
        ]
        self.shares = sorted(shares, key=lambda share: (share.part, share.index))
        check_shares(self.shares, [t.count for t in self._data.meta.node_types])
        self._connect(visible, timeout)
        if any(lacks for lacks, _ in gathered):
            self._service.endpoints()
            if lacks_parts:
                self.folder_client = self._service.client(timeout)

    def _own_share(
        self, part: int, computing: Sequence[int], edge_attrs: Sequence[Sequence[str]]
    ) -> tuple[Share, FullNeighbors]:
        neighbors = FullNeighbors(self.parts[part], edge_attrs)
        index = computing.index(self._context.rank)
        ranges = neighbors.share(index, len(computing))
        return Share(self._context.rank, part, index, len(computing), ranges), neighbors

    def _connect(self, visible: Sequence[Sequence[int]], timeout: float) -> None:
        """Start and connect to servers if a trainer does not see another one's files.

        `visible` has, for each trainer, the ranks whose files it sees.
        """
        context, data = self._context, self._data
        if context.world_size > 1:  # trainers wait for each other at exit: one has the job's store
            context.keep_for_others(self._end_servers)
        if any(len(seen) < context.world_size for seen in visible):
            requests = [f"{row_files.__name__}:{self.root}"]
            self._servers = PartitionService(
                context, data.opened, data.partition_idx, data.parts, requests
            )
            self.output_client = self._servers.state_client(timeout)

    def writer(self, layer: int, node_type: int, share: Share, spec: RowSpec) -> RowWriter:
        """Return the writer of the file of a layer's outputs for a type's nodes of a share."""
        name = self._data.meta.node_types[node_type].name
        file = row_files.output_file(self.root, layer, name, share.file_name)
        return RowWriter(file, spec, share.num_rows(node_type))

    def end(self, wait: bool) -> None:
        """End this trainer's servers. With `wait`, wait first until no trainer needs them."""
        if self._servers is None:
            return
        members = self._context.members
        with contextlib.suppress(RuntimeError):  # RendezvousError included: they have ended
            members.publish(f"{self._name}/closed", True)
            if wait:
                members.all_gather(f"{self._name}/closed", "close their outputs")
        self._end_servers()

    def _end_servers(self) -> None:
        if self._servers is not None:
            self._servers.close()

    def close_clients(self) -> None:
        for client in (self.folder_client, self.output_client):
            if client is not None:
                client.close()

    def close(self) -> None:
        """End this trainer's servers and connections at once, after a failed inference."""
        self.close_clients()
        self._end_servers()
