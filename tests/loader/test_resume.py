"""A loader that goes on after a stop makes the batches that one without a stop would make.

The oracle is a plain loader that is never stopped; of what `state_dict` means at the ends of
epochs it is torchdata's `StatefulDataLoader`, where it can be imported.
"""

import itertools
import json
import random

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch_geometric.data import Data

from khop.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader
from khop.loader.batches.ways import NativeWay

_NUM_NODES, _BATCH_SIZE = 90, 20
_NUM_BATCHES = 5
_EPOCHS = 3
_PROCESSES = {"num_workers": 2, "worker_type": "process"}
_PERSISTENT = {**_PROCESSES, "persistent_workers": True}

quietly = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def make_graph():
    generator = torch.Generator().manual_seed(4)
    return Data(
        x=torch.arange(_NUM_NODES).float().view(-1, 1),
        edge_index=torch.randint(_NUM_NODES, (2, 500), generator=generator),
        num_nodes=_NUM_NODES,
    )


GRAPH = make_graph()


def make(kind=NeighborLoader, **options):
    """A loader of five batches."""
    options = {"batch_size": _BATCH_SIZE, "shuffle": True, **options}
    if kind is NeighborLoader:
        return NeighborLoader(GRAPH, [3, 2], **options)
    if kind is SubGraphLoader:
        return SubGraphLoader(GRAPH, None, [3], **options)
    links = GRAPH.edge_index[:, :_NUM_NODES]
    return LinkNeighborLoader(GRAPH, [3], links, neg_sampling="binary", **options)


def contents(batch):
    """What is in a batch, comparable with `==`."""
    return {
        name: value.tolist() if isinstance(value, torch.Tensor) else value
        for name, value in batch.to_dict().items()
    }


def epochs_of(loader, count):
    return [[contents(batch) for batch in loader] for _ in range(count)]


def stop_after(loader, num_epochs, num_batches):
    """Iterates so many whole epochs and batches of the next one; the state then, as a file has it.

    Batches that were made ahead stay undelivered.
    """
    for _ in range(num_epochs):
        for _ in loader:
            pass
    iterator = iter(loader)
    for _ in range(num_batches):
        next(iterator)
    return json.loads(json.dumps(loader.state_dict()))


def go_on(loader, state, done, count):
    """The rest of the epoch under way, and the epochs after it."""
    loader.load_state_dict(state)
    return epochs_of(loader, count - done)


def expected(whole, num_epochs, num_batches):
    return [whole[num_epochs][num_batches:], *whole[num_epochs + 1 :]]


# Exactness ------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(
    kind=st.sampled_from([NeighborLoader, LinkNeighborLoader, SubGraphLoader]),
    seed=st.sampled_from([7, None, "generator"]),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    done=st.integers(0, _EPOCHS - 1),
    batches=st.integers(0, _NUM_BATCHES - 1),
    before=st.integers(0, 3),
    after=st.integers(0, 3),
)
def test_going_on(kind, seed, shuffle, drop_last, done, batches, before, after):
    """Wherever it was stopped, with any number of threads before and after."""
    options = {"shuffle": shuffle, "drop_last": drop_last}

    def loader(num_workers):
        given = {"seed": seed}
        if seed == "generator":
            given = {"generator": torch.Generator().manual_seed(3)}
        return make(kind, num_workers=num_workers, **options, **given)

    torch.manual_seed(1)
    whole = epochs_of(loader(0), _EPOCHS)
    torch.manual_seed(1)
    batches = min(batches, len(whole[0]))
    state, torchs = stop_after(loader(before), done, batches), torch.get_rng_state()
    torch.manual_seed(99)  # another process
    resumed = loader(after)
    torch.set_rng_state(torchs)
    assert go_on(resumed, state, done, _EPOCHS) == expected(whole, done, batches)


@pytest.mark.process
@quietly
@pytest.mark.parametrize(
    ("before", "after", "seed"),
    [
        (_PROCESSES, {}, 7),
        ({}, _PROCESSES, None),
        (_PERSISTENT, {"num_workers": 3}, None),
        ({"num_workers": 1}, _PERSISTENT, 7),
        (_PERSISTENT, _PERSISTENT, None),
    ],
)
def test_worker_processes(before, after, seed):
    """Torch's, kept or not, before and after; also where torch's generator decides."""
    torch.manual_seed(1)
    whole = epochs_of(make(seed=seed), _EPOCHS)
    torch.manual_seed(1)
    state, torchs = stop_after(make(seed=seed, **before), 1, 2), torch.get_rng_state()
    torch.manual_seed(99)
    resumed = make(seed=seed, **after)
    torch.set_rng_state(torchs)
    assert go_on(resumed, state, 1, _EPOCHS) == expected(whole, 1, 2)


