"""Trainer with a part of arrays, which then partitions with others: RANK PORT PORT FOLDER."""

import sys
from pathlib import Path

import torch

from khop import glt
from support.glt_parts import EDGES, NUM, X, part_of_arrays


def check(batch):
    """Raise AssertionError unless a batch agrees with the graph."""
    assert torch.equal(batch.x.view(-1), batch.node.float())
    assert torch.equal(batch.y, batch.node)
    assert torch.equal(batch.edge_attr.view(-1), batch.edge.float())
    assert torch.equal(batch.node[batch.edge_index], EDGES.flip(0)[:, batch.edge])
    assert batch.batch_size == 5


def check_rows_of_all(rank):
    """Raise AssertionError unless rows of both trainers are found by id."""
    partitions = glt.distributed.rpc_sync_data_partitions(2, rank)
    own, odd = torch.arange(rank, NUM, 2), torch.arange(NUM) % 2
    rows = glt.distributed.DistFeature(
        2,
        rank,
        glt.data.Feature(X[own], glt.utils.id2idx(own), with_gpu=False),
        odd,
        rpc_router=glt.distributed.RpcDataPartitionRouter(partitions),
    )
    ids = torch.tensor([3, 0, 39, 3, 12])
    assert torch.equal(rows[ids], X[ids])
    assert torch.equal(rows.async_get(ids).wait(), X[ids])
    assert torch.equal(rows.cpu_get(own[:3]), X[own[:3]])
    glt.distributed.barrier()  # the other trainer has its rows


def check_induced(rank, dataset):
    """Raise AssertionError unless edges are ordered by part, own part first, and then by node."""
    seeds = torch.arange(6)
    loader = glt.distributed.DistSubGraphLoader(
        dataset, seeds, [-1], batch_size=6, with_edge=True, collect_features=True
    )
    (batch,) = loader
    nodes = batch.node
    known = torch.cat([EDGES[1, torch.isin(EDGES[0], seeds)], seeds]).unique()
    assert torch.equal(nodes, known) and torch.equal(nodes[batch.mapping], seeds)
    inside = torch.isin(EDGES, nodes).all(0).nonzero().view(-1)
    assert torch.equal(batch.edge.sort().values, inside)
    assert torch.equal(batch.edge_attr.view(-1), batch.edge.float())
    drew = EDGES[0, batch.edge]
    assert torch.equal(nodes[batch.edge_index[1]], drew)
    turns = (drew - rank) % 2 * NUM + drew
    assert torch.equal(turns, turns.sort().values)
    glt.distributed.barrier()


def check_all2all(rank, dataset):
    """Raise AssertionError unless `use_all2all=True` gives the batches of messages."""
    torch.distributed.init_process_group(
        "gloo", world_size=2, rank=rank, store=glt.distributed.get_context().store
    )
    workers = glt.distributed.CollocatedDistSamplingWorkerOptions
    seeds = torch.arange(NUM // 2) + rank * NUM // 2

    def loader(use_all2all, to_device=None):
        return glt.distributed.DistNeighborLoader(
            dataset,
            [3, 3],
            seeds,
            5,
            with_edge=True,
            collect_features=True,
            random_seed=3,
            to_device=to_device,
            worker_options=workers(use_all2all=use_all2all),
        )

    for to_device in (None, f"emulated:{rank}"):
        exchanged = loader(True, to_device)
        for ours, theirs in zip(exchanged, loader(False), strict=True):
            check(ours)
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[n], theirs[n]) for n in ("node", "edge", "edge_index"))
        assert exchanged.stats().rows["remote"] > 0
        drawn_by = type(exchanged._backend).__name__
        assert drawn_by == ("ExchangeBackend" if to_device is None else "DeviceExchangeBackend")
    torch.distributed.destroy_process_group()


def main() -> None:
    """Load, look up rows, and partition."""
    rank, port, other_port, root = int(sys.argv[1]), *sys.argv[2:5]
    glt.distributed.init_worker_group(2, rank, "glt-job")
    assert glt.distributed.get_context().rank == rank
    dataset = part_of_arrays(rank)
    loader = glt.distributed.DistNeighborLoader(
        dataset,
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
    check_all2all(rank, dataset)
    check_induced(rank, dataset)
    check_rows_of_all(rank)
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
