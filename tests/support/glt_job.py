"""A trainer with a part of arrays, which then partitions with others: RANK PORT PORT FOLDER."""

import sys
from pathlib import Path

import torch
from test_glt_distributed import EDGES, NUM, X, part_of_arrays

from khop import glt


def check(batch):
    """Raise AssertionError unless a batch is what the graph says."""
    assert torch.equal(batch.x.view(-1), batch.node.float())
    assert torch.equal(batch.y, batch.node)
    assert torch.equal(batch.edge_attr.view(-1), batch.edge.float())
    assert torch.equal(batch.node[batch.edge_index], EDGES.flip(0)[:, batch.edge])
    assert batch.batch_size == 5


def main() -> None:
    """Load, and partition."""
    rank, port, other_port, root = int(sys.argv[1]), *sys.argv[2:5]
    glt.distributed.init_worker_group(2, rank, "glt-job")
    assert glt.distributed.get_context().rank == rank
    loader = glt.distributed.DistNeighborLoader(
        part_of_arrays(rank),
        [3, 3],
        torch.arange(NUM // 2) + rank * NUM // 2,
        batch_size=5,
        shuffle=True,
        with_edge=True,
        with_weight=True,
        collect_features=True,
        worker_options=glt.distributed.CollocatedDistSamplingWorkerOptions("localhost", port),
    )
    batches = list(loader)
    assert len(batches) == 4
    for batch in batches:
        check(batch)
    glt.distributed.barrier()
    mine = slice(rank, None, 2)  # any piece will do
    ids = torch.arange(200)[mine]
    glt.distributed.DistRandomPartitioner(
        Path(root) / f"p{rank}",
        NUM,
        EDGES[:, mine],
        ids,
        X[mine],
        torch.arange(NUM)[mine],
        num_parts=2,
        current_partition_idx=rank,
        master_addr="localhost",
        master_port=other_port,
    ).partition()


if __name__ == "__main__":
    main()