@pytest.mark.process
@quietly
def test_epochs_do_not_depend_on_when_processes_start():
    """Torch's generator is asked for one number an epoch, whoever makes the batches."""
    for generator in (None, 5):
        runs = []
        for workers in ({}, {"num_workers": 2}, _PROCESSES, _PERSISTENT):
            torch.manual_seed(1)
            own = None if generator is None else torch.Generator().manual_seed(generator)
            runs.append(epochs_of(make(generator=own, **workers), 2))
        assert all(run == runs[0] for run in runs)


def test_going_on_in_the_same_loader_and_again():
    """A state may be loaded as often as one likes, also while an epoch is iterated."""
    loader = make(seed=3)
    whole = epochs_of(make(seed=3), 2)
    state = stop_after(loader, 0, 2)
    for _ in range(2):
        iterator = iter(loader)
        next(iterator)
        assert go_on(loader, state, 0, 2) == expected(whole, 0, 2)
    loader.load_state_dict(state)
    again = stop_after(loader, 0, 1)  # stopped once more in the same epoch
    assert next(iter(again.values()))["delivered"] == 3
    assert go_on(make(seed=3), again, 0, 2) == expected(whole, 0, 3)


def test_the_last_epoch_that_was_begun_counts():
    """Of two iterators, the later one's place is kept, whatever the other does."""
    loader = make(seed=3)
    whole = epochs_of(make(seed=3), 3)
    one, other = iter(loader), iter(loader)
    next(other)
    list(one)
    assert go_on(make(seed=3), loader.state_dict(), 1, 3) == expected(whole, 1, 1)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}])
@pytest.mark.parametrize("given", [{}, {"sampler": range(_NUM_NODES), "shuffle": None}])
def test_a_batch_whose_transform_fails(workers, given):
    """It is still due; unless the user does without it and takes those that follow."""

    def fail_at_two(batch):
        if int(batch.input_id[0]) == 2 * _BATCH_SIZE:
            raise ZeroDivisionError
        return batch

    options = {"seed": 3, "shuffle": False, **given}
    loader = make(transform=fail_at_two, **options, **workers)
    iterator = iter(loader)
    with pytest.raises(ZeroDivisionError):
        list(iterator)
    for want, take in (([40, 60, 80], 0), ([80], 1)):
        for _ in range(take):
            next(iterator)
        resumed = make(**options)
        resumed.load_state_dict(loader.state_dict())
        assert [int(b.input_id[0]) for b in resumed] == want


def test_an_epoch_that_an_error_has_ended_is_not_done(monkeypatch):
    """Threads make nothing more after an error; the state still says what is due."""
    loader = make(seed=3, shuffle=False, num_workers=2)
    join = NativeWay.join

    def fail_at_two(self, drawn):
        if drawn.batch_index == 2:
            raise OSError("features")
        return join(self, drawn)

    monkeypatch.setattr(NativeWay, "join", fail_at_two)
    iterator = iter(loader)
    with pytest.raises(OSError, match="features"):
        list(iterator)
    assert list(iterator) == []
    monkeypatch.undo()
    resumed = make(seed=3, shuffle=False)
    resumed.load_state_dict(loader.state_dict())
    assert [int(b.input_id[0]) for b in resumed] == [40, 60, 80]


# What a state means ---------------------------------------------------------------------------


