"""Epochs of virtual ranks: the same batches by virtual rank, whatever the number of trainers.

The oracle is an in-memory loader for each virtual rank: of its share of the seeds, with its stream.
"""

import itertools
import json

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from khop.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistClusterLoader,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    link_split,
    node_split,
)
from khop.distributed.loaders.split import divide
from khop.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader, merge_states
from khop.partition import RandomPartitioner
from support.cluster import jobs, resume_jobs
from support.cluster.servers import cluster

_RANKS = 4
_COMMON = {"batch_size": 8, "shuffle": True, "seed": 11}
_WORKERS = {
    None: CollocatedDistSamplingWorkerOptions(),
    2: MpDistSamplingWorkerOptions(num_workers=2),
}


@pytest.fixture
def dataset(folder_of):
    return DistDataset().load(folder_of("random", 3), 1, also_serve=[0, 2])


def homes_of(num_ranks, num_parts=3):
    return [rank % num_parts for rank in range(num_ranks)]


def links_of(graph):
    return graph.edge_index[:, :160]


def virtual(dataset, graph, kind="nodes", num_workers=None, **options):
    """A loader of four virtual ranks."""
    common = {"num_virtual_ranks": _RANKS, "worker_options": _WORKERS[num_workers], **_COMMON}
    common.update(options)
    if kind == "nodes":
        return DistNeighborLoader(dataset, [4, 3], "train_mask", **common)
    if kind == "subgraphs":
        return DistSubGraphLoader(dataset, graph.train_mask, [4], **common)
    if kind == "clusters":
        common["batch_size"] = 2
        return DistClusterLoader(dataset, assignment=clusters_of(graph), **common)
    links, labels = links_of(graph), 1 + torch.arange(160)
    ends = {"edge_label_index": links, "edge_label": labels}
    return DistLinkNeighborLoader(dataset, [4], **ends, neg_sampling="binary", **common)


def clusters_of(graph):
    return torch.arange(graph.num_nodes) % 24


def twins_of(dataset, graph, kind="nodes", num_ranks=_RANKS, **options):
    """For each virtual rank, the in-memory loader of its share."""
    common = {**_COMMON, **options}
    for rank in range(num_ranks):
        place = {"rank": rank, "homes": homes_of(num_ranks)}
        common["stream"] = rank
        if kind == "nodes":
            share = node_split("train_mask", dataset, **place)
            yield NeighborLoader(graph, [4, 3], share, **common)
        elif kind == "subgraphs":
            share = node_split(graph.train_mask, dataset, **place)
            yield SubGraphLoader(graph, share, [4], **common)
        elif kind == "clusters":  # these are proved against those in memory elsewhere
            share, common["batch_size"] = cluster_shares(dataset, graph)[rank], 2
            yield DistClusterLoader(dataset, share, assignment=clusters_of(graph), **common)
        else:
            share = link_split(links_of(graph), dataset, **place)
            given = {"edge_label_index": links_of(graph)[:, share], "edge_label": 1 + share}
            yield LinkNeighborLoader(graph, [4], **given, neg_sampling="binary", **common)


def cluster_shares(dataset, graph):
    """The clusters of each virtual rank, by the part that has most nodes of each."""
    owners = dataset.meta.node_types[0].book.owner(dataset.to_new_ids(torch.arange(500), "ids"))
    held = [np.bincount(owners[clusters_of(graph).numpy() == c], minlength=3) for c in range(24)]
    homes = np.array([int(np.argmax(counts)) for counts in held])
    order = np.argsort(homes, kind="stable")
    return [np.sort(share) for share in divide(homes, order, 3, homes_of(_RANKS))]


def check_same(batches, expected):
    """As many batches, equal in all but the positions of seeds in the list of all."""
    names = ("n_id", "e_id", "edge_index", "x", "y", "edge_label", "edge_label_index", "mapping")
    count = 0
    for got, want in itertools.zip_longest(batches, expected):
        for name in names:
            assert torch.equal(*(batch.get(name, torch.empty(0)) for batch in (got, want))), name
        count += 1
    return count


def in_turn(epochs):
    """Batch 0 of every virtual rank, batch 1 of every one, and so on."""
    return [batch for batch in itertools.chain(*itertools.zip_longest(*epochs)) if batch]


