"""What scripts and tests of PyG expect of a loader besides its batches."""

import os
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from khop.loader import LinkNeighborLoader, NeighborLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


@pytest.fixture
def two_types():
    """Two papers of one author."""
    data = HeteroData()
    data["paper"].num_nodes, data["author"].num_nodes = 2, 1
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 0], [0, 1]])
    data["paper", "by", "author"].edge_index = torch.tensor([[0, 1], [0, 0]])
    return data


def test_words_for_unequal_hops(two_types):
    """Those that PyG has for it, and what was received."""
    fanouts = {("author", "writes", "paper"): [3], ("paper", "by", "author"): [3, 2]}
    with pytest.raises(ValueError, match=r"hops must be the same across all .*'writes'.*: 1, .*2"):
        NeighborLoader(two_types, fanouts, "paper")


def test_words_for_times_by_half(data):
    with pytest.raises(ValueError, match=r"'time_attr' is set, 'edge_label_time' is not set"):
        LinkNeighborLoader(data, [2], time_attr="y")
    with pytest.raises(ValueError, match=r"'edge_label_time' is set, 'time_attr' is not set"):
        LinkNeighborLoader(data, [2], edge_label_time=torch.arange(1600))


def test_no_hops(data, two_types):
    """`num_neighbors=[]`: seeds and their attributes alone, of nodes and of links."""
    batch = next(iter(NeighborLoader(data, [], torch.tensor([7, 3]), batch_size=2)))
    assert (batch.n_id.tolist(), batch.num_edges) == ([7, 3], 0)
    assert (batch.num_sampled_nodes, batch.num_sampled_edges) == ([2], [])
    links = torch.tensor([[7, 3], [3, 9]])
    for graph in (data, Data(num_nodes=200)):
        batch = next(iter(LinkNeighborLoader(graph, [], links, batch_size=2)))
        assert (batch.n_id.tolist(), batch.num_edges) == ([3, 7, 9], 0)
    batch = next(iter(NeighborLoader(two_types, [], "paper", batch_size=2)))
    assert {t: batch[t].num_nodes for t in batch.node_types} == {"paper": 2, "author": 0}


class Initialise:
    """A `worker_init_fn` that leaves a file: of its process, with what it and torch say."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, worker_id):
        info = torch.utils.data.get_worker_info()
        text = f"{worker_id} {info.id} {info.num_workers}"
        (Path(self.folder) / f"{os.getpid()}").write_text(text)


class TestWorkerProcesses:
    @pytest.mark.process
    def test_worker_init_fn(self, data, same_epochs, tmp_path):
        """It runs as PyG has it run: in worker processes, which know who they are."""
        options = {"batch_size": 20, "shuffle": True, "seed": 3, "num_workers": 2}
        loader = NeighborLoader(data, [3], worker_init_fn=Initialise(tmp_path), **options)
        assert same_epochs(list(loader), list(NeighborLoader(data, [3], **options)))
        written = {int(p.name): p.read_text() for p in tmp_path.iterdir()}
        assert os.getpid() not in written
        assert sorted(written.values()) == ["0 0 2", "1 1 2"]

    @pytest.mark.process
    def test_multiprocessing_context(self, data, same_epochs, tmp_path):
        """Asks for worker processes, too."""

        def sign(batch):
            (tmp_path / f"{os.getpid()}").touch()
            return batch

        links, options = torch.arange(200).view(2, 100), {"batch_size": 100, "seed": 3}
        loader = LinkNeighborLoader(
            data,
            [3],
            links,
            num_workers=1,
            multiprocessing_context="fork",
            transform=sign,
            filter_per_worker=True,
            **options,
        )
        assert same_epochs(list(loader), list(LinkNeighborLoader(data, [3], links, **options)))
        assert [int(p.name) for p in tmp_path.iterdir()] != [os.getpid()]

    def test_without_workers(self, data, tmp_path):
        """As with torch, nobody is there to be initialised."""
        loader = NeighborLoader(data, [3], batch_size=100, worker_init_fn=Initialise(tmp_path))
        assert len(list(loader)) == 2
        assert not list(tmp_path.iterdir())

    @pytest.mark.process
    def test_enable_cpu_affinity(self, data):
        """PyG's context manager reaches the workers of the epochs that begin within it."""
        core = min(os.sched_getaffinity(0))
        before = os.sched_getaffinity(0)

        def note(batch):
            batch.where = (os.getpid(), os.sched_getaffinity(0))
            return batch

        options = {"filter_per_worker": True, "transform": note, "batch_size": 100}
        loader = NeighborLoader(data, [3], num_workers=1, **options)
        with loader.enable_cpu_affinity([core]):
            for batch in loader:
                assert batch.where[0] != os.getpid()
                assert batch.where[1] == {core}
        assert os.sched_getaffinity(0) == before

    def test_contradiction(self, data):
        """Threads cannot be told to be processes."""
        for option in ({"worker_init_fn": print}, {"multiprocessing_context": "spawn"}):
            with pytest.raises(ValueError, match=r"is for worker processes: .* leave worker_type"):
                NeighborLoader(data, [2], num_workers=1, worker_type="thread", **option)