class Story:
    """What users do with loaders, told once and done with khop's and torchdata's.

    Each returns the state and how many batches the next two epochs must have.
    """

    @staticmethod
    def before_the_first(loader):
        return loader.state_dict(), [5, 5]

    @staticmethod
    def begun(loader):
        iterator = iter(loader)
        return (loader.state_dict(), iterator)[0], [5, 5]

    @staticmethod
    def in_the_middle(loader):
        iterator = iter(loader)
        next(iterator), next(iterator)
        return loader.state_dict(), [3, 5]

    @staticmethod
    def left_early(loader):
        for _ in loader:
            break
        return loader.state_dict(), [4, 5]

    @staticmethod
    def after_the_last_batch(loader):
        iterator = iter(loader)
        for _ in range(5):
            next(iterator)
        return loader.state_dict(), [0, 5]

    @staticmethod
    def after_the_end(loader):
        list(loader)
        return loader.state_dict(), [5, 5]

    @staticmethod
    def loaded_and_saved(loader):
        loader.load_state_dict(Story.in_the_middle(loader)[0])
        return loader.state_dict(), [3, 5]

    @staticmethod
    def loaded_nothing(loader):
        loader.load_state_dict(Story.in_the_middle(loader)[0])
        loader.load_state_dict({})
        iterator = iter(loader)
        next(iterator)
        return loader.state_dict(), [2, 5]


STORIES = [name for name in vars(Story) if not name.startswith("_")]


@quietly
@pytest.mark.parametrize(
    "story,workers",
    [
        *itertools.product(STORIES, [{}, {"num_workers": 2}]),
        *((story, _PROCESSES) for story in ("in_the_middle", "left_early", "loaded_nothing")),
    ],
)
def test_resumed_loader_makes_the_remaining_batches(story, workers):
    """Batches of the next two epochs, with the state taken here and there in a loader's life."""
    state, counts = getattr(Story, story)(make(seed=1, **workers))
    resumed = make(seed=1, **workers)
    resumed.load_state_dict(state)
    assert [len(list(resumed)) for _ in range(2)] == counts


@pytest.mark.process
@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchdata_agrees(story, num_workers):
    """`StatefulDataLoader` goes on with as many batches."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def theirs():
        data = torch.arange(_NUM_NODES)
        return stateful.StatefulDataLoader(data, _BATCH_SIZE, num_workers=num_workers)

    state, counts = getattr(Story, story)(theirs())
    resumed = theirs()
    resumed.load_state_dict(state)
    assert [len(list(resumed)) for _ in range(2)] == counts


def test_asking_changes_nothing():
    """Neither torch's generator nor the epochs."""
    whole = []
    for asks in (False, True):
        torch.manual_seed(5)
        loader, found = make(), []
        for _ in range(2):
            if asks:
                loader.state_dict()
            for batch in loader:
                found.append(contents(batch))
                if asks:
                    loader.state_dict()
        whole.append(found)
    assert whole[0] == whole[1]


def test_states_are_small_and_alike():
    """Plain values under the same keys, of a fresh loader and one in the middle."""
    fresh, used = make(seed=1), make(seed=1)
    state = stop_after(used, 1, 2)
    assert used.state_dict() == state  # after its journey through JSON
    assert len(json.dumps(state)) < 1000
    assert list(fresh.state_dict()) == list(state) == ["rank-0"]
    assert list(fresh.state_dict()["rank-0"]) == list(state["rank-0"])
    assert state["rank-0"]["version"] == 1


# Users' own samplers --------------------------------------------------------------------------


class OddSampler(Sampler):
    """Draws from Python's generator, which nobody can set back."""

    def __iter__(self):
        return iter(random.sample(range(_NUM_NODES), _NUM_NODES))

    def __len__(self):
        return _NUM_NODES


class OwnState(OddSampler):
    """The same, but it can write its state down."""

    def __init__(self):
        self._random = random.Random(4)

    def __iter__(self):
        return iter(self._random.sample(range(_NUM_NODES), _NUM_NODES))

    def state_dict(self):
        return {"python": self._random.getstate()}

    def load_state_dict(self, state):
        self._random.setstate(state["python"])


def _generator():
    return torch.Generator().manual_seed(8)


SAMPLERS = {
    "sequential": lambda: {"sampler": SequentialSampler(range(_NUM_NODES))},
    "random": lambda: {"sampler": RandomSampler(range(_NUM_NODES))},
    "random, own generator": lambda: {
        "sampler": RandomSampler(range(_NUM_NODES), generator=_generator())
    },
    "replacement": lambda: {
        "sampler": RandomSampler(range(_NUM_NODES), replacement=True, generator=_generator())
    },
    "subset": lambda: {"sampler": SubsetRandomSampler(range(_NUM_NODES))},
    "weighted": lambda: {"sampler": WeightedRandomSampler([0.1, 0.5] * 45, _NUM_NODES)},
    "own state": lambda: {"sampler": OwnState()},
    "batch sampler": lambda: {
        "batch_sampler": BatchSampler(
            RandomSampler(range(_NUM_NODES), generator=_generator()), 20, drop_last=False
        )
    },
    "list": lambda: {"batch_sampler": [[1, 2], [2, 3, 4], [5], [5], [80]]},
}