@pytest.mark.parametrize("num_workers", [None, 2])
@pytest.mark.parametrize("kind", ["nodes", "subgraphs", "clusters", "links"])
def test_one_trainer_makes_all(graph, dataset, kind, num_workers):
    """Its epochs are those of all virtual ranks; with samplers, too."""
    loader = virtual(dataset, graph, kind, num_workers)
    twins = list(twins_of(dataset, graph, kind))
    for _ in range(2):
        expected = in_turn([list(twin) for twin in twins])
        assert check_same(loader, expected) == len(loader) == len(expected)


def test_one_virtual_rank(graph, dataset):
    """It is a loader without, of the same list: to the bit, positions of seeds included."""
    share = node_split("train_mask", dataset)
    plain, options = virtual(dataset, graph, num_virtual_ranks=None), {"num_virtual_ranks": 1}
    ones = [DistNeighborLoader(dataset, [4, 3], share, **_COMMON, **options)]
    ones.append(virtual(dataset, graph, **options))
    expected = list(plain)
    for loader in ones:
        for got, want in zip(loader, expected, strict=True):
            assert got.keys() == want.keys()
            for name in ("n_id", "e_id", "edge_index", "x"):
                assert torch.equal(got[name], want[name])
    assert ones[0].state_dict() == plain.state_dict() == ones[1].state_dict()


def test_times_of_seeds(tmp_path):
    """Each seed keeps its time, in batches and in states."""
    ids = torch.arange(60)
    draw = torch.Generator().manual_seed(2)
    graph = Data(
        x=ids.float().view(-1, 1),
        edge_index=torch.randint(60, (2, 300), generator=draw),
        time=ids % 17,
    )
    RandomPartitioner.from_data(graph, tmp_path / "parts", 2, time_attr="time").partition()
    dataset, times = DistDataset().load(tmp_path / "parts", 0, also_serve=[1]), (ids + 3) % 17
    common = {"time_attr": "time", **_COMMON}
    loader = DistNeighborLoader(
        dataset, [3, 2], None, input_time=times, num_virtual_ranks=2, **common
    )
    shares = [node_split(ids, dataset, rank=v, homes=[0, 1]) for v in range(2)]
    twins = [
        NeighborLoader(graph, [3, 2], share, times[share], stream=v, **common)
        for v, share in enumerate(shares)
    ]
    expected = in_turn([list(twin) for twin in twins])
    for got, want in zip(loader, expected, strict=True):
        assert torch.equal(got.n_id, want.n_id)
        assert torch.equal(got.seed_time, want.seed_time)
    entries = [entry for twin in twins for entry in twin.state_dict().values()]
    assert list(loader.state_dict().values()) == entries


def test_positions_are_those_in_the_list_of_all(graph, dataset):
    """`input_id` of a list; of the name of an attribute they are ids, as without virtual ranks."""
    seeds = torch.randperm(500, generator=torch.Generator().manual_seed(4))[:100]
    options = {"num_virtual_ranks": 3, **_COMMON}
    for batch in DistNeighborLoader(dataset, [2], seeds, **options):
        assert torch.equal(seeds[batch.input_id], batch.n_id[: batch.batch_size])
    for batch in DistNeighborLoader(dataset, [2], "train_mask", **options):
        assert torch.equal(batch.input_id, batch.n_id[: batch.batch_size])


def stopped(loaders, counts):
    """States of loaders, in the second epoch, after so many batches each; keyed by their number."""
    states = []
    for rank, (loader, count) in enumerate(zip(loaders, counts, strict=True)):
        list(loader)
        for _ in itertools.islice(loader, count):
            pass
        (entry,) = loader.state_dict().values()
        states.append(json.loads(json.dumps({f"rank-{rank}": entry})))
    return states


