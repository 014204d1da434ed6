"""Folders without original ids of edges: batches number edges as the folder does.

The twin is the graph in memory whose edge list is in the folder's order. So every id, attribute and
draw is that of a graph that was given in this order, whatever the mode.
"""

import numpy as np
import pytest
import torch
from torch_geometric.loader import NeighborLoader as PygNeighborLoader

from khop.distributed import (
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
    PartitionSampler,
    shutdown_worker_group,
)
from khop.glt.partition import build_partition_feature
from khop.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader
from khop.partition import (
    FolderSummary,
    PartitionFolder,
    folder_source,
    from_distdgl,
    repartition,
    to_distdgl,
    verify_folder,
)
from khop.sampler import NeighborSampler, random_walk
from support.cluster import twins
from support.cluster.servers import cluster

SOME = {"batch_size": 16, "shuffle": True, "seed": 5}
ALL = {**SOME, "with_edge": True, "collect_features": True}
SEEDS = torch.arange(0, 120, 2)


def in_folder_order(data, root):
    """The graph whose edges lie as the folder's: by new id of their rows, time, and position."""
    folder, data = PartitionFolder(root), data.clone()
    meta, typed = folder.meta, folder.meta.heterogeneous
    for edge_type in meta.edge_types:
        store = data[edge_type.name] if typed else data
        near = store.edge_index[1 if meta.edge_dir == "in" else 0].numpy()
        keys = [folder.id_map(meta.row_type(edge_type).name)[near]]
        if edge_type.timed:
            far = store.edge_index[0 if meta.edge_dir == "in" else 1]
            times = (data[meta.neighbor_type(edge_type).name] if typed else data).time
            keys.insert(0, times[far].numpy())
        order = torch.from_numpy(np.lexsort(keys))
        for name, value in list(store.items()):
            if name == "edge_index":
                store[name] = value[:, order]
            elif name.startswith("edge_"):
                store[name] = value[order]
    return data


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    root = twins.partitioned(
        twins.homogeneous(), tmp_path_factory.mktemp("numbered") / "plain", 3, "numbered"
    )
    return root, in_folder_order(twins.homogeneous(), root)


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    root = tmp_path_factory.mktemp("numbered") / "timed"
    twins.partitioned(twins.heterogeneous(), root, 3, "numbered_time", order="degree")
    return root, in_folder_order(twins.heterogeneous(), root)


def test_the_folder(plain, timed, tmp_path):
    """It has no file of ids, is sound, and says so; the graph read back is the twin's."""
    for root, data in (plain, timed):
        assert list(root.rglob("edge_id.npy")) == []
        assert verify_folder(root) == []
        summary = FolderSummary.of(PartitionFolder(root))
        assert summary.edge_ids is False
        assert "edge ids" in str(summary)
        source = folder_source(PartitionFolder(root))
        for name, edge in source.edges.items():
            store = data[name] if len(source.edges) > 1 else data
            assert np.array_equal(np.stack(edge.endpoints()), store.edge_index.numpy())
            for attr in edge.attrs:
                assert np.array_equal(edge.attrs[attr].array, store[attr].numpy())


def test_cut_again(plain, tmp_path):
    """Without ids, the folder that the graph makes; with ids, those of the first numbering."""
    root, data = plain
    repartition(root, tmp_path / "again", 2)
    direct = twins.partitioned(twins.homogeneous(), tmp_path / "direct", 2, "numbered")
    same = {p.relative_to(direct): p.read_bytes() for p in direct.rglob("*.npy")}
    again = {p.relative_to(tmp_path / "again"): p for p in (tmp_path / "again").rglob("*.npy")}
    assert {name: path.read_bytes() for name, path in again.items()} == same
    repartition(root, tmp_path / "kept", 2, edge_ids=True)
    kept = folder_source(PartitionFolder(tmp_path / "kept")).edges["node", "to", "node"]
    assert np.array_equal(np.stack(kept.endpoints()), data.edge_index.numpy())