def with_sampler(name, **options):
    given = SAMPLERS[name]()
    if "sampler" in given:
        options["batch_size"] = _BATCH_SIZE
    return NeighborLoader(GRAPH, [3, 2], **given, **options)


@quietly
@pytest.mark.parametrize(
    ("name", "before", "after", "seed"),
    [
        *((name, {}, {"num_workers": 2}, None) for name in SAMPLERS),
        *((name, {"num_workers": 2}, {}, 3) for name in SAMPLERS),
        ("random", _PROCESSES, {}, None),
        ("random, own generator", _PROCESSES, {}, 3),
        ("own state", _PROCESSES, {}, None),
        ("list", _PROCESSES, {}, 3),
    ],
)
def test_users_own_samplers(name, before, after, seed):
    """Those that torch brings along, with and without generators, and those with a state."""
    torch.manual_seed(1)
    whole = epochs_of(with_sampler(name, seed=seed), _EPOCHS)
    torch.manual_seed(1)
    loader = with_sampler(name, seed=seed, **before)
    for _ in loader:
        pass
    iterator = iter(loader)
    next(iterator), next(iterator)
    state, torchs = loader.state_dict(), torch.get_rng_state()
    torch.manual_seed(99)
    resumed = with_sampler(name, seed=seed, **after)
    resumed.load_state_dict(state)
    torch.set_rng_state(torchs)
    assert epochs_of(resumed, 2) == expected(whole, 1, 2)


def test_asking_a_sampler_again_leaves_torchs_generator_alone():
    """Others draw from it, too: going on asks the sampler with the generator set back meanwhile."""
    torch.manual_seed(1)
    state = stop_after(with_sampler("random", seed=3), 0, 2)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    resumed = with_sampler("random", seed=3)
    resumed.load_state_dict(state)
    assert len(list(resumed)) == _NUM_BATCHES - 2
    assert torch.equal(torch.get_rng_state(), before)


def test_a_sampler_that_names_other_seeds_is_found_out():
    """Else seeds would be lost, and others come twice."""
    random.seed(1)
    loader = NeighborLoader(GRAPH, [3], sampler=OddSampler(), batch_size=_BATCH_SIZE, seed=2)
    state = stop_after(loader, 0, 2)
    loader.load_state_dict(state)
    with pytest.raises(ValueError, match="names other seeds for the first 2 batches"):
        next(iter(loader))
    random.seed(1)  # as it was
    loader.load_state_dict(state)
    assert len(list(loader)) == _NUM_BATCHES - 2


def test_a_sampler_that_ends_early_is_found_out():
    """It named three batches before, and names one now."""
    batches = [[1], [2], [3]]
    loader = NeighborLoader(GRAPH, [3], batch_sampler=batches, seed=2)
    loader.load_state_dict(stop_after(loader, 0, 2))
    del batches[1:]
    with pytest.raises(ValueError, match="other seeds"):
        list(loader)


# States of others -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_nodes": torch.arange(1, _NUM_NODES)}, "other seeds"),
        ({"input_nodes": torch.arange(_NUM_NODES).flip(0)}, "other seeds"),
        ({"batch_size": 18}, r"batch_size=20 \(here 18\)"),
        ({"shuffle": False}, r"shuffle=True \(here False\)"),
        ({"drop_last": True}, r"drop_last=False \(here True\).*num_batches=5 \(here 4\)"),
        ({"seed": 4}, r"seed=3 \(here 4\)"),
        ({"seed": None}, r"seed=3 \(here None\)"),
        ({"stream": 1}, r"stream=0 \(here 1\)"),
        ({"num_neighbors": [3, 3]}, "options of sampling"),
        ({"num_neighbors": [3]}, "options of sampling"),
        ({"replace": True}, "options of sampling"),
        ({"disjoint": True}, "options of sampling"),
        ({"subgraph_type": "induced"}, "options of sampling"),
        ({"sampler": range(_NUM_NODES), "shuffle": None}, "shuffle=True"),
    ],
)
def test_states_of_other_loaders(options, message):
    """Are refused, and the loader is as if nothing had happened."""
    state = stop_after(make(seed=3), 0, 2)
    common = {"num_neighbors": [3, 2], "batch_size": _BATCH_SIZE, "shuffle": True, "seed": 3}
    other = NeighborLoader(GRAPH, **{**common, **options})
    with pytest.raises(ValueError, match="another loader.*" + message):
        other.load_state_dict(state)
    assert len(list(other)) == len(other)


