"""The examples that train with a graph store: exact where they say so, and something is learned."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import LightGCN, SAGEConv
from torch_geometric.utils import degree

from khop.distributed import (
    DistClusterLoader,
    DistDataset,
    DistNeighborLoader,
    GraphStore,
    shutdown_worker_group,
)
from khop.loader import NeighborLoader
from khop.partition import RandomPartitioner

EXAMPLES = Path(__file__).parents[2] / "examples"
CHANCE = 0.105
"""Share of the largest section of Debian's packages."""


def accuracy_of(printed):
    return float(re.search(r"test accuracy: ([\d.]+)", printed)[1])


@pytest.fixture
def module_of(monkeypatch):
    """module_of(name): an example, imported."""
    monkeypatch.syspath_prepend(EXAMPLES)

    def module_of(name):
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return module_of


@pytest.fixture(scope="module")
def graph():
    """60 nodes, of which some have no edges, and parallel edges."""
    draw = torch.Generator().manual_seed(3)
    return Data(
        x=torch.randn(60, 5, generator=draw),
        edge_index=torch.randint(50, (2, 300), generator=draw),
        y=torch.randint(4, (60,), generator=draw),
    )


@pytest.fixture(params=[1, 3], ids="parts: {}".format)
def dataset(request, graph, tmp_path):
    """One trainer's dataset of the graph."""
    RandomPartitioner.from_data(graph, tmp_path / "parts", request.param).partition()
    yield DistDataset().load(tmp_path / "parts", 0, also_serve=range(1, request.param))
    shutdown_worker_group()


@torch.no_grad()
def whole(convs, graph):
    """Logits of all nodes by PyG's layers, over all neighbours."""
    h = graph.x
    for i, conv in enumerate(convs):
        h = conv(h, graph.edge_index)
        h = h.relu() if i < len(convs) - 1 else h
    return h


@torch.no_grad()
def sage_of(linear):
    """PyG's layer of one that takes rows of nodes beside means over neighbours."""
    width = linear.in_features // 2
    conv = SAGEConv(width, linear.out_features)
    conv.lin_r.weight.copy_(linear.weight[:, :width])
    conv.lin_l.weight.copy_(linear.weight[:, width:])
    conv.lin_l.bias.copy_(linear.bias)
    return conv


# VR-GCN -----------------------------------------------------------------------------------------


@pytest.fixture
def vrgcn(module_of, dataset):
    """The module, its model of three layers, and the store, whose history is random."""
    module = module_of("vrgcn")
    torch.manual_seed(0)
    with GraphStore(dataset) as store:
        width = module.make_inputs(dataset, store)
        model = module.VrGcn([width, 8, 6, 4], store).eval()
        for i, size in enumerate((8, 6)):
            store[f"h{i}"].push(None, torch.randn(60, size))
        store.step()
        model.refresh()
        yield model, store


def logits_of(model, dataset, fanouts, seed=0):
    """Logits of 40 seeds, batch by batch."""
    loader = DistNeighborLoader(dataset, fanouts, torch.arange(40), batch_size=16, seed=seed)
    with torch.no_grad():
        return torch.cat([model(batch)[: batch.batch_size] for batch in loader])


def test_vrgcn_with_all_neighbours_is_the_exact_gcn(vrgcn, dataset, graph):
    """Whatever the history."""
    model, _ = vrgcn
    wanted = whole([*map(sage_of, model.layers)], graph)[:40]
    found = logits_of(model, dataset, [-1, -1])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(logits_of(model, dataset, [1, 1]), wanted, atol=0.01)


def test_vrgcn_draws_nothing_from_an_exact_history(vrgcn, dataset, graph):
    """New and old activations are equal, so one neighbour gives the logits of all."""
    model, _ = vrgcn
    wanted = whole([*map(sage_of, model.layers)], graph)[:40]
    exact = model.exact(torch.arange(60), torch.arange(40))
    torch.testing.assert_close(exact, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logits_of(model, dataset, [1, 1]), wanted, rtol=1e-4, atol=1e-5)


def test_training_keeps_its_activations(vrgcn, dataset):
    """Of seeds, and of drawn neighbours in the layers that read them."""
    model, store = vrgcn
    before = [store[f"h{i}"].pull() for i in range(2)]
    loader = DistNeighborLoader(dataset, [2, 2], torch.arange(10), batch_size=10, seed=0)
    (batch,) = loader
    model(batch)
    store.step()
    changed = [(store[f"h{i}"].pull() != before[i]).any(1).nonzero().view(-1) for i in range(2)]
    count = sum(batch.num_sampled_nodes[:2])
    assert set(changed[0].tolist()) == set(batch.n_id.tolist())
    assert set(changed[1].tolist()) == set(batch.n_id[:count].tolist())


@pytest.mark.parametrize("refresh", ["exact", "last"])
def test_vrgcn(run_example, debian_parts, refresh):
    printed = run_example(
        *("vrgcn.py", "--parts", debian_parts, "--epochs", 2, "--batch-size", 128, "--every", 1),
        *("--hidden", 64, "--lr", 0.01, "--refresh", refresh),
        trainers=2,
    )
    assert printed.count("edges") == 2 and accuracy_of(printed) > 4 * CHANCE


