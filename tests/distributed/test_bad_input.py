"""Bad input: an error that names what was wrong and what to do, early."""

import json
import shutil

import pytest
import torch
from torch_geometric.data import HeteroData

from khop.distributed import (
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    get_context,
    init_worker_group,
    node_split,
)
from khop.errors import FolderError, RendezvousError
from khop.partition import RandomPartitioner
from support.cluster import jobs


@pytest.fixture
def dataset(folder_of):
    """A dataset of one partition."""
    return DistDataset().load(folder_of("random", 1))


def test_folder_of_another_version(folder_of, tmp_path):
    """The error names both versions."""
    from khop.storage.folder.content import sealed

    root = tmp_path / "other"
    shutil.copytree(folder_of("random", 1), root)
    content = json.loads((root / "meta.json").read_text())
    content.pop("seal")
    content["version"] = 99
    (root / "meta.json").write_bytes(sealed(content))
    with pytest.raises(
        FolderError, match=r"version 99.*reads versions 1 to 3.*install the khop that wrote it"
    ):
        DistDataset().load(root)


def test_truncated_file(folder_of, tmp_path):
    """A file that is shorter than it was is found when the loader is made."""
    root = tmp_path / "short"
    shutil.copytree(folder_of("random", 1), root)
    file = root / "part-0/edge/node__to__node/indices.npy"
    file.write_bytes(file.read_bytes()[:-8])
    dataset = DistDataset().load(root)
    with pytest.raises(FolderError, match=r"indices.npy.*damaged.*khop verify"):
        DistNeighborLoader(dataset, [2])


@pytest.mark.parametrize("part,error,match", [
    (1, IndexError, "partition_idx=1.*1 partitions"),
    (-1, IndexError, "partition_idx=-1"),
    ("0", TypeError, "partition_idx must be an integer.*str"),
    (True, TypeError, "bool"),
])  # fmt: skip
def test_wrong_partition(folder_of, part, error, match):
    """No such partition, or no number at all."""
    with pytest.raises(error, match=match):
        DistDataset().load(folder_of("random", 1), part)


def test_partition_on_another_machine(folder_of, tmp_path):
    """The part's files are not here."""
    root = tmp_path / "half"
    shutil.copytree(folder_of("random", 2), root)
    shutil.rmtree(root / "part-1")
    with pytest.raises(FolderError, match="part-1 is not on this machine: copy"):
        DistDataset().load(root, 1)


def test_no_folder(tmp_path):
    """Nothing there, or something else."""
    with pytest.raises(FolderError, match="no partition folder at"):
        DistDataset().load(tmp_path / "nothing")
    with pytest.raises(FolderError, match=r"no meta.json.*khop partition"):
        DistDataset().load(tmp_path)
    with pytest.raises(TypeError, match="root_dir"):
        DistDataset().load()


def test_edge_direction_that_the_folder_does_not_serve(dataset):
    """Never a silent loss of neighbours."""
    with pytest.raises(ValueError, match="Partition again with edge_dir='out'"):
        DistNeighborLoader(dataset, [2], edge_dir="out")
    DistNeighborLoader(dataset, [2], edge_dir="in").shutdown()


@pytest.mark.parametrize("fanouts,error,match", [
    ([2, -2], ValueError, "-2.*-1"),
    ([2.5], TypeError, "2.5"),
    (3, TypeError, "list of fan-outs"),
    ("3", TypeError, "list of fan-outs"),
    ({("node", "to", "node"): [2], ("a", "b", "c"): [2]}, ValueError, "edge types"),
    ({}, ValueError, "no fan-outs for edge types"),
])  # fmt: skip
def test_num_neighbors(dataset, fanouts, error, match):
    """Fan-outs that are none, or for edge types that do not exist."""
    with pytest.raises(error, match=match):
        DistNeighborLoader(dataset, fanouts)