@pytest.mark.parametrize("counts", [(2, 0, 3, 1), (1, 1, 1, 1), (0, 0, 0, 0)])
def test_states_of_single_trainers(graph, dataset, counts):
    """Trainers without virtual ranks, not in step, are taken over; and the other way."""
    state = merge_states(stopped(list(twins_of(dataset, graph)), counts))
    loader = virtual(dataset, graph)
    loader.load_state_dict(state)
    assert json.loads(json.dumps(loader.state_dict())) == state
    epochs = []
    for twin, count in zip(twins_of(dataset, graph), counts, strict=True):
        list(twin)
        left = itertools.islice(enumerate(twin), count, None)
        epochs.append([list(left), list(twin)])
    rest = sorted(((i, v, b) for v, (left, _) in enumerate(epochs) for i, b in left), key=_place)
    assert check_same(loader, [batch for *_, batch in rest]) == len(rest)
    assert check_same(loader, in_turn([after for _, after in epochs])) == len(loader)
    loader.load_state_dict(state)
    again = iter(loader)
    assert again.delivered == len(loader) - len(rest)
    for batch in itertools.islice(again, 2):
        del batch
    entries = loader.state_dict()
    for rank, twin in enumerate(twins_of(dataset, graph)):
        twin.load_state_dict({f"rank-{rank}": entries[f"rank-{rank}"]})
        left = [batch for _, v, batch in rest[2:] if v == rank]
        assert check_same(twin, left) == len(left)


def _place(entry):
    return entry[:2]


def test_ends_of_epochs(graph, dataset):
    """After the last batch nothing is left; after the end a new epoch begins."""
    loader, twins = virtual(dataset, graph), list(twins_of(dataset, graph))
    epochs = [in_turn([list(twin) for twin in twins]) for _ in range(2)]
    assert set(loader.state_dict()) == {f"rank-{rank}" for rank in range(_RANKS)}
    iterator = iter(loader)
    for _ in range(len(loader)):
        next(iterator)
    before_the_end = loader.state_dict()
    assert list(iterator) == []
    for state in (before_the_end, loader.state_dict()):
        resumed = virtual(dataset, graph)
        resumed.load_state_dict(state)
        if state is before_the_end:
            assert list(resumed) == []
        assert check_same(resumed, epochs[1]) == len(loader)
    resumed.load_state_dict({})
    assert len(list(resumed)) == len(loader)


def test_what_is_refused(graph, dataset):
    """Options that contradict virtual ranks, and states that do not have all of them."""
    for options, message in (
        ({"seed": None}, "needs a seed"),
        ({"stream": 2}, r"stream=2 contradicts num_virtual_ranks"),
        ({"num_virtual_ranks": 0}, "num_virtual_ranks must be"),
        ({"num_virtual_ranks": 600, "batch_size": 1}, "virtual ranks have"),
    ):
        with pytest.raises(ValueError, match=message):
            virtual(dataset, graph, **options)
    with pytest.raises(ValueError, match="pass the links of all trainers"):
        DistLinkNeighborLoader(dataset, [4], num_virtual_ranks=2, seed=1)
    state = virtual(dataset, graph).state_dict()
    with pytest.raises(ValueError, match=r"holds 4 ranks.*num_virtual_ranks=3"):
        virtual(dataset, graph, num_virtual_ranks=3).load_state_dict(state)
    with pytest.raises(ValueError, match=r"virtual rank 0: .*batch_size=8 \(here 4\)"):
        virtual(dataset, graph, batch_size=4).load_state_dict(state)
    del state["rank-2"]
    with pytest.raises(ValueError, match=r"\['rank-2'\] are missing.*merge_states"):
        virtual(dataset, graph).load_state_dict(state)
    with pytest.raises(TypeError, match="state_dict"):
        virtual(dataset, graph).load_state_dict([])


def test_damaged_states(graph, dataset):
    """Nothing that no loader can have saved is gone on with."""
    loader = virtual(dataset, graph)
    next(iter(loader))
    for name, value, message in (
        ("run_key", 5, "run keys are not those"),
        ("run_key", -1, "run_key is -1"),
        ("delivered", 10**6, "1000000 batches of"),
        ("delivered", True, "delivered is True"),
        ("epochs", 7, r"different epochs.*'rank-1': 7"),
        ("seeds", "x", "virtual rank 1: .*other seeds"),
        ("stream", 0, r"stream=0 \(here 1\)"),
    ):
        state = loader.state_dict()
        state["rank-1"][name] = value
        with pytest.raises(ValueError, match=message):
            virtual(dataset, graph).load_state_dict(state)