# Minimal variance sampling ----------------------------------------------------------------------


def test_seeds_drawn_by_their_gradients(run_example, debian_parts):
    """Chances of the second epoch come from the norms of the first, so that these spread less."""
    spreads = []
    for explore in (0.1, 1):
        printed = run_example(
            *("mvs.py", "--parts", debian_parts, "--epochs", 2, "--batch-size", 128),
            *("--hidden", 64, "--lr", 0.02, "--explore", explore),
            trainers=2,
        )
        spreads.append([float(s) for s in re.findall(r"spread by ([\d.]+)", printed)])
        assert accuracy_of(printed) > 4 * CHANCE
    own, uniform = spreads
    assert own[0] == uniform[0] and own[1] < 0.97 * uniform[1]


# GNNAutoScale -----------------------------------------------------------------------------------


def test_autoscale_is_exact_after_a_pass_per_layer(module_of, dataset, graph):
    """Each pass over all clusters computes one more layer from exact histories."""
    module = module_of("autoscale")
    torch.manual_seed(0)
    clusters = torch.arange(60) * 7 % 60 // 9
    with GraphStore(dataset) as store:
        model = module.AutoScale([5, 8, 6, 4], 60, store).eval()
        loader = DistClusterLoader(dataset, assignment=clusters, halo=True, batch_size=2)
        wanted = whole(model.convs, graph)
        distances = []
        for _ in range(3):
            found = torch.zeros(60, 4)
            for batch in loader:
                with torch.no_grad():
                    found[batch.n_id[: batch.batch_size]] = model(batch)
                store.step()
            distances.append(float((found - wanted).abs().max()))
        assert distances[0] > distances[1] > 0.01 and distances[2] < 1e-5


def test_autoscale(run_example, clustered_parts):
    printed = run_example(
        *("autoscale.py", "--parts", clustered_parts, "--epochs", 1, "--hidden", 16, "--lr", 0.02),
        *("--clusters", 50),
        trainers=2,
    )
    assert accuracy_of(printed) > 4 * CHANCE


# Embeddings -------------------------------------------------------------------------------------


def test_lightgcn_is_as_good_over_three_parts(run_example, tmp_path):
    """Popular tags alone have a recall@20 of 0.548."""
    found = []
    for trainers in (1, 3):
        printed = run_example(
            *("lightgcn.py", "--parts", tmp_path / str(trainers), "--epochs", 2, "--dim", 16),
            *("--lr", 0.06, "--fanout", 5, "--batch-size", 2048),
            trainers=trainers,
        )
        found.append(float(re.findall(r"recall@20: ([\d.]+)", printed)[-1]))
    assert min(found) > 0.62 and abs(found[0] - found[1]) < 0.03


def test_lightgcn_computes_pygs_layers(module_of):
    """With all neighbours, the layers of a batch are PyG's LightGCN."""
    module = module_of("lightgcn")
    draw = torch.Generator().manual_seed(0)
    links = torch.randint(20, (2, 60), generator=draw).unique(dim=1)
    edge_index = torch.cat(
        [links + torch.tensor([[0], [20]]), links.flip(0) + torch.tensor([[20], [0]])], 1
    )
    theirs = LightGCN(40, 8, 2)
    data = Data(edge_index=edge_index, degree=degree(edge_index[1], 40))
    found = module.smooth(theirs.embedding.weight, data.degree, data, 2)
    torch.testing.assert_close(found, theirs.get_embedding(edge_index))


def test_rgcn_with_embeddings(run_example, hetero_parts):
    printed = run_example(
        *("rgcn_embeddings.py", "--parts", hetero_parts, "--epochs", 1, "--batch-size", 128),
        *("--hidden", 32, "--lr", 0.02),
        trainers=2,
    )
    assert accuracy_of(printed) > 4 * CHANCE


# States and layers ------------------------------------------------------------------------------


def test_sse(run_example, debian_parts):
    printed = run_example(
        *("sse.py", "--parts", debian_parts, "--epochs", 1, "--batch-size", 4096, "--settle", 2),
        *("--hidden", 32, "--lr", 0.02),
        trainers=2,
    )
    assert accuracy_of(printed) > 2 * CHANCE


def test_as_gcn(run_example, debian_parts):
    printed = run_example(
        *("as_gcn.py", "--parts", debian_parts, "--epochs", 2, "--batch-size", 128),
        *("--hidden", 32, "--lr", 0.02),
        trainers=2,
    )
    before, after = map(float, re.findall(r"log variance ([\d.-]+)", printed))
    assert after < before and accuracy_of(printed) > 3 * CHANCE


def test_layers_by_importance_have_no_bias(module_of, graph):
    """Weights of a seed's edges add up to its number of neighbours, in the mean over batches."""
    method = module_of("as_gcn").Adaptive
    method.importance = torch.linspace(0.2, 2, 60).numpy()
    loader = NeighborLoader(graph, method((15,)), torch.arange(20), batch_size=20, seed=0)
    sums = torch.zeros(20)
    for _ in range(400):
        (batch,) = loader
        sums.index_add_(0, batch.edge_index[1], batch.edge_norm)
    torch.testing.assert_close(sums / 400, degree(graph.edge_index[1], 60)[:20], rtol=0.2, atol=0.1)
