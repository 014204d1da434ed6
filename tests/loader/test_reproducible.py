"""What decides a batch: seed, epoch, stream and the batch's index; nothing else."""

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler

from khop.loader import NeighborLoader
from support.reference import oracle
from support.reference.sampler import sample_one_type

_WORKERS = [{}, {"num_workers": 2}, {"num_workers": 2, "worker_type": "process"}]
_KINDS = [(0, "thread"), (1, "thread"), (3, "thread"), (1, "process"), (3, "process")]


def make(data, **options):
    return NeighborLoader(data, [3, 2], **{"batch_size": 40, "shuffle": True, **options})


@pytest.mark.parametrize("replace", [False, True])
def test_batches_are_those_of_the_contract(data, replace):
    """Epoch 1 of stream 5 of seed 3, drawn by the plain-Python sampler."""
    loader = NeighborLoader(data, [3, 2, -1], batch_size=64, seed=3, stream=5, replace=replace)
    list(loader)
    indptr, indices, ids = oracle.csr(data.edge_index[1], data.edge_index[0], 200)
    for number, batch in enumerate(loader):
        seeds = batch.input_id.tolist()
        run = oracle.run_key(3, 1, 5)
        want = sample_one_type(indptr, indices, seeds, [3, 2, -1], replace, run, number)
        assert batch.n_id.tolist() == want.node
        assert batch.edge_index.tolist() == [want.row, want.col]
        assert batch.e_id.tolist() == ids[want.edge].tolist()
        assert batch.num_sampled_nodes == want.nodes_per_hop
        assert batch.num_sampled_edges == want.edges_per_hop


@pytest.mark.process
@pytest.mark.parametrize("seed", [7, None])
def test_workers_do_not_matter(data, same_epochs, seed):
    """Number and kind of workers: two epochs equal in every attribute, seeded either way."""
    epochs = []
    for num_workers, kind in _KINDS:
        loader = make(data, seed=seed, num_workers=num_workers, worker_type=kind)
        epochs.append([])
        for epoch in range(2):
            torch.manual_seed(epoch)
            epochs[-1] += list(loader)
    assert all(same_epochs(epochs[0], other) for other in epochs[1:])


@pytest.mark.process
def test_persistent_workers_go_on_to_the_next_epoch(data, same_epochs):
    plain = make(data, seed=7)
    kept = make(data, seed=7, num_workers=1, worker_type="process", persistent_workers=True)
    for _ in range(3):
        assert same_epochs(list(plain), list(kept))


def test_seed_stream_and_epoch(data, same_epochs):
    """Equal seeds make equal sequences of epochs; epochs, streams and seeds differ."""
    a, b = make(data, seed=1), make(data, seed=1)
    first, second = list(a), list(a)
    assert same_epochs(first, list(b))
    assert same_epochs(second, list(b))
    assert not same_epochs(first, second)
    for other in ({"seed": 2}, {"seed": 1, "stream": 1}):
        assert not same_epochs(first, list(make(data, **other)))
        quiet = [list(make(data, shuffle=False, **o)) for o in (other, {"seed": 1})]
        assert not same_epochs(*quiet)  # the draws too, not the order alone
    torch.manual_seed(0)
    c = make(data, seed=1)
    torch.manual_seed(1)
    assert same_epochs(first, list(c))


def test_torchs_seed_decides_where_none_is_given(data, same_epochs):
    """As with PyG: also for a loader that has been iterated before."""
    loader = make(data)
    torch.manual_seed(5)
    first, second = list(loader), list(loader)
    torch.manual_seed(5)
    assert same_epochs(first, list(loader))
    assert not same_epochs(first, second)
    torch.manual_seed(5)
    assert same_epochs(first, list(make(data)))


def test_generator(data, same_epochs):
    """Its state decides, torch's own generator neither matters nor moves."""
    state = torch.get_rng_state()
    epochs = [list(make(data, generator=torch.Generator().manual_seed(seed))) for seed in (3, 3, 4)]
    assert same_epochs(epochs[0], epochs[1])
    assert not same_epochs(epochs[0], epochs[2])
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}])
def test_a_users_own_sampler(data, workers):
    """Decides which seeds, in which order; batch i is drawn by its number."""
    given = [5, 3, 3, 100]
    loader = NeighborLoader(data, [2], sampler=given, batch_size=3, seed=1, **workers)
    assert len(loader) == 2
    assert [b.input_id.tolist() for b in loader] == [[5, 3, 3], [100]]
    subset = SubsetRandomSampler(range(50, 90))
    got = torch.cat(
        [b.input_id for b in NeighborLoader(data, [2], sampler=subset, batch_size=7, **workers)]
    )
    assert sorted(got.tolist()) == list(range(50, 90))


@pytest.mark.parametrize("workers", _WORKERS)
def test_a_users_own_batch_sampler(data, same_epochs, workers):
    batches = BatchSampler(SequentialSampler(range(200)), 64, drop_last=True)
    loader = NeighborLoader(data, [2], batch_sampler=batches, seed=1, **workers)
    assert len(loader) == 3
    plain = NeighborLoader(data, [2], batch_size=64, drop_last=True, seed=1)
    assert same_epochs(list(loader), list(plain))
    shuffled = BatchSampler(RandomSampler(range(200)), 30, drop_last=False)
    seen = torch.cat([b.input_id for b in NeighborLoader(data, [2], batch_sampler=shuffled)])
    assert sorted(seen.tolist()) == list(range(200))


@pytest.mark.parametrize(
    ("option", "error"),
    [
        ({"seed": -1}, ValueError),
        ({"seed": 2**64}, ValueError),
        ({"seed": 1.5}, TypeError),
        ({"seed": True}, TypeError),
        ({"stream": -1}, ValueError),
        ({"stream": "a"}, TypeError),
    ],
)
def test_bad_seeds(data, option, error):
    (name,) = option
    with pytest.raises(error, match=name):
        make(data, **option)


def test_large_seeds(data, same_epochs):
    a, b = (list(make(data, seed=2**64 - 1, stream=s)) for s in (2**64 - 1, 2**63))
    assert not same_epochs(a, b)