@pytest.mark.parametrize("seeds,error,match", [
    (torch.tensor([3, -1]), IndexError, "id -1 at position 1.*0 to 499"),
    (torch.tensor([500]), IndexError, "id 500 at position 0"),
    (torch.tensor([1.0]), TypeError, "integers.*float32"),
    (torch.tensor([[1]]), ValueError, "one dimension"),
    (torch.ones(7, dtype=torch.bool), ValueError, "mask of 7 entries for 500 nodes"),
])  # fmt: skip
def test_seeds(dataset, seeds, error, match):
    """Seeds that do not exist, or are no ids."""
    for call in (lambda: DistNeighborLoader(dataset, [2], seeds), lambda: node_split(seeds)):
        with pytest.raises(error, match=match):
            call()


def test_partition_that_nobody_serves(folder_of):
    """A world too small for the folder: the error says which partitions, and the ways out."""
    dataset = DistDataset().load(folder_of("random", 3), 1)
    with pytest.raises(RendezvousError, match=r"3 partitions.*1 trainer.*\[0, 2\].*also_serve"):
        DistNeighborLoader(dataset, [2])


def test_world_size_that_contradicts_itself(monkeypatch):
    """Ranks outside the world, half of the arguments, another world than the launcher's."""
    with pytest.raises(ValueError, match="rank 2 is not one of 2"):
        init_worker_group(2, 2)
    with pytest.raises(ValueError, match="both world_size and rank"):
        init_worker_group(2)
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ValueError, match="rank 1 of 3"):
        init_worker_group(2, 0)


def test_no_way_to_find_each_other(monkeypatch):
    """Several trainers and no store."""
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(RendezvousError, match="torchrun"):
        init_worker_group(2, 0)


def test_missing_trainer(monkeypatch):
    """A trainer that does not arrive is named, in time."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(jobs.free_port()))
    with pytest.raises(RendezvousError, match=r"trainer\(s\) \[1\] to call init_worker_group"):
        init_worker_group(2, 0, timeout=1)


def test_context(folder_of):
    """What a trainer can ask of its context."""
    assert get_context() is None
    context = init_worker_group(1, 0, "group")
    assert get_context() is context
    assert (context.world_size, context.rank, context.worker_name) == (1, 0, "group_0")
    assert context.is_worker() and context.role.name == "WORKER"
    assert init_worker_group(1, 0, "group") is context
    with pytest.raises(ValueError, match="already"):
        init_worker_group(1, 0, "another")


@pytest.mark.parametrize("seeds", [None, torch.tensor([0]), "c", ("c", None), 3])
def test_seeds_of_a_heterogeneous_graph(tmp_path, seeds):
    """They must name a node type that exists."""
    data = HeteroData()
    data["a"].num_nodes, data["b"].num_nodes = 5, 4
    data["a", "to", "b"].edge_index = torch.tensor([[0, 4], [3, 1]])
    RandomPartitioner.from_data(data, tmp_path / "hetero", 1).partition()
    dataset = DistDataset().load(tmp_path / "hetero")
    with pytest.raises(ValueError, match=r"node type, seeds.*\['a', 'b'\]"):
        DistNeighborLoader(dataset, [2], seeds)


@pytest.mark.parametrize("options,error,match", [
    ({"batch_size": 0}, ValueError, "batch_size"),
    ({"batch_size": 2.0}, TypeError, "batch_size"),
    ({"seed": -1}, ValueError, "seed"),
    ({"seed": 1, "random_seed": 2}, TypeError, "random_seed"),
    ({"edge_dir": "both"}, ValueError, "edge_dir"),
])  # fmt: skip
def test_loader_options(dataset, options, error, match):
    """Numbers out of range and contradictions."""
    with pytest.raises(error, match=match):
        DistNeighborLoader(dataset, [2], **options)


def test_sampling_options():
    """Sizes are texts or numbers; counts must make sense."""
    assert MpDistSamplingWorkerOptions(buffer_size="1.5GB").buffer_size == 3 << 29
    assert MpDistSamplingWorkerOptions(worker_concurrency=99).worker_concurrency == 32
    for bad in ({"buffer_size": "much"}, {"num_workers": -1}, {"timeout": 0}):
        with pytest.raises(ValueError, match=r"bytes|num_workers|timeout"):
            MpDistSamplingWorkerOptions(**bad)


def test_dataset_before_load():
    """An unloaded dataset says so."""
    with pytest.raises(RuntimeError, match="call load"):
        DistDataset().num_partitions  # noqa: B018
