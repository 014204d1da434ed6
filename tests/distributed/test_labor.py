"""LABOR over partitions and graph servers: the batches of the in-memory loader, bit for bit."""

import dataclasses

import pytest
import torch
from torch_geometric.sampler import NodeSamplerInput

from khop.channel.message import pack, unpack
from khop.distributed import (
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
    PartitionSampler,
    RemoteDistSamplingWorkerOptions,
)
from khop.distributed.remote.server.validation import SessionValidator
from khop.distributed.rpc.partition_handler import RequestHandler
from khop.distributed.rpc.protocol import Sample, pack_rows, request_header
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.errors import ProtocolError
from khop.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader
from khop.sampler import Labor, NeighborSampler, RippleWalk, SaintNodes, SaintWalks, SamplingSpec
from khop.sampler.pyg.draw_scope import BatchKey
from khop.sampler.requests import HopRequest, RowSet
from khop.sampler.rows.collect import CollectSpec
from khop.storage.folder import PartitionFolder
from khop.storage.part import Part
from support.cluster import servers as cluster, twins
from support.cluster.twins import CITES, WRITES

SEEDS = torch.tensor([*range(0, 60, 3), 5, 5, 149, 11])  # twice the same, an isolated one
PAPERS = torch.tensor([3, 3, 119, *range(20)])
COMMON = {"batch_size": 8, "shuffle": True, "seed": 7}
ALL = {"collect_features": True, "with_edge": True}


CASES = [
    ("labor", Labor([3, -1, 2]), {}),
    ("labor", Labor([4, 4], layer_dependency=False), {}),
    ("labor", Labor([3, 3], weight_attr="edge_weight"), {}),
    ("labor", Labor([3, 3]), {"weight_attr": "edge_weight"}),
    ("labor", Labor([3, 2]), {"disjoint": True}),
    ("labor", Labor([3, 2]), {"subgraph_type": "induced"}),
    ("labor", Labor([3, 2]), {"subgraph_type": "bidirectional"}),
    ("labor_time", Labor([3, 3]), {"time_attr": "time"}),
    ("labor_time", Labor([2, 3], weight_attr="edge_weight"), {"time_attr": "time"}),
]


@pytest.mark.parametrize("some_parts,kind,method,options", twins.with_parts(CASES))
def test_homogeneous(twin_root, some_parts, kind, method, options):
    """Each option and what goes with it, in one part and in several."""
    data = twins.homogeneous()
    for num_parts in some_parts:
        with twins.open_dataset(twin_root("homogeneous", num_parts, kind), num_parts) as dataset:
            ours = DistNeighborLoader(dataset, method, SEEDS, **ALL, **COMMON, **options)
            twin = NeighborLoader(data, method, SEEDS, **COMMON, **options)
            batches = twins.same_epochs(ours, twin)
        assert sum(batch.edge_index.size(1) for batch in batches) > 50


@pytest.mark.parametrize("num_workers", [1, 3])
def test_samplers(twin_root, num_workers):
    """The method reaches sampler processes, and neighbours along edges have ids of their own."""
    root = twin_root("homogeneous", 3, "labor", "by_src")
    with twins.open_dataset(root, 3) as dataset:
        ours = DistNeighborLoader(
            dataset,
            Labor([3, 4]),
            SEEDS,
            worker_options=twins.workers(num_workers),
            **ALL,
            **COMMON,
        )
        twin = twins.make_twin(
            NeighborLoader, twins.homogeneous(), Labor([3, 4]), SEEDS, "by_src", **COMMON
        )
        twins.same_epochs(ours, twin, 1, "by_src")
        ours.shutdown()


@pytest.mark.parametrize("num_parts,kind,options", [
    (1, "labor", {}),
    (3, "labor", {}),
    (2, "labor", {"weight_attr": "edge_weight"}),
    (3, "labor", {"disjoint": True}),
    (2, "labor_time", {"time_attr": "time"}),
])  # fmt: skip
def test_heterogeneous(twin_root, num_parts, kind, options):
    """Numbers are those of node types, whatever the edge type; fan-outs differ by edge type."""
    data, seeds = twins.heterogeneous(), ("paper", PAPERS)
    fanouts = {edge_type: [3, 2] for edge_type in data.edge_types}
    fanouts |= {CITES: [0, 2], WRITES: [2, -1]}
    root = twin_root("heterogeneous", num_parts, kind)
    with twins.quiet(), twins.open_dataset(root, num_parts) as dataset:
        method = Labor(fanouts)
        ours = DistNeighborLoader(dataset, method, seeds, **ALL, **COMMON, **options)
        twins.same_epochs(ours, NeighborLoader(data, method, seeds, **COMMON, **options))


def test_links_and_subgraphs(twin_root):
    """The other loaders, and the ends of negatives."""
    data = twins.homogeneous()
    links = {"edge_label_index": data.edge_index[:, :40], "neg_sampling": "binary"}
    with twins.open_dataset(twin_root("homogeneous", 2, "labor"), 2) as dataset:
        ours = DistLinkNeighborLoader(dataset, Labor([3, 2]), **links, **ALL, **COMMON)
        twins.same_epochs(ours, LinkNeighborLoader(data, Labor([3, 2]), **links, **COMMON))
        ours = DistSubGraphLoader(dataset, SEEDS, Labor([3]), **ALL, **COMMON)
        twins.same_epochs(ours, SubGraphLoader(data, SEEDS, Labor([3]), **COMMON))