@pytest.mark.parametrize("shared_memory", [True, False])
def test_graph_servers_make_them(graph, folder_of, shared_memory):
    """Through samplers on this machine, and through a receiver; any server makes any batch."""
    workers = RemoteDistSamplingWorkerOptions(shared_memory=shared_memory)
    homes = {"homes": homes_of(4, 2)}
    options = {"worker_options": workers, "num_virtual_ranks": 4, **_COMMON}
    with cluster(folder_of("random", 2), [[0], [1]], 1) as servers, servers.client() as client:
        shares = [node_split("train_mask", client.graph, rank=v, **homes) for v in range(4)]
        loader = DistNeighborLoader(None, [4, 3], "train_mask", **options)
        twins = [
            NeighborLoader(graph, [4, 3], share, stream=v, **_COMMON)
            for v, share in enumerate(shares)
        ]
        expected = in_turn([list(twin) for twin in twins])
        assert check_same(loader, expected) == len(loader)
        with pytest.raises(ValueError, match="one list, those of all trainers"):
            lists = [share.tolist() for share in shares[:2]]
            options["worker_options"] = RemoteDistSamplingWorkerOptions(server_rank=[0, 1])
            DistNeighborLoader(None, [4, 3], lists, **options)


@pytest.mark.timeout(400)
def test_trainers_come_and_go(graph, folder_of, tmp_path):
    """Three trainers begin an epoch, two go on and end it, and so do four where the two were.

    Through `torch.distributed.checkpoint`; with twelve virtual ranks and sampler processes; with
    seven, whose batches no number of trainers divides; and with three, which at first are the
    trainers.
    """
    root = str(folder_of("random", 3))
    homes = {3: [0, 1, 2], 2: [0, 1], 4: [0, 1, 2, 0]}
    batches = {3: 2, 2: 3, 4: 2}

    def run(world, before, **others):
        arguments = {"root": root, "batches": batches[world], "to": str(tmp_path / str(world))}
        arguments["homes"] = homes[world]
        arguments["from"] = None if before is None else str(tmp_path / str(before))
        program = resume_jobs.__name__
        started = jobs.start_trainers("virtual", {**arguments, **others}, world, program=program)
        return jobs.finish_trainers(started, 200)

    found = {3: run(3, None)}
    found[2] = run(2, 3, also_serve={"1": [2]})
    found[4] = run(4, 2)
    dataset = DistDataset().load(root, 0, also_serve=[1, 2])
    for name, num_ranks in (("twelve", 12), ("seven", 7), ("three", 3)):
        shares = [
            node_split("train_mask", dataset, rank=v, homes=homes_of(num_ranks))
            for v in range(num_ranks)
        ]
        check_job(graph, shares, {w: [f[name] for f in found[w]] for w in found})


def check_job(graph, shares, found):
    """Each batch of the second epoch once, by virtual rank and in order; and of the third."""
    options = dict(resume_jobs.VIRTUAL)
    fanouts, epochs = options.pop("fanouts"), []
    for rank, share in enumerate(shares):
        twin = NeighborLoader(graph, fanouts, share, stream=rank, **options)
        epochs.append([resume_jobs.virtual_digests(twin) for _ in range(3)])
    place = {d: (v, i) for v, made in enumerate(epochs) for i, d in enumerate(made[1])}
    before: list = []
    for world, each in found.items():  # each goes on where the one before was saved
        taken = [place[d] for f in each for d in f[0]]
        made = taken + [place[d] for f in each for d in f[1]]
        due = sorted(set(place.values()) - set(before))
        assert sorted(set(made)) == due
        lengths = [len(f[0] + f[1]) for f in each]
        if len(shares) == 3:  # uneven
            assert len(made) == len(due)
            assert max(lengths) - min(lengths) <= 1
        else:  # some come again, so that all trainers make as many
            assert lengths == [-(-len(due) // world)] * world
        before += taken
        counts = [sum(v == rank for v, _ in before) for rank in range(len(shares))]
        assert sorted(before) == [(v, i) for v, n in enumerate(counts) for i in range(n)]
        assert {d for f in each for d in f[2]} == {d for e in epochs for d in e[2]}
