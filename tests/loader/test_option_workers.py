"""Threads and worker processes make the same batches, whatever the sampling options."""

import pickle

import pytest
import torch
import torch_geometric.loader
from torch_geometric.sampler import NodeSamplerInput

from khop.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader
from khop.sampler import NeighborSampler
from support.loaders import links, random_graphs

pytestmark = [
    pytest.mark.filterwarnings("ignore:.* reverse:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]
HETERO = pytest.mark.parametrize("hetero", [False, True], ids=["homogeneous", "heterogeneous"])
OPTIONS = {
    "disjoint": {"disjoint": True},
    "times of nodes": {"time_attr": "time", "temporal_strategy": "last"},
    "times of edges": {"time_attr": "edge_time"},
    "weights": {"weight_attr": "edge_weight"},
    "weights and times": {"weight_attr": "edge_weight", "time_attr": "time", "replace": True},
    "induced": {"subgraph_type": "induced"},
    "bidirectional": {"subgraph_type": "bidirectional"},
    "induced trees at a time": {"subgraph_type": "induced", "time_attr": "time"},
}
options = pytest.mark.parametrize("name", OPTIONS)
PROCESSES = {"num_workers": 2, "worker_type": "process"}


def make(name, hetero):
    """A graph that has what an option needs, and a loader's arguments."""
    given = OPTIONS[name]
    times = {None: None, "time": "node", "edge_time": "edge"}[given.get("time_attr")]
    kind = random_graphs.heterogeneous if hetero else random_graphs.homogeneous
    data = kind(times=times, weights="weight_attr" in given)
    common = {"input_nodes": "a" if hetero else None, "batch_size": 7, "shuffle": True, "seed": 4}
    if times:
        common["input_time"] = torch.arange(30 if hetero else 40) % 7
    return data, {**common, **given}


def epochs(loader, count=2):
    return [batch.to_dict() for _ in range(count) for batch in loader]


def assert_same(ours, theirs):
    assert len(ours) == len(theirs) > 2
    assert all(links.are_same(a, b) for a, b in zip(ours, theirs, strict=True))


@options
@HETERO
def test_threads(name, hetero):
    """Two epochs: in the trainer, and in threads."""
    data, arguments = make(name, hetero)
    alone = epochs(NeighborLoader(data, [3, 2], **arguments))
    assert_same(epochs(NeighborLoader(data, [3, 2], num_workers=3, **arguments)), alone)


@pytest.mark.process
@pytest.mark.parametrize(
    "name,hetero,more",
    [
        *((name, i % 2 == 0, {"persistent_workers": True}) for i, name in enumerate(OPTIONS)),
        ("weights and times", True, {"filter_per_worker": False}),
        ("induced trees at a time", False, {"filter_per_worker": False}),
    ],
)
def test_processes(name, hetero, more):
    """The same in processes that persist, or that join in the trainer."""
    data, arguments = make(name, hetero)
    alone = epochs(NeighborLoader(data, [3, 2], **arguments))
    loader = NeighborLoader(data, [3, 2], **arguments, **PROCESSES, **more)
    assert_same(epochs(loader), alone)


@options
@HETERO
def test_pickled_samplers(name, hetero):
    """A copy, after a pickle's journey, draws what the sampler draws: times, weights, trees."""
    data, _ = make(name, hetero)
    given = {**OPTIONS[name], "seed": 3}
    sampler = NeighborSampler(data, [3, 2], **given)
    copy = pickle.loads(pickle.dumps(sampler))
    index = NodeSamplerInput(
        None, torch.tensor([3, 9, 0]), torch.tensor([2, 4, 6]), "a" if hetero else None
    )
    if "time_attr" not in given:
        index.time = None
    for _ in range(2):
        ours, theirs = copy.sample_from_nodes(index), sampler.sample_from_nodes(index)
        assert links.are_same(vars(ours) | {"metadata": 0}, vars(theirs) | {"metadata": 0})
    assert (copy.disjoint, copy.is_temporal) == (sampler.disjoint, sampler.is_temporal)


@pytest.mark.parametrize("name", ["weights and times", "induced trees at a time"])
def test_pickled_loaders(name):
    """As spawned worker processes get them."""
    data, arguments = make(name, True)
    loader = NeighborLoader(data, [3, 2], **arguments)
    copy = pickle.loads(pickle.dumps(loader))
    assert_same(epochs(copy), epochs(loader))


@pytest.mark.process
def test_pygs_loader_with_processes():
    """Around khop's sampler; each worker counts its own calls, so only what holds is compared."""
    data, arguments = make("weights and times", False)
    sampler = NeighborSampler(data, [3, 2], **OPTIONS["weights and times"])
    loader = torch_geometric.loader.NeighborLoader(
        data,
        [3, 2],
        input_time=arguments["input_time"],
        time_attr="time",
        neighbor_sampler=sampler,
        num_workers=2,
        batch_size=7,
    )
    for batch in loader:
        assert torch.equal(data.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])
        assert (batch.edge_weight > 0).all()
        late = batch.time > batch.seed_time[batch.batch]
        assert not late[batch.batch_size :].any()


@pytest.mark.parametrize("kind", ["links", "subgraphs"])
@pytest.mark.parametrize("workers", [{"num_workers": 2}, PROCESSES], ids=["threads", "processes"])
def test_other_loaders(kind, workers):
    data, arguments = make("times of nodes", True)
    if kind == "subgraphs":
        arguments.pop("temporal_strategy")
        made = [SubGraphLoader(data, num_neighbors=[2], **arguments, **w) for w in ({}, workers)]
    else:
        arguments = {"seed": 4, "batch_size": 20, "edge_label_time": torch.arange(150) % 7}
        arguments |= {"neg_sampling": "binary", **OPTIONS["times of nodes"], "shuffle": True}
        made = [
            LinkNeighborLoader(data, [2, 2], ("a", "to", "b"), **arguments, **w)
            for w in ({}, workers)
        ]
    assert_same(epochs(made[1]), epochs(made[0]))
