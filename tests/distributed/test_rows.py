"""Rows by new id: from files at hand, from copies of hot rows, from servers; all at once."""

import contextlib

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

from khop.distributed.inference.files import (
    RowSpec,
    RowWriter,
    Share,
    ShareRows,
)
from khop.distributed.rpc.endpoint import Endpoint
from khop.distributed.rpc.partition_client import PartitionClient
from khop.distributed.rpc.partition_server import RequestHandler
from khop.distributed.tensors.row_files import output_file, request_types
from khop.errors import PartitionUnavailableError
from khop.partition import PartitionFolder, RandomPartitioner
from khop.sampler.rows.row_fetcher import FetchedRows, PartRows
from khop.storage.part import Part
from support.cluster.part_servers import serving


@pytest.fixture
def mixed(graph):
    """All nodes, shuffled, some twice."""
    return np.random.default_rng(0).permutation(np.r_[0 : graph.num_nodes, 3:50])


@pytest.mark.parametrize("at_hand", [{1}, {1, 2}, {0, 1, 2}])
@pytest.mark.parametrize("method", ["random", "frequency"])
def test_attributes(folder_of, tmp_path, mixed, method, at_hand):
    """Whatever parts are on the machine: attributes of any dtype, and original ids."""
    folder = PartitionFolder(folder_of(method, 3))
    parts = {p: Part(folder, p) for p in range(3)}
    original = np.concatenate([folder.node_ids(p, "node") for p in range(3)])[mixed]
    away = {p: RequestHandler(part) for p, part in parts.items() if p not in at_hand}
    with (
        serving(away, tmp_path) as endpoints,
        contextlib.closing(PartitionClient(endpoints)) as client,
    ):
        near = {p: parts[p] for p in at_hand}
        for name, values in (
            ("id", original),
            ("half", original.astype(np.float16)),
            ("x", np.repeat(original[:, None], 5, 1).astype(np.float32)),
        ):
            reader = FetchedRows(PartRows(near[1], "node", 0, [name], client, near), client)
            assert np.array_equal(reader.gather(mixed), values)
            out = np.zeros((7, *values.shape[1:]), reader.gather(mixed[:1]).dtype)
            assert reader.gather(mixed[:7], out) is out and np.array_equal(out, values[:7])
            assert len(reader.gather(mixed[:0])) == 0


def test_copies_are_not_asked_for(folder_of):
    """Rows that the home part has copies of need no server: here there is none."""
    folder = PartitionFolder(folder_of("frequency", 2))
    part = Part(folder, 0)
    hot = np.asarray(folder.open("part-0/cache/node/new_id.npy"), np.int64)
    reader = FetchedRows(PartRows(part, "node", 0, ["x"], None), None)
    rows = reader.gather(hot)
    assert len(hot) and np.array_equal(
        rows[:, 0], folder.node_ids(1, "node")[hot - part.meta.node_types[0].bounds[1]]
    )


@pytest.mark.parametrize("visible", [[0, 1], [0], [1]])
def test_outputs(tmp_path, visible):
    """Rows of shares of two trainers, one without nodes of the type, one with two parts."""
    graph = HeteroData()
    graph["a"].num_nodes, graph["b"].num_nodes = 12, 3
    graph["a", "r", "b"].edge_index = torch.zeros(2, 1, dtype=torch.int64)
    RandomPartitioner.from_data(graph, tmp_path / "parts", 3).partition()
    shares = [
        Share(0, 0, 0, 2, [(0, 2), (0, 0)]),
        Share(0, 0, 1, 2, [(2, 4), (0, 0)]),
        Share(0, 1, 0, 1, [(4, 9), (0, 2)]),
        Share(1, 2, 0, 1, [(9, 12), (2, 3)]),
    ]
    spec = RowSpec("int64", "int64", (2,))
    for rank in (0, 1):
        for share in shares:
            for i, (low, high) in enumerate(share.ranges):
                if share.rank == rank and low < high:
                    file = output_file(tmp_path / str(rank), 0, "ab"[i], share.file_name)
                    writer = RowWriter(file, spec, high - low)
                    writer.append(np.stack([np.arange(low, high), np.full(high - low, i)], 1))
                    writer.finish()
                    for seen in set(visible) - {rank}:
                        link = output_file(tmp_path / str(seen), 0, "ab"[i], share.file_name)
                        link.parent.mkdir(parents=True, exist_ok=True)
                        link.hardlink_to(file)
    handlers = {}
    for share in shares:
        if share.rank not in visible:
            part = Part(PartitionFolder(tmp_path / "parts"), share.part)
            types = request_types(part, str(tmp_path / str(share.rank)))
            handlers[share.part] = RequestHandler(part, types=types)
    with (
        serving(handlers, tmp_path) as endpoints,
        contextlib.closing(PartitionClient(endpoints)) as client,
    ):
        for i, ids in enumerate((np.array([11, 0, 8, 4, 3, 11]), np.array([2, 0, 1]))):
            fetcher = ShareRows(
                tmp_path / str(visible[0]), shares, 0, (i, "ab"[i]), spec, visible, client
            )
            rows = FetchedRows(fetcher, client).gather(ids)
            assert np.array_equal(rows, np.stack([ids, np.full(len(ids), i)], 1))
        if handlers:
            client.close()
            with pytest.raises(RuntimeError, match="the connections have been closed"):
                FetchedRows(fetcher, client).gather(np.array([0, 2]))


def test_share_without_rows(tmp_path):
    """It has no file, and none is opened."""
    share, spec = Share(0, 0, 0, 1, [(0, 0)]), RowSpec("float16", "float16", (2,))
    fetcher = ShareRows(tmp_path, [share], 0, (0, "a"), spec, [0], None)
    assert FetchedRows(fetcher, None).gather(np.zeros(0, np.int64)).shape == (0, 2)


def test_server_that_is_gone(tmp_path):
    """The error says whose outputs cannot be had."""
    client = PartitionClient({0: Endpoint(f"ipc://{tmp_path / 'nobody'}")}, timeout=0.3)
    fetcher = ShareRows(
        tmp_path,
        [Share(3, 0, 0, 1, [(0, 4)])],
        0,
        (0, "a"),
        RowSpec("int8", "int8", ()),
        [0],
        client,
    )
    with pytest.raises(PartitionUnavailableError, match=r"partition 0 at .* unreachable"):
        FetchedRows(fetcher, client).gather(np.array([1]))
    client.close()