def test_partition_sampler(twin_root):
    """Fan-outs may be set: a list is uniform sampling again."""
    data = twins.homogeneous()
    inputs, key = NodeSamplerInput(None, SEEDS), BatchKey(5, 3)
    with twins.open_dataset(twin_root("homogeneous", 3, "labor"), 3) as dataset:
        samplers = PartitionSampler(dataset, Labor([3, 2])), NeighborSampler(data, Labor([3, 2]))
        outputs = []
        for fanouts in (None, [3, 2], Labor([3, 2])):
            for sampler in samplers:
                if fanouts is not None:
                    sampler.num_neighbors = fanouts
                assert sampler.num_neighbors == [3, 2]
                outputs.append(sampler.sample_from_nodes(inputs, key).node)
    for ours, theirs in zip(outputs[::2], outputs[1::2], strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(outputs[0], outputs[4])
    assert not torch.equal(outputs[0], outputs[2])


def test_clients_of_graph_servers(tmp_path):
    """Two servers draw for a client that passes the method along, of the kernels or a program."""
    data, root = twins.homogeneous(), tmp_path / "parts"
    twins.partitioned(data, root, 3, "labor")
    with cluster.cluster(root, [[0, 2], [1]], 1) as servers, servers.client():
        for method in (
            Labor([3, 2], weight_attr="edge_weight"),
            Labor([3, 2], importance=1, sequential=False, edge_norm="ht"),
            SaintWalks(3),
            SaintNodes(9),
            RippleWalk(30),
        ):
            ours = DistNeighborLoader(
                None,
                method,
                SEEDS,
                worker_options=RemoteDistSamplingWorkerOptions(num_workers=1),
                **ALL,
                **COMMON,
            )
            twins.same_epochs(ours, NeighborLoader(data, method, SEEDS, **COMMON))
            ours.shutdown()


def test_folders_without_neighbours_ids(twin_root):
    """Said when the loader is made, with what to do; one part needs nothing."""
    for num_parts in (1, 2):
        root = twin_root("homogeneous", num_parts, "plain")
        with twins.open_dataset(root, num_parts) as dataset:

            def make(dataset=dataset):
                return DistNeighborLoader(dataset, Labor([3]), SEEDS, **ALL, **COMMON)

            if num_parts == 1:
                twin = NeighborLoader(twins.homogeneous(), Labor([3]), SEEDS, **COMMON)
                twins.same_epochs(make(), twin)
                continue
            message = r"partition again with neighbor_ids=True \(--neighbor-ids\)"
            with pytest.raises(ValueError, match=message):
                make()
            with pytest.raises(ValueError, match=message):
                PartitionSampler(dataset, Labor([3]))


def test_states_know_the_method(twin_root):
    """A loader resumes neither the state of another method nor that of other options."""
    with twins.open_dataset(twin_root("homogeneous", 2, "labor"), 2) as dataset:

        def make(fanouts):
            return DistNeighborLoader(dataset, fanouts, SEEDS, **ALL, **COMMON)

        state = make(Labor([3, 2])).state_dict()
        make(Labor([3, 2])).load_state_dict(state)
        twin = NeighborLoader(twins.homogeneous(), Labor([3, 2]), SEEDS, **COMMON)
        assert twin.state_dict().keys() == state.keys()
        for other in ([3, 2], Labor([3, 2], layer_dependency=False), Labor([3, 1])):
            with pytest.raises(ValueError, match="other options of sampling"):
                make(other).load_state_dict(state)


def test_servers_refuse_what_cannot_be_drawn(twin_root):
    """Of folders without the ids, and with options that the method does not know: by name."""
    labor = SamplingSpec(((3, 2),), method=Labor([3, 2]).spec())
    collect = CollectSpec([[]], [[]], [True])
    sound, without = (
        PartitionFolder(twin_root("homogeneous", 2, kind)) for kind in ("labor", "plain")
    )
    SessionValidator(sound.meta).pipeline(PipelineSpec(labor, collect))
    with pytest.raises(ProtocolError, match="partitioned without neighbours' original ids"):
        SessionValidator(without.meta).pipeline(PipelineSpec(labor, collect))
    for wrong in ({"replace": True}, {"last": True}):
        spec = PipelineSpec(dataclasses.replace(labor, **wrong), collect)
        with pytest.raises(ProtocolError, match="LABOR draws without replacement"):
            SessionValidator(sound.meta).pipeline(spec)
    rows, arrays = pack_rows(RowSet(torch.arange(3).numpy()))
    hop = HopRequest(3, False, True, 1, method=labor.method)
    header = request_header(Sample(0, rows, hop), 1, part=0)
    for folder in (sound, without):
        reply, _ = unpack(RequestHandler(Part(folder, 0))(pack(header, arrays)))
        refused = "LABOR needs a graph with the neighbours' original ids" in str(reply.get("error"))
        assert refused == (folder is without)
