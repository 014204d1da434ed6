"""GLT's partitions and distributed loaders: parts of arrays are khop's, and batches GLT's."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import khop
from khop import glt
from khop.distributed import shutdown_worker_group
from khop.partition import PartitionFolder
from support.glt_parts import EDGES, NUM, X, part_of_arrays

JOB = Path(__file__).parents[1] / "support" / "glt_job.py"


@pytest.fixture
def folder(tmp_path):
    """Two parts by GLT's partitioner, with copies of hot rows."""
    root = tmp_path / "parts"
    root.mkdir()  # as scripts for GLT do
    probs = [torch.rand(NUM, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    glt.partition.FrequencyPartitioner(
        root,
        2,
        NUM,
        EDGES,
        probs,
        node_feat=X,
        edge_feat=torch.arange(200).float().view(-1, 1),
        edge_weights=torch.arange(200).float(),
        cache_ratio=0.2,
    ).partition()
    return root, probs


def test_parts_as_tensors(folder):
    root, probs = folder
    seen = []
    for part in range(2):
        count, own, graph, nodes, edges, node_pb, edge_pb = glt.partition.load_partition(root, part)
        assert (count, own) == (2, part)
        assert torch.equal(torch.stack(graph.edge_index), EDGES[:, graph.eids])
        assert bool((node_pb[graph.edge_index[0]] == part).all())
        assert bool((edge_pb[graph.eids] == part).all())
        assert torch.equal(graph.weights, graph.eids.float())
        assert torch.equal(nodes.feats.view(-1), nodes.ids.float())
        assert torch.equal(edges.feats.view(-1), edges.ids.float())
        hot = probs[part][nodes.cache_ids]
        assert torch.equal(hot, hot.sort(descending=True).values)
        share, rows, places, book = glt.partition.cat_feature_cache(part, nodes, node_pb)
        assert share == len(nodes.cache_ids) / len(rows)
        assert torch.equal(rows[places[nodes.cache_ids]].view(-1), nodes.cache_ids.float())
        assert bool((book[nodes.cache_ids] == part).all())
        seen.append(graph.eids)
    assert torch.cat(seen).sort().values.tolist() == list(range(200))


def test_a_part_of_arrays_is_the_part_that_a_partitioner_writes(tmp_path):
    from khop.partition import AssignedPartitioner

    owners = torch.arange(NUM) % 2
    AssignedPartitioner(
        tmp_path / "whole",
        2,
        NUM,
        EDGES,
        node_feat=X,
        node_attrs={"y": torch.arange(NUM)},
        edge_feat=torch.arange(200).float().view(-1, 1),
        edge_weights=torch.arange(200).float() + 1,
        edge_dir="out",
        owners={"node": owners.numpy()},
    ).partition()
    whole = PartitionFolder(tmp_path / "whole")
    fingerprints = set()
    for part in range(2):
        dataset = part_of_arrays(part)  # its folder ends with it
        made = dataset.opened
        fingerprints.add(made.fingerprint)
        assert made.meta.files() == whole.meta.files()
        for path in made.meta.files():
            assert made.files[path].bytes == whole.files[path].bytes, path
            if path.startswith(f"part-{part}/") or not path.startswith("part-"):
                assert np.array_equal(made.open(path), whole.open(path)), path
    assert len(fingerprints) == 1


def test_features_added_later_are_those_that_partitioners_write(tmp_path):
    """Parts' features in any order, with copies of hot rows; the folder is the same."""
    probs = [torch.rand(NUM, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    given = {"node_feat": X, "edge_feat": torch.arange(200).float().view(-1, 1)}
    for root, whole in (("whole", True), ("apart", False)):
        glt.partition.FrequencyPartitioner(
            tmp_path / root, 2, NUM, EDGES, probs, cache_ratio=0.2, **given
        ).partition(with_feature=whole)
    assert not PartitionFolder(tmp_path / "apart").meta.node_type("node").attrs
    for part in (1, 0):
        glt.partition.build_partition_feature(tmp_path / "apart", part, chunk_size=7, **given)
    whole, apart = PartitionFolder(tmp_path / "whole"), PartitionFolder(tmp_path / "apart")
    assert apart.meta.files() == whole.meta.files()
    for path in whole.meta.files():
        assert apart.files[path] == whole.files[path], path
        assert np.array_equal(apart.open(path), whole.open(path)), path
    with pytest.raises(ValueError, match="39 rows of features for 40"):
        glt.partition.build_partition_feature(tmp_path / "apart", 0, node_feat=X[1:])
    with pytest.raises(ValueError, match="has other features"):
        glt.partition.build_partition_feature(tmp_path / "apart", 0, node_feat=X + 1)


def test_parts_that_do_not_fit_are_refused():
    owners = torch.arange(NUM) % 2
    graph = glt.data.Graph(glt.data.Topology(EDGES), "CPU")
    with pytest.raises(ValueError, match="rows are other parts'"):
        glt.distributed.DistDataset(2, 0, graph, node_pb=owners, edge_pb=owners[EDGES[0]])
    with pytest.raises(ValueError, match="books"):
        glt.distributed.DistDataset(2, 0, graph)
    range_book = glt.partition.RangePartitionBook([(0, 15), (15, NUM)], 0)
    dataset = part_of_arrays(0, range_book.owners())
    assert dataset.local_nodes().tolist() == list(range(15))
    dataset.random_node_split(3, 2)
    assert len(dataset.train_idx) == 10


def test_two_processes_load_and_partition(tmp_path):
    """Trainers meet at the address of their loaders; parts that they make together are khop's."""
    environment = {
        k: v for k, v in os.environ.items() if k not in ("MASTER_ADDR", "MASTER_PORT", "RANK")
    }
    path = [str(Path(khop.__file__).parents[1]), str(JOB.parents[1])]
    environment["PYTHONPATH"] = os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")])
    port = str(glt.utils.get_free_port())
    other_port = str(glt.utils.get_free_port())
    jobs = [
        subprocess.Popen(
            [sys.executable, str(JOB), str(rank), port, other_port, str(tmp_path)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    for job in jobs:
        printed, _ = job.communicate(timeout=120)
        assert job.returncode == 0, printed
    glt.partition.RandomPartitioner(tmp_path / "whole", 2, NUM, EDGES, node_feat=X).partition()
    whole = PartitionFolder(tmp_path / "whole")
    for part in range(2):
        made = PartitionFolder(tmp_path / f"p{part}")
        for path, known in made.files.items():
            assert known == whole.files[path], path


def test_one_trainer_needs_no_address(tmp_path):
    root = tmp_path / "one"
    glt.partition.RandomPartitioner(root, 1, NUM, EDGES, node_feat=X).partition()
    glt.distributed.init_worker_group(1, 0, "alone")
    try:
        dataset = glt.distributed.DistDataset()
        dataset.load(root, 0)
        torch.save(torch.arange(8), tmp_path / "seeds.pt")
        loader = glt.distributed.DistNeighborLoader(
            dataset, [-1], str(tmp_path / "seeds.pt"), batch_size=4, collect_features=True
        )
        batches = list(loader)
        assert [b.batch.tolist() for b in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert glt.distributed.all_gather(3) == {"alone_0": 3}
        graph = glt.distributed.DistSubGraphLoader(
            dataset, torch.tensor([9, 3]), [-1], batch_size=2, with_edge=True
        )
        (batch,) = graph
        assert batch.node.tolist() == sorted(batch.node.tolist())
        assert batch.node[batch.mapping].tolist() == [9, 3]
        assert torch.equal(batch.node[batch.edge_index], EDGES.flip(0)[:, batch.edge])
    finally:
        shutdown_worker_group()
