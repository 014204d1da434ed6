"""What graph servers say of the graph is what the folder says."""

import numpy as np
import pytest
import torch

from khop.channel.shared import share
from khop.codec import from_json
from khop.distributed.processes.child import ChildProcess
from khop.distributed.remote.client.batch_checks import BatchSchema
from khop.distributed.remote.messages import (
    DescribeGraph,
    DeviceCount,
    HomeEdges,
    NodeTimes,
    Split,
    ToNewIds,
    ToOriginalIds,
    read_json,
)
from khop.distributed.remote.server.graph_handler import MAX_ROWS, GraphRequestHandler, with_labels
from khop.distributed.rpc.frame_handler import finish
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.errors import ProtocolError, RendezvousError
from khop.partition import PartitionFolder
from khop.sampler.spec import SamplingSpec
from khop.storage.folder import FolderMeta
from support.cluster.receiving import collect_all, training
from support.cluster.serving import client_of, serving


def test_about_the_graph(graph, folder_of):
    """Numberings, splits and edges, by original ids."""
    root = folder_of("random", 3)
    folder = PartitionFolder(root)
    with serving(root, 2) as served, client_of(served) as client:
        client.wait_for_servers()
        content = read_json(client.request(1, DescribeGraph()).arrays, "it")
        assert content["parts"] == [1]
        assert content["fingerprint"] == folder.fingerprint
        meta = from_json(FolderMeta, content["meta"], "it")
        assert meta == folder.meta

        ids = np.array([5, 0, 499, 5])
        (new,) = client.request(1, ToNewIds(0), [ids]).arrays
        assert np.array_equal(new, folder.id_map("node")[ids])
        (back,) = client.request(0, ToOriginalIds(0), [new]).arrays
        assert np.array_equal(back, ids)

        total, new, original = client.request(0, Split(0, "train_mask", 0)).arrays
        assert total.tolist() == [int(graph.train_mask.sum())]
        assert np.array_equal(np.sort(original), torch.where(graph.train_mask)[0].numpy())
        assert np.array_equal(folder.id_map("node")[original], new)
        rest = client.request(0, Split(0, "train_mask", 10)).arrays
        assert np.array_equal(rest[1], new[10:])

        edges = []
        for part, rank in ((0, 0), (1, 1), (2, 0)):
            bounds = folder.meta.edge_types[0].bounds
            count = bounds[part + 1] - bounds[part]
            for begin in range(3):  # in three turns
                request = HomeEdges(0, part, begin, count, 3)
                edges.append(client.request(rank, request).arrays[0])
        found = np.concatenate(edges, axis=1)
        expected = graph.edge_index.numpy()
        assert sorted(zip(*found.tolist(), strict=True)) == sorted(
            zip(*expected.tolist(), strict=True)
        )

        for request, arrays, error in (
            (ToNewIds(0), [np.array([500])], IndexError),
            (ToNewIds(0), [np.array([-1])], IndexError),
            (ToNewIds(1), [ids], ProtocolError),
            (ToNewIds(-1), [ids], ProtocolError),
            (ToNewIds(0), [], ProtocolError),
            (NodeTimes(0), [ids], KeyError),
            (Split(0, "x", 0), [], KeyError),
            (HomeEdges(0, 1, 0, 1, 1), [], ProtocolError),
        ):
            with pytest.raises(error):
                client.request(0, request, arrays)
        assert client.request(0, DeviceCount()).arrays[0].tolist() == [0]


def test_replies_are_bounded(folder_of):
    """Nobody gets more rows at a time than `MAX_ROWS`, whatever they ask for."""
    folder = PartitionFolder(folder_of("random", 1))
    answers = GraphRequestHandler(folder, folder.meta, 0, [0])
    with pytest.raises(ProtocolError, match="more than"):
        finish(answers._to_new_ids(ToNewIds(0), [np.zeros(MAX_ROWS + 1, np.int64)]))


def test_labels(graph, folder_of):
    """Labels that a folder does not hold come with the batches, by original id."""
    root = folder_of("random", 2)
    folder = PartitionFolder(root)
    labels = np.stack([np.arange(500), -np.arange(500)], 1)
    meta = with_labels(folder.meta, {0: labels})
    sampling = SamplingSpec.create([3, 3], [t.name for t in meta.edge_types])
    spec = PipelineSpec(sampling, collect_all(meta, sampling))
    with serving(root, 0, num_servers=2) as served:
        for rank in range(2):
            memory = share({"0": labels})
            served.start(rank, descriptors=[memory], has_labels=True)
        schema = BatchSchema.create(meta, spec)
        with training(served, spec, servers=[1], schema=schema) as trainer:
            epoch, _ = trainer.open(np.arange(40)[None])
            trainer.ask(epoch, [0])
            named = trainer.take(epoch, 0).named()
            ids = named["n0.id"][0]
            assert np.array_equal(named["n0.y"][0], labels[ids])
            assert np.array_equal(named["n0.x"][0][:, 0], ids.astype(np.float32))
            del named, ids
        with client_of(served) as client:
            content = read_json(client.request(0, DescribeGraph()).arrays, "it")
            attrs = content["meta"]["node_types"][0]["attrs"]
            assert attrs["y"]["stored"] == attrs["y"]["delivered"] == ["int64", [2]]


def test_contradictions(folder_of):
    """Servers that do not fit together end with an error that says why."""
    with serving(folder_of("random", 2), 1, num_servers=2) as served:
        with pytest.raises(RendezvousError, match="already, which is alive"):
            run_to_error(served, rank=0, port=served_elsewhere(served))
        with pytest.raises(RendezvousError, match="num_servers=1"):
            run_to_error(served, rank=0, num_servers=1, port=served_elsewhere(served))
        with pytest.raises(RendezvousError, match="another partition folder"):
            run_to_error(served, rank=1, root=str(folder_of("random", 3)))
        with pytest.raises(RendezvousError, match="cannot listen"):
            run_to_error(served, rank=0)
        with pytest.raises(ValueError, match="2 partitions for 3"):
            run_to_error(served, rank=1, num_servers=3)
        with pytest.raises(ValueError, match="rank 2 is not one of 2"):
            run_to_error(served, rank=2)


def served_elsewhere(served):
    """A free port."""
    from support.cluster import jobs

    del served
    return jobs.free_port()


def run_to_error(served, **config):
    """Starts a server that cannot last, and raises what it says."""
    from khop.channel.control import Op
    from khop.distributed.processes.child import wait_for_message
    from khop.distributed.rpc.protocol import rebuild_error
    from support.cluster.serving import PROGRAM

    process = ChildProcess(PROGRAM, {**served.config, **config})
    try:
        while (message := wait_for_message(process.line)) is not None:
            if message.op is Op.ERROR:
                raise rebuild_error(message.json(), "the server")
        raise AssertionError(f"no error: it {process.exit_status()}")
    finally:
        process.close()
