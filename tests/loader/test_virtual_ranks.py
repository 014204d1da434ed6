"""Batches of virtual ranks among trainers: each of them once, in rounds, whoever is there.

The oracle is the list of all (index, virtual rank), sorted, from which trainers take in turn.
"""

import itertools

from hypothesis import example, given, strategies as st

from khop.loader.iteration.virtual_ranks import VirtualRanks, assign_by_home

_COUNTS = st.lists(st.integers(0, 6), min_size=1, max_size=7)
_TRAINERS = st.lists(st.integers(0, 2), min_size=1, max_size=5)


def ranks_of(counts, trainers, **options):
    """Virtual ranks with homes in turn, among three parts."""
    return VirtualRanks(counts, [rank % 3 for rank in range(len(counts))], trainers, **options)


def shares_of(ranks, delivered):
    """Of each trainer, its (index, virtual rank) in order."""
    shares = [ranks.share(delivered, trainer) for trainer in range(len(ranks.trainers))]
    return [list(zip(indices.tolist(), of.tolist(), strict=True)) for of, indices in shares]


def due_of(counts, delivered):
    return sorted((i, v) for v, n in enumerate(counts) for i in range(delivered[v], n))


@st.composite
def begun(draw):
    """Numbers of batches, how many of them are delivered, and trainers."""
    counts = draw(_COUNTS)
    return counts, [draw(st.integers(0, n)) for n in counts], draw(_TRAINERS)


@given(begun())
def test_every_batch_once(case):
    """Without `even`, each batch is some trainer's, and counts differ by one at most."""
    counts, delivered, trainers = case
    ranks = ranks_of(counts, trainers, even=False)
    shares = shares_of(ranks, delivered)
    assert sorted(itertools.chain(*shares)) == due_of(counts, delivered)
    lengths = [len(share) for share in shares]
    assert lengths == [ranks.length(delivered, trainer) for trainer in range(len(trainers))]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


@given(begun(), st.booleans())
def test_equally_many(case, drop_last):
    """The last round repeats the first batches, or is left out; the others are as ever."""
    counts, delivered, trainers = case
    ranks = ranks_of(counts, trainers, drop_last=drop_last)
    shares, due = shares_of(ranks, delivered), due_of(counts, delivered)
    size = len(trainers)
    num_rounds = len(due) // size if drop_last else -(-len(due) // size)
    assert [len(share) for share in shares] == [num_rounds] * size
    assert [ranks.length(delivered, trainer) for trainer in range(size)] == [num_rounds] * size
    taken = list(itertools.islice(itertools.cycle(due), num_rounds * size))
    for i in range(num_rounds):
        of_round = [share[i] for share in shares]
        assert sorted(of_round) == sorted(taken[i * size : (i + 1) * size])


@given(begun(), st.booleans(), st.integers(0, 20))
def test_progress_is_what_trainers_took(case, even, rounds):
    """After any number of rounds a virtual rank has made a prefix of its batches."""
    counts, delivered, trainers = case
    ranks = ranks_of(counts, trainers, even=even)
    taken = {batch for share in shares_of(ranks, delivered) for batch in share[:rounds]}
    taken |= {(i, v) for v, n in enumerate(delivered) for i in range(n)}
    after = ranks.advance(delivered, rounds)
    assert taken == {(i, v) for v, n in enumerate(after) for i in range(n)}


@given(_COUNTS, st.lists(st.tuples(_TRAINERS, st.integers(0, 4)), max_size=6))
@example([4, 4, 4], [([0, 1, 2], 1), ([0, 1], 2), ([0, 1, 2, 0], 1)])
def test_trainers_come_and_go(counts, jobs):
    """Jobs of any sizes, each stopped after some rounds: together each batch once."""
    delivered, taken = [0] * len(counts), []
    for trainers, rounds in [*jobs, ([0], 10**6)]:
        ranks = ranks_of(counts, trainers, even=False)
        taken += [batch for share in shares_of(ranks, delivered) for batch in share[:rounds]]
        delivered = ranks.advance(delivered, rounds)
    assert sorted(taken) == due_of(counts, [0] * len(counts))
    assert delivered == counts


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.randoms())
def test_trainers_keep_to_their_partition(num_parts, trainers_each, ranks_each, random):
    """Where parts, trainers and virtual ranks divide each other, whatever the trainers' order."""
    trainers = [part for part in range(num_parts) for _ in range(trainers_each)]
    random.shuffle(trainers)
    homes = [v % num_parts for v in range(len(trainers) * ranks_each)]
    ranks = VirtualRanks([2] * len(homes), homes, trainers)
    for trainer, home in enumerate(trainers):
        of, _ = ranks.share([0] * len(homes), trainer)
        assert {homes[rank] for rank in of.tolist()} == {home}


def test_as_many_trainers_as_virtual_ranks():
    """With equal homes each trainer makes the batches of the virtual rank of its number."""
    ranks = VirtualRanks([3, 3, 3, 3], [0, 1, 0, 1], [0, 1, 0, 1])
    for trainer in range(4):
        of, indices = ranks.share([0] * 4, trainer)
        assert of.tolist() == [trainer] * 3
        assert indices.tolist() == [0, 1, 2]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8))
def test_as_many_at_home_as_can_be(pairs):
    """A permutation; of each part as many batches at home as there are of batches and trainers."""
    batches, trainers = [home for home, _ in pairs], [home for _, home in pairs]
    places = assign_by_home(batches, trainers)
    assert sorted(places) == list(range(len(pairs)))
    at_home = sum(batches[p] == home for p, home in zip(places, trainers, strict=True))
    assert at_home == sum(min(batches.count(part), trainers.count(part)) for part in range(4))