def test_loaders_over_partitions(plain):
    """Nodes, links with negatives, induced subgraphs, from parts in threads over sockets."""
    root, data = plain
    with twins.open_dataset(root, 3) as dataset:
        twins.same_epochs(
            DistNeighborLoader(dataset, [4, 3], SEEDS, **ALL),
            NeighborLoader(data, [4, 3], SEEDS, **SOME),
        )
        links = data.edge_index[:, ::31]
        options = {"neg_sampling": "binary", "exclude_seed_edges": True}
        twins.same_epochs(
            DistLinkNeighborLoader(dataset, [4, 3], edge_label_index=links, **ALL, **options),
            LinkNeighborLoader(data, [4, 3], links, **SOME, **options),
        )
        twins.same_epochs(
            DistSubGraphLoader(dataset, SEEDS, [4], **ALL),
            SubGraphLoader(data, SEEDS, [4], **SOME),
        )


def test_types_and_times(timed):
    root, data = timed
    options = {"time_attr": "time", "weight_attr": "edge_weight"}
    with twins.open_dataset(root, 3) as dataset, twins.quiet():
        twins.same_epochs(
            DistNeighborLoader(dataset, [3, 2], ("paper", SEEDS), **ALL, **options),
            NeighborLoader(data, [3, 2], ("paper", SEEDS), **SOME, **options),
        )


def test_stores_and_samplers_of_pyg(plain):
    """Edges, and attributes by id, of a dataset; outputs of samplers."""
    root, data = plain
    with twins.open_dataset(root, 3) as dataset:
        found = dataset.get_edge_index(edge_type=None, layout="coo")
        assert torch.equal(torch.stack(found), data.edge_index)
        (attr,) = [a for a in dataset.get_all_tensor_attrs() if a.attr_name == "edge_attr"]
        ids = torch.tensor([1199, 0, 700, 0])
        assert torch.equal(dataset.get_tensor(attr.by_edge_id(ids)), data.edge_attr[ids])
        with pytest.raises(IndexError):
            dataset.get_tensor(attr.by_edge_id(torch.tensor([1200])))
        ours = PygNeighborLoader(
            (dataset, dataset), [4], SEEDS, neighbor_sampler=PartitionSampler(dataset, [4], seed=5)
        )
        sampler = NeighborSampler(data, [4], seed=5)
        for mine, other in zip(
            ours, PygNeighborLoader(data, [4], SEEDS, neighbor_sampler=sampler), strict=True
        ):
            assert torch.equal(mine.e_id, other.e_id)
            assert torch.equal(mine.edge_attr, other.edge_attr)


def test_walks(tmp_path):
    root = twins.partitioned(twins.homogeneous(), tmp_path / "f", 2, "numbered", "by_src")
    data, options = in_folder_order(twins.homogeneous(), root), {"seed": 1, "return_edge_ids": True}
    with twins.open_dataset(root, 2) as dataset:
        ours = random_walk(dataset, torch.arange(150), 5, **options)
    theirs = random_walk(data, torch.arange(150), 5, **options)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_processes_and_graph_servers(plain):
    """Sampler processes beside partition servers, and a client of two graph servers."""
    root, data = plain
    ours = DistNeighborLoader(
        DistDataset().load(root, 0, also_serve=[1, 2]),
        [4, 3],
        SEEDS,
        **ALL,
        worker_options=twins.workers(1),
    )
    twins.same_epochs(ours, NeighborLoader(data, [4, 3], SEEDS, **SOME))
    ours.shutdown()
    shutdown_worker_group()
    with cluster(root, [[0, 2], [1]], 1) as servers, servers.client():
        twins.same_epochs(
            DistNeighborLoader(None, [4, 3], SEEDS, **ALL),
            NeighborLoader(data, [4, 3], SEEDS, **SOME),
        )


def test_other_tools(plain, tmp_path):
    """DistDGL's original ids are the folder's; GLT's features by id need the user's."""
    root, data = plain
    to_distdgl(root, tmp_path / "dgl")
    from_distdgl(tmp_path / "dgl", tmp_path / "back")
    back = folder_source(PartitionFolder(tmp_path / "back")).edges["node", "to", "node"]
    assert np.array_equal(np.stack(back.endpoints()), data.edge_index.numpy())
    with pytest.raises(ValueError, match=r"keeps no original ids of edges .*edge_ids=True"):
        build_partition_feature(root, 0, edge_feat=torch.zeros(1200, 2))
