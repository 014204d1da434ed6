"""Times that are none, or too many, or missing: errors when a loader is made."""

import pytest
import torch

from khop.loader import NeighborLoader
from khop.sampler import NeighborSampler
from support.loaders import random_graphs


def graph():
    """Five nodes with times; 0 and 1 are asked about."""
    data = random_graphs.homogeneous(5, 8, times="node")
    data.time = torch.tensor([3, 5, 1, 1, 0])
    return data


@pytest.mark.parametrize(
    ("time", "error", "message"),
    [
        (torch.tensor([0.0, float("nan")]), ValueError, "nan at position 1"),
        (torch.tensor([True, False]), TypeError, "integers or floats"),
        (torch.tensor([[1], [2]]), ValueError, "one dimension"),
        (torch.arange(5), ValueError, "input_time must hold an entry for each of 2 seeds"),
        (torch.tensor([3]), ValueError, "input_time must hold an entry for each of 2 seeds"),
        (torch.tensor(3), ValueError, "input_time must hold an entry for each of 2 seeds"),
    ],
    ids=["nan", "bool", "2-d", "all nodes'", "one", "number"],
)
@pytest.mark.parametrize("seeds", [torch.tensor([0, 1]), torch.arange(5) < 2], ids=["ids", "mask"])
def test_bad_times_of_seeds(time, error, message, seeds):
    """Named when the loader is made."""
    with pytest.raises(error, match=message):
        NeighborLoader(graph(), [2], seeds, time, time_attr="time")


def test_seeds_without_a_time():
    """Neither given nor their own: an error when the loader is made."""
    data = random_graphs.heterogeneous(times=("b",))
    with pytest.raises(ValueError, match="not of nodes of type 'a': pass the time"):
        NeighborLoader(data, [2], "a", time_attr="time")
    data = random_graphs.homogeneous(times="edge")
    with pytest.raises(ValueError, match=r"those of edges, not of nodes .*'input_time'"):
        NeighborLoader(data, [2], time_attr="edge_time")
    with pytest.raises(ValueError, match="'input_time' is set, 'time_attr' is not set"):
        sampler = NeighborSampler(data, [2])
        NeighborLoader(
            data, [2], None, torch.arange(40), time_attr="edge_time", neighbor_sampler=sampler
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time": torch.tensor([0.0, 1, 2, 3, float("nan")])}, "'time'.* holds nan at position 4"),
        ({"time": torch.ones(5, dtype=torch.bool)}, "integers or floats"),
        ({"time": torch.ones(5, 2)}, "one dimension"),
        ({"time": None}, "neither of nodes nor of edges"),
    ],
    ids=["nan", "bool", "2-d", "none"],
)
def test_bad_times_of_graphs(change, message):
    data = graph()
    for name, value in change.items():
        data[name] = value
    with pytest.raises((ValueError, TypeError), match=message):
        NeighborLoader(data, [2], time_attr="time")


def test_times_of_nodes_and_edges():
    """A name that both have is refused, as with PyG."""
    data = random_graphs.heterogeneous(times="node")
    data["a", "to", "b"].time = torch.arange(150)
    with pytest.raises(ValueError, match="both of nodes and of edges"):
        NeighborLoader(data, [2], "a", time_attr="time")


@pytest.mark.parametrize("level", ["node", "edge"])
def test_times_of_another_number_than_nodes_or_edges(level):
    """Refused: the type would be taken to have no times, and give away what comes later."""
    data = random_graphs.heterogeneous(times=level)
    name = "time" if level == "node" else "edge_time"
    if level == "node":
        data["b"].time = data["b"].time[:19]
        message = r"'time' of 'b' has shape \[19\] for 20 nodes"
    else:
        data["a", "to", "b"].edge_time = torch.ones(3)
        message = r"'edge_time' of \('a', 'to', 'b'\) has shape \[3\] for 150 edges"
    with pytest.raises(ValueError, match=message):
        NeighborLoader(data, [2], "a", torch.zeros(30), time_attr=name)
