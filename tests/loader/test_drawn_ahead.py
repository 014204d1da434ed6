"""Loaders without workers draw a batch beside the thread that consumes the one before it."""

import gc
import operator
import threading

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.sampler import NegativeSampling

from khop.loader import LinkNeighborLoader, NeighborLoader
from khop.loader.iteration import background

NUM_NODES = 300


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(NUM_NODES, (2, 3000), generator=generator)
    return Data(x=torch.randn(NUM_NODES, 4, generator=generator), edge_index=edges)


pytestmark = pytest.mark.usefixtures("two_threads")


@pytest.fixture
def always(monkeypatch):
    """Any batch is worth a thread."""
    monkeypatch.setattr(background, "_WORTH_A_THREAD", -1)


def drawing_threads():
    return [t for t in threading.enumerate() if t.name.startswith("khop-sampler")]


def join_drawing_threads():
    gc.collect()
    for thread in drawing_threads():
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture(autouse=True)
def threads_end():
    """Threads end after their current batch, soon after their epoch: also those of other tests."""
    join_drawing_threads()
    yield
    join_drawing_threads()


def content(batch):
    return {name: value for name, value in batch.to_dict().items() if value is not None}


def assert_equal(ours, theirs):
    assert len(ours) == len(theirs) > 1
    for one, other in zip(ours, theirs, strict=True):
        assert content(one).keys() == content(other).keys()
        for name, value in content(one).items():
            same = torch.equal if torch.is_tensor(value) else operator.eq
            assert same(value, content(other)[name]), name


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("links", [False, True])
def test_same_batches(data, links, shuffle, monkeypatch):
    """Drawn ahead or not."""

    def epochs():
        common = {"batch_size": 16, "shuffle": shuffle, "seed": 3}
        if links:
            loader = LinkNeighborLoader(
                data, [3, 2], neg_sampling=NegativeSampling("binary"), **common
            )
        else:
            loader = NeighborLoader(data, [3, 2], **common)
        return [batch for _ in range(2) for batch in loader]

    monkeypatch.setattr(background, "_WORTH_A_THREAD", 10**18)
    here = epochs()
    assert not drawing_threads()
    monkeypatch.setattr(background, "_WORTH_A_THREAD", -1)
    assert_equal(epochs(), here)


def test_attributes_are_read_when_a_batch_is_asked_for(data, always):
    loader = NeighborLoader(data, [3], batch_size=32, seed=0)
    for number, batch in enumerate(loader):
        assert (batch.x[:, 0] == number).all() if number else True
        data.x[:, 0] = number + 1
    assert number > 3


def test_threads(data, always, monkeypatch):
    """One while an epoch is open; none of those who were told to use one core, or draw fast."""
    loader = NeighborLoader(data, [3], batch_size=32, seed=0)
    epoch = iter(loader)
    next(epoch)
    (thread,) = drawing_threads()
    del epoch
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()
    torch.set_num_threads(1)
    next(iter(loader))
    assert not drawing_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(background, "_WORTH_A_THREAD", 10**18)
    next(iter(loader))
    assert not drawing_threads()


def test_seeds_of_a_user_are_asked_for_one_by_one(data, always):
    """What a batch sampler names may depend on the batches before."""
    asked = []

    def batches():
        for first in range(0, 64, 16):
            asked.append(first)
            yield list(range(first, first + 16))

    loader = NeighborLoader(data, [3], batch_sampler=Generated(batches), seed=0)
    for number, batch in enumerate(loader):
        assert len(asked) == number + 1
        assert batch.input_id.tolist() == list(range(number * 16, number * 16 + 16))


class Generated:
    """A batch sampler whose batches a generator makes."""

    def __init__(self, make):
        self.make = make

    def __iter__(self):
        return self.make()

    def __len__(self):
        return 4


def test_errors(data, always, monkeypatch):
    """One of drawing comes with the batch that it belongs to, and ends the epoch."""
    loader = NeighborLoader(data, [3], batch_size=32, seed=0)
    draw = loader._draw_planned

    def draw_some(positions):
        if positions.key.batch == 2:
            raise MemoryError("no more")
        return draw(positions)

    monkeypatch.setattr(loader, "_draw_planned", draw_some)
    epoch = iter(loader)
    next(epoch), next(epoch)
    with pytest.raises(MemoryError, match="no more"):
        next(epoch)
    with pytest.raises(StopIteration):
        next(epoch)


def test_stats(data, always):
    """Drawing counts as sampling, and everything is counted once."""
    loader = NeighborLoader(data, [3], batch_size=32, seed=0)
    batches = list(loader)
    stats = loader.stats()
    assert (stats.batches, stats.seeds) == (len(batches), NUM_NODES)
    assert stats.nodes == sum(batch.num_nodes for batch in batches)
    assert stats.num_samplers == 0
    assert stats.sampler_seconds["sampling"] > 0 and stats.sampler_seconds["idle"] == 0
