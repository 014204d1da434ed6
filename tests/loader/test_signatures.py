"""Every option of PyG's loaders and sampler is there and has an effect.

A new option of PyG's fails `test_all_options_are_known`, until somebody says here what it changes.
"""

import inspect
import os

import pytest
import torch
import torch_geometric.loader
import torch_geometric.sampler
from torch_geometric.data import Data
from torch_geometric.loader.link_loader import LinkLoader
from torch_geometric.loader.node_loader import NodeLoader
from torch_geometric.sampler import NodeSamplerInput
from torch_geometric.testing import MyFeatureStore, MyGraphStore

from khop.loader import LinkNeighborLoader, NeighborLoader
from khop.sampler import NeighborSampler
from support.loaders import random_graphs
from support.versions import of_newest_pyg

SORTED = r"is_sorted=True, but edge \d+"
TIMES = {"time_attr": "time"}
EDGES = torch.tensor([[0, 1, 2], [3, 4, 5]])


class Own(Data):
    """A class of batches."""


def first_edge(out):
    out.row, out.col, out.edge = out.row[:1], out.col[:1], out.edge[:1]
    return out


def mark(batch):
    batch.marked = True
    return batch


# Option: (arguments without it, the option's value, or the message of the error that it raises).
SAMPLING = {
    "replace": ({"num_neighbors": [50]}, True),
    "subgraph_type": ({}, "induced"),
    "disjoint": ({}, True),
    "temporal_strategy": (TIMES, "last"),
    "weight_attr": ({}, "edge_weight"),
    "directed": ({}, False),
}
LOADING = {
    "transform": ({}, mark),
    "transform_sampler_output": ({}, first_edge),
    "neighbor_sampler": ({}, True),  # `made` makes one of other fan-outs
    "num_neighbors": ({}, [1]),
}
NODES = {
    **SAMPLING,
    **LOADING,
    "time_attr": ({}, "time"),
    "input_nodes": ({}, torch.tensor([7, 3])),
    "input_time": (TIMES, torch.zeros(40)),
    "input_id": ({}, torch.arange(40) + 100),
    "is_sorted": (TIMES, SORTED),
}
LINKS = {
    **SAMPLING,
    **LOADING,
    "temporal_strategy": ({**TIMES, "edge_label_time": torch.full((3,), 3)}, "last"),
    "time_attr": ({}, "'time_attr' is set, 'edge_label_time' is not"),
    "edge_label_time": ({}, "'edge_label_time' is set, 'time_attr' is not"),
    "edge_label_index": ({}, EDGES.flip(1)),
    "edge_label": ({}, torch.tensor([1, 2, 3])),
    "neg_sampling": ({}, "binary"),
    "neg_sampling_ratio": ({}, 2),
    "input_id": ({}, torch.tensor([7, 8, 9])),
    "is_sorted": ({**TIMES, "edge_label_time": torch.full((3,), 3)}, SORTED),
}
SAMPLER = {
    **SAMPLING,
    "num_neighbors": ({}, [1]),
    "time_attr": ({}, "time"),
    "is_sorted": (TIMES, SORTED),
    "sample_direction": ({}, "backward"),
}
# Checked on their own below, or without an effect that could be seen (`share_memory`).
APART = {"self", "data", "kwargs", "filter_per_worker", "custom_cls", "share_memory"}
PASSED_ON = {"node_sampler", "link_sampler"}  # of the base classes: `neighbor_sampler`


@pytest.fixture
def graph():
    return random_graphs.homogeneous(times="node", weights=True)


def made(kind, data, arguments):
    """A loader; a sampler in its arguments is made."""
    arguments = {"num_neighbors": [3, 2], "seed": 1, **arguments}
    if arguments.get("neighbor_sampler") is not None:
        arguments["neighbor_sampler"] = NeighborSampler(data, [1], seed=1)
    if kind is LinkNeighborLoader:
        arguments = {"edge_label_index": EDGES, **arguments}
    return kind(data, batch_size=40, **arguments)


