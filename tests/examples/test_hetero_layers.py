"""The examples' layers for heterogeneous graphs compute what PyG's compute, for the targets."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch_geometric.nn import HGTConv, RGCNConv

FILE = Path(__file__).parents[2] / "examples" / "hetero_layers.py"
HIDDEN, HEADS = 8, 2
COUNTS = {"a": 6, "b": 4}
EDGE_TYPES = [("a", "r", "a"), ("b", "s", "a"), ("a", "t", "b"), ("b", "never", "a")]


@pytest.fixture(scope="module")
def layers():
    spec = importlib.util.spec_from_file_location("hetero_layers", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def graph():
    """Random states; parallel edges, self-loops, nodes that nothing leads to, an empty type."""
    generator = torch.Generator().manual_seed(1)
    x = {t: torch.randn(n, HIDDEN, generator=generator) for t, n in COUNTS.items()}
    edge_index = {}
    for source, relation, target in EDGE_TYPES:
        num_edges = 0 if relation == "never" else 9
        ends = [
            torch.randint(bound, (num_edges,), generator=generator)
            for bound in (COUNTS[source], COUNTS[target] - 1)
        ]
        edge_index[source, relation, target] = torch.stack(ends)
    return x, edge_index


def test_hgt_is_pygs(layers, graph):
    """PyG's weights, sorted into ours; its matrices of edge types come head by head."""
    torch.manual_seed(0)
    theirs = HGTConv(HIDDEN, HIDDEN, (list(COUNTS), EDGE_TYPES), heads=HEADS)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    ours = layers.HGTLayer(HIDDEN, EDGE_TYPES, HEADS)
    with torch.no_grad():
        for t in COUNTS:
            joint = theirs.kqv_lin.lins[t]
            for i, linear in enumerate((ours.key[t], ours.query[t], ours.value[t])):
                linear.weight.copy_(joint.weight.view(3, HIDDEN, HIDDEN)[i])
                linear.bias.copy_(joint.bias.view(3, HIDDEN)[i])
            ours.out[t].load_state_dict(theirs.out_lin.lins[t].state_dict())
            ours.skip[t].copy_(theirs.skip[t])
        for i, edge_type in enumerate(EDGE_TYPES):
            of_type = slice(i, None, len(EDGE_TYPES))
            ours.attention[edge_type].copy_(theirs.k_rel.weight[of_type])
            ours.message[edge_type].copy_(theirs.v_rel.weight[of_type])
            ours.prior[edge_type].copy_(theirs.p_rel["__".join(edge_type)].view(-1))
    wanted = theirs(*graph)
    for t, found in ours(*graph, COUNTS).items():
        torch.testing.assert_close(found, wanted[t], rtol=1e-4, atol=1e-4)


def test_rgcn_is_pygs(layers, graph):
    """All types in one numbering, b after a; PyG's root weight is that of each node's type."""
    x, edge_index = graph
    ours = layers.RGCNLayer(HIDDEN, EDGE_TYPES)
    first = {"a": 0, "b": COUNTS["a"]}
    shifted, kinds = [], []
    theirs = RGCNConv(HIDDEN, HIDDEN, len(EDGE_TYPES), root_weight=False, bias=False)
    for i, (source, relation, target) in enumerate(EDGE_TYPES):
        ends = edge_index[source, relation, target]
        shifted.append(ends + torch.tensor([[first[source]], [first[target]]]))
        kinds.append(torch.full((ends.size(1),), i))
        theirs.weight.data[i] = ours.relations[source, relation, target].lin_l.weight.T
    together = torch.cat([x["a"], x["b"]])
    wanted = theirs(together, torch.cat(shifted, 1), torch.cat(kinds))
    for t, found in ours(x, edge_index, COUNTS).items():
        messages = wanted[first[t] : first[t] + COUNTS[t]]
        torch.testing.assert_close(found, messages + ours.own[t](x[t]))


@pytest.mark.parametrize("name", ["RGCNLayer", "HGTLayer"])
def test_targets_are_a_prefix(layers, graph, name):
    """Edges to other nodes left out, the first nodes of each type get what they would anyway."""
    x, edge_index = graph
    layer = getattr(layers, name)(HIDDEN, EDGE_TYPES)
    whole = layer(x, edge_index, COUNTS)
    num_targets = {"a": 3, "b": 0}
    some = {t: ends[:, ends[1] < num_targets[t[2]]] for t, ends in edge_index.items()}
    for t, found in layer(x, some, num_targets).items():
        torch.testing.assert_close(found, whole[t][: num_targets[t]])


@pytest.mark.parametrize("name", ["RGCNLayer", "HGTLayer"])
def test_every_parameter_takes_part(layers, graph, name):
    """As DDP wants it, also in a batch without any edge."""
    x, edge_index = graph
    layer = getattr(layers, name)(HIDDEN, EDGE_TYPES)
    nothing = {t: ends[:, :0] for t, ends in edge_index.items()}
    sum(h.sum() for h in layer(x, nothing, COUNTS).values()).backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