def test_links_are_told_apart():
    """By their ends, their negatives and the weights of these."""
    links = GRAPH.edge_index[:, :40]
    common = {"batch_size": 8, "seed": 3}

    def loader(links=links, negatives=None, **options):
        return LinkNeighborLoader(GRAPH, [3], links, neg_sampling=negatives, **common, **options)

    state = loader().state_dict()
    weight = torch.rand(_NUM_NODES)
    weighted = {"mode": "triplet", "dst_weight": weight}
    for other in (
        loader(links.flip(0)),
        loader(negatives="binary"),
        loader(exclude_seed_edges="self"),
        loader(negatives=weighted),
    ):
        with pytest.raises(ValueError, match="other"):
            other.load_state_dict(state)
    state = loader(negatives=weighted).state_dict()
    loader(negatives={**weighted}).load_state_dict(state)
    with pytest.raises(ValueError, match="options of sampling"):
        loader(negatives={**weighted, "dst_weight": weight.flip(0)}).load_state_dict(state)


def damaged(change):
    state = stop_after(make(seed=3), 0, 2)
    change(state["rank-0"])
    return state


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        (None, TypeError, "what state_dict"),
        ([], TypeError, "what state_dict"),
        ({"model": 1}, ValueError, "no state of a loader"),
        ({"rank-0": 3}, ValueError, "no state of a loader"),
        (damaged(lambda e: e.update(version=2)), ValueError, "version 2"),
        (damaged(lambda e: e.pop("version")), ValueError, "version None"),
        (damaged(lambda e: e.pop("delivered")), ValueError, "damaged.*delivered"),
        (damaged(lambda e: e.pop("seeds")), ValueError, "damaged.*seeds"),
        (damaged(lambda e: e.update(delivered=6)), ValueError, "6 batches of 5"),
        (damaged(lambda e: e.update(delivered=-1)), ValueError, "delivered is -1"),
        (damaged(lambda e: e.update(epochs="1")), ValueError, "epochs is '1'"),
        (damaged(lambda e: e.update(run_key=2**64)), ValueError, "run_key is"),
        (damaged(lambda e: e.update(run_key=True)), ValueError, "run_key is True"),
    ],
)
def test_bad_states(state, error, message):
    with pytest.raises(error, match=message):
        make(seed=3).load_state_dict(state)


def test_the_first_trainers_state_does_for_others():
    """If a seed is given; with the keys of their own stream. Several do not: which one?"""
    share = torch.arange(40, _NUM_NODES)
    common = {"batch_size": 10, "shuffle": True}
    state = stop_after(NeighborLoader(GRAPH, [3], share, seed=3, **common), 1, 2)
    state = {"rank-4": state["rank-0"]}
    mine = torch.arange(50)  # as many
    other = NeighborLoader(GRAPH, [3], mine, seed=3, stream=1, **common)
    whole = epochs_of(NeighborLoader(GRAPH, [3], mine, seed=3, stream=1, **common), 3)
    assert go_on(other, state, 1, 3) == expected(whole, 1, 2)
    without = NeighborLoader(GRAPH, [3], mine, **common)
    with pytest.raises(ValueError, match="keep the state of every trainer"):
        without.load_state_dict(state)
    with pytest.raises(ValueError, match=r"trainers \['rank-4', 'rank-5'\], but this is trainer 0"):
        other.load_state_dict({**state, "rank-5": state["rank-4"]})


def test_workers_without_order():
    """What a number of batches cannot tell."""
    try:
        loader = make(seed=3, in_order=False, **_PROCESSES)
    except TypeError:
        pytest.skip("this torch always keeps the order")
    with pytest.raises(ValueError, match="in_order=False"):
        loader.state_dict()
    with pytest.raises(ValueError, match="in_order=False"):
        loader.load_state_dict({})
