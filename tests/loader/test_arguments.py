"""Bad input is named, with what to do about it."""

import pytest
import torch
from torch_geometric.data import Data

from khop.loader import NeighborLoader
from khop.sampler import NeighborSampler


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"input_time": torch.arange(200)}, "'input_time' is set, 'time_attr' is not set"),
        ({"subgraph_type": "full"}, "subgraph_type"),
        ({"temporal_strategy": "last"}, "needs times: pass time_attr"),
        ({"time_attr": "time"}, "time_attr='time'"),
        ({"weight_attr": "weight"}, "weight_attr='weight'"),
    ],
)
def test_contradicting_options(data, option, message):
    with pytest.raises(ValueError, match=message):
        NeighborLoader(data, [2], **option)


def test_directed_is_deprecated(data):
    with pytest.warns(UserWarning, match="subgraph_type='induced'"):
        loader = NeighborLoader(data, [2], directed=False, batch_size=20)
    assert "num_sampled_edges" not in next(iter(loader))


@pytest.mark.parametrize(
    ("nodes", "error", "message"),
    [
        (torch.tensor([3, -1]), IndexError, "input_nodes holds id -1 at position 1"),
        (torch.tensor([200]), IndexError, "input_nodes holds id 200 .* 0 to 199"),
        (torch.tensor([1.0]), TypeError, "input_nodes must hold integers"),
        ([0.5], TypeError, "input_nodes must hold integers"),
        (torch.ones(7, dtype=torch.bool), ValueError, "mask of 7 entries for 200 nodes"),
        (torch.zeros((2, 2), dtype=torch.long), ValueError, "one dimension"),
    ],
)
def test_bad_seeds(data, nodes, error, message):
    with pytest.raises(error, match=message):
        NeighborLoader(data, [2], nodes)


def test_given_input_ids(data):
    """Of all nodes and of masks, too; as many as there are seeds."""
    names, mask = torch.arange(200).flip(0), torch.arange(200) % 2 == 0
    for nodes, given in ((None, names), (mask, names[:100]), (torch.arange(7), list(range(7)))):
        loader = NeighborLoader(data, [2], nodes, input_id=given, batch_size=30)
        assert torch.cat([batch.input_id for batch in loader]).tolist() == list(given)
        with pytest.raises(ValueError, match="input_id must hold an entry for each of"):
            NeighborLoader(data, [2], nodes, input_id=given[:3])


@pytest.mark.parametrize(
    ("fanouts", "error"),
    [([2, -3], ValueError), *((wrong, TypeError) for wrong in ([1.5], 3, None, "23"))],
)
def test_bad_fanouts(data, fanouts, error):
    with pytest.raises(error, match="num_neighbors"):
        NeighborLoader(data, fanouts)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"batch_size": None}, ValueError, "makes no batches"),
        ({"batch_size": 1.5}, ValueError, "batch_size"),
        ({"num_workers": -1}, ValueError, "num_workers"),
        ({"worker_type": "fork"}, ValueError, "'thread' or 'process'"),
        ({"shuffle": True, "sampler": [1]}, ValueError, "mutually exclusive"),
        ({"batch_sampler": [[1]], "shuffle": True}, ValueError, "mutually exclusive"),
        ({"nonsense": 1}, TypeError, "nonsense"),
    ],
    ids=lambda o: next(iter(o)) if isinstance(o, dict) else None,
)
def test_bad_options(data, options, error, message):
    with pytest.raises(error, match=message):
        NeighborLoader(data, [2], **options)


def test_bad_graphs(data):
    with pytest.raises(TypeError, match="expected a PyG Data"):
        NeighborLoader(data.edge_index, [2])
    with pytest.raises(ValueError, match="transpose it into an 'adj_t'"):
        NeighborLoader(Data(x=data.x, adj=data.edge_index), [2])
    data.edge_index[0, 7] = -4
    with pytest.raises(IndexError, match="edge 7 joins node -4"):
        NeighborLoader(data, [2])


@pytest.mark.parametrize(
    ("count", "error", "message"),
    [
        (2**62, ValueError, r"num_nodes must be from 0 to 2\^56 - 1 \(got 4611686018427387904\)"),
        (2**50, MemoryError, "is the number of nodes right"),
        (6.5, TypeError, "num_nodes must be an integer"),
    ],
)
def test_numbers_of_nodes_that_cannot_be(data, count, error, message):
    with pytest.raises(error, match=message):
        NeighborLoader(Data(edge_index=data.edge_index, num_nodes=count), [2])


def test_features_that_are_too_short(data):
    """A feature table that does not cover the graph is found out, not read beyond."""
    sampler = NeighborSampler(data, [-1])
    short = Data(x=data.x[:50], edge_index=data.edge_index % 50)
    message = r"attribute 'x' must have a row for each node .* outside a table of 50 rows"
    with pytest.raises(IndexError, match=message):
        list(NeighborLoader(short, [-1], batch_size=50, neighbor_sampler=sampler))