def draw(data, arguments):
    """What a sampler returns."""
    sampler = NeighborSampler(data, **{"num_neighbors": [3, 2], "seed": 1, **arguments})
    return vars(sampler.sample_from_nodes(NodeSamplerInput(None, torch.arange(20))))


def told(batch):
    """All attributes of a batch, as they can be compared."""
    named = batch if isinstance(batch, dict) else batch.to_dict()
    values = {k: v.tolist() if isinstance(v, torch.Tensor) else repr(v) for k, v in named.items()}
    return dict(sorted(values.items()))


@of_newest_pyg
def test_all_options_are_known():
    """PyG's names are exactly those that are tested here."""
    for theirs, table in (
        ((torch_geometric.loader.NeighborLoader, NodeLoader), NODES),
        ((torch_geometric.loader.LinkNeighborLoader, LinkLoader), LINKS),
        ((torch_geometric.sampler.NeighborSampler,), SAMPLER),
    ):
        names = {name for kind in theirs for name in inspect.signature(kind.__init__).parameters}
        assert names - APART - PASSED_ON == set(table)


@of_newest_pyg
def test_the_samplers_signature():
    """PyG's options, in PyG's order with PyG's defaults; then khop's own, by name alone."""
    mine, given = (
        inspect.signature(kind).parameters
        for kind in (NeighborSampler, torch_geometric.sampler.NeighborSampler)
    )
    assert list(mine)[: len(given)] == list(given)
    for name, parameter in given.items():
        assert (mine[name].default, mine[name].kind) == (parameter.default, parameter.kind)
    for name in list(mine)[len(given) :]:
        assert mine[name].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.filterwarnings("ignore:directed=False:UserWarning")
@pytest.mark.parametrize("name", NODES)
def test_options_of_nodes(graph, name):
    """A batch is another with the option than without, or the option is refused by name."""
    assert_effective(name, *NODES[name], lambda a: next(iter(made(NeighborLoader, graph, a))))


@pytest.mark.filterwarnings("ignore:directed=False:UserWarning")
@pytest.mark.parametrize("name", LINKS)
def test_options_of_links(graph, name):
    assert_effective(name, *LINKS[name], lambda a: next(iter(made(LinkNeighborLoader, graph, a))))


@pytest.mark.filterwarnings("ignore:directed=False:UserWarning")
@pytest.mark.parametrize("name", SAMPLER)
def test_options_of_the_sampler(graph, name):
    assert_effective(name, *SAMPLER[name], lambda a: draw(graph, a))


def assert_effective(name, arguments, value, make):
    plain = told(make(arguments))
    assert plain == told(make(arguments))
    if name == "is_sorted":
        with pytest.raises(ValueError, match=value):
            make({**arguments, name: True})
    elif isinstance(value, str) and " " in value:
        with pytest.raises(ValueError, match=value):
            make({**arguments, name: "time" if name == "time_attr" else torch.zeros(3)})
    else:
        assert told(make({**arguments, name: value})) != plain


def test_share_memory(graph):
    """Accepted: threads share the graph, and forked processes have it as it is."""
    assert told(draw(graph, {"share_memory": True})) == told(draw(graph, {}))


def test_custom_cls(graph):
    """Of batches from stores."""
    features, edges = MyFeatureStore(), MyGraphStore()
    features.put_tensor(graph.x, group_name=None, attr_name="x", index=None)
    edges.put_edge_index(tuple(graph.edge_index), edge_type=None, layout="coo", size=(40, 40))
    batch = next(iter(NeighborLoader((features, edges), [2], custom_cls=Own)))
    assert isinstance(batch, Own)


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("kind", [NeighborLoader, LinkNeighborLoader])
@pytest.mark.parametrize("here", [False, True], ids=["in the worker", "in the trainer"])
def test_filter_per_worker(graph, kind, here):
    """Says where worker processes' batches are joined and transformed."""

    def sign(batch):
        batch.process = os.getpid()
        return batch

    options = {"filter_per_worker": not here, "transform": sign, "num_workers": 1}
    (batch,) = made(kind, graph, {**options, "worker_type": "process"})
    assert (batch.process == os.getpid()) == here
