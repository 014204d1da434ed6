"""Layer-wise inference gives every node what one forward of the whole graph gives it."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCN, GCNConv, GraphSAGE, SAGEConv, TAGConv

from khop.distributed import DistDataset, layerwise_inference
from khop.partition import FrequencyPartitioner, RandomPartitioner
from support.cluster import inference_jobs, jobs
from support.cluster.inference_jobs import Case, leftovers, same_outputs


@pytest.fixture(scope="module")
def parts_of(tmp_path_factory):
    """Returns parts_of(graph, num_parts): the root of such a partitioning."""
    made = {}

    def parts_of(kind, num_parts):
        if (kind, num_parts) not in made:
            root = tmp_path_factory.mktemp("parts") / f"{kind}-{num_parts}"
            RandomPartitioner.from_data(GRAPHS[kind](), root, num_parts).partition()
            made[kind, num_parts] = root
        return made[kind, num_parts]

    return parts_of


def load(root, num_parts):
    """A dataset whose trainer serves, and therefore computes, all parts."""
    return DistDataset().load(root, 0, also_serve=range(1, num_parts))


def make_tiny():
    """0 -> 1 -> 2, features 1, 2 and 4."""
    return Data(x=torch.tensor([[1.0], [2.0], [4.0]]), edge_index=torch.tensor([[0, 1], [1, 2]]))


SOON = 10.0
GRAPHS = {
    "homogeneous": inference_jobs.make_graph,
    "hetero": inference_jobs.make_hetero,
    "tiny": make_tiny,
}


@pytest.fixture
def tiny(parts_of):
    """A graph of three nodes in three parts."""
    return load(parts_of("tiny", 3), 3)


def add_neighbors(x, edge_index):
    """A node's row and those of its in-neighbours, summed."""
    return x.index_add(0, edge_index[1], x[edge_index[0]])


@pytest.mark.parametrize("kind,num_parts", [
    ("sage", 1), ("sage", 3), ("gat", 3), ("gin", 2), ("edge", 2), ("pna", 5), ("rgcn", 2),
    ("edge_attrs", 3), ("hetero", 1), ("hetero", 5),
])  # fmt: skip
def test_one_trainer(parts_of, tmp_path, kind, num_parts):
    """Two and three layers, edge attributes, embeddings, parts without nodes of a type."""
    case = Case(kind)
    data = load(parts_of("hetero" if kind == "hetero" else "homogeneous", num_parts), num_parts)
    outputs = layerwise_inference(data, case.model, tmp_path / "out", **case.options)
    own = same_outputs(outputs, case.expected)
    assert {t: sorted(ids) for t, ids in own.items()} == {
        t: list(range(len(rows))) for t, rows in case.expected.items()
    }
    assert leftovers(tmp_path / "out") == []
    last = 2 if kind in ("sage", "gat", "gin", "edge", "pna") else 1
    assert [p.name for p in (tmp_path / "out").iterdir()] == [f"layer-{last}"]


TYPES = ("a", "b", "c")
RELATIONS = (("a", "r", "b"), ("b", "r", "a"), ("a", "s", "a"), ("c", "r", "a"), ("a", "r", "c"))


@given(
    st.tuples(*[st.integers(0, 12)] * 3),
    st.tuples(*[st.integers(0, 30)] * 5),
    st.integers(1, 4),
    st.integers(1, 20),
    st.integers(1, 40),
    st.integers(0, 2**32),
)
@settings(max_examples=12)
def test_sums_of_random_graphs(
    tmp_path_factory, sizes, counts, num_parts, batch_size, max_edges, seed
):
    """Whole numbers, so that sums are exact: empty types and parts, hubs, repeated edges.

    The layer doubles a node's row and adds its in-neighbours' rows; the expected values come from
    dense matrices. Batches keep their bounds, and their own nodes are all nodes, each once a layer.
    """
    folder = tmp_path_factory.mktemp("random")
    rng = np.random.default_rng(seed)
    size_of = dict(zip(TYPES, sizes, strict=True))
    graph = HeteroData()
    dense = {}
    for name, size in size_of.items():
        graph[name].x = torch.from_numpy(rng.integers(0, 50, (size, 2)).astype(np.float64))
    for relation, count in zip(RELATIONS, counts, strict=True):
        src, dst = size_of[relation[0]], size_of[relation[2]]
        ends = rng.integers(0, [[max(src, 1)], [max(dst, 1)]], (2, count if src and dst else 0))
        graph[relation].edge_index = torch.from_numpy(ends)
        dense[relation] = np.zeros((dst, src))
        np.add.at(dense[relation], (ends[1], ends[0]), 1)
    RandomPartitioner.from_data(graph, folder / "parts", num_parts).partition()
    seen = {name: [] for name in TYPES}

    def layer(x, edges):
        x, own = x
        assert sum(len(rows) for rows in own.values()) <= batch_size
        num_edges = sum(ends.size(1) for ends in edges.values())
        assert num_edges <= max_edges or sum(len(rows) for rows in own.values()) == 1
        out = {name: 2 * rows for name, rows in x.items()}
        for relation, (row, col) in edges.items():
            assert len(col) == 0 or col.max() < len(own[relation[2]])
            out[relation[2]] = out[relation[2]].index_add(0, col, x[relation[0]][row])
        return out

    def note(x, edges):
        for name, rows in x[1].items():
            seen[name] += rows[:, 0].tolist()
        return x[0]

    data = load(folder / "parts", num_parts)
    common = {"batch_size": batch_size, "max_edges": max_edges, "bipartite": True}
    outputs = layerwise_inference(data, [layer, layer], folder / "out", **common)
    expected = {name: graph[name].x.numpy() for name in TYPES}
    for _ in range(2):
        expected = {
            name: 2 * expected[name]
            + sum(dense[r] @ expected[r[0]] for r in RELATIONS if r[2] == name)
            for name in TYPES
        }
    # No batch, no rows: of a graph without nodes nothing is known.
    assert set(outputs) == (set(TYPES) if sum(sizes) else set())
    for name, ours in outputs.items():
        assert np.array_equal(ours.gather_all().numpy(), expected[name])
    identity = {name: lambda ids: ids.view(-1, 1).double() for name in TYPES}
    layerwise_inference(data, [note], folder / "ids", x=identity, **common)
    assert {name: sorted(ids) for name, ids in seen.items()} == {
        name: list(range(size)) for name, size in size_of.items()
    }


@pytest.mark.parametrize("kind", ["sage", "gat", "gin", "edge"])
def test_pairs_or_not(parts_of, tmp_path, kind):
    """PyG's models give the same whether they get all nodes' rows alone or pairs (the default)."""
    case = Case(kind)
    data = load(parts_of("homogeneous", 2), 2)
    pairs = (None, True) if kind == "gat" else (None,)
    rows = [
        layerwise_inference(data, case.model, tmp_path / str(b), bipartite=b).gather_all()["node"]
        for b in (*pairs, False)
    ]
    torch.testing.assert_close(rows[0], rows[-1], **inference_jobs.CLOSE)
    assert all(torch.equal(rows[0], others) for others in rows[1:-1])


@pytest.mark.parametrize("dtype", ["float16", torch.bfloat16, "float32", "torch.float64"])
def test_stored_dtypes(parts_of, tmp_path, dtype):
    """Rows are rounded to what they are stored in, and computed with in what they were before."""
    graph = inference_jobs.make_graph()
    dtype_of = {"float16": torch.float16, "float32": torch.float32, "torch.float64": torch.float64}
    stored = dtype_of.get(dtype, torch.bfloat16)
    conv = SAGEConv(6, 6).eval()
    got = []

    def layer(x, edge_index):
        got.append(x.dtype)
        return conv(x, edge_index)

    data = load(parts_of("homogeneous", 2), 2)
    outputs = layerwise_inference(data, [layer, layer], tmp_path / "out", dtype=dtype)
    with torch.no_grad():
        hidden = conv(graph.x, graph.edge_index).to(stored).float()
        expected = conv(hidden, graph.edge_index).to(stored)
    assert set(got) == {torch.float32}
    ours = outputs["node"]
    assert ours.dtype == ours.local.dtype == ours.gather_all().dtype == stored
    # A value that lies between two of a coarse dtype may be rounded either way.
    step = max(1e-5, torch.finfo(stored).eps)
    torch.testing.assert_close(ours.gather_all(), expected, rtol=step, atol=step)
    on_disk = np.load(tmp_path / "out/layer-1/node/part-1.npy")
    assert on_disk.dtype == (np.uint16 if stored == torch.bfloat16 else ours[[0]].numpy().dtype)


def test_rows_of_any_shape(tiny, tmp_path):
    """Vectors, whole numbers, three axes; what a layer returns beyond its own nodes is left out."""
    outputs = layerwise_inference(
        tiny,
        [
            lambda x, e: add_neighbors(x, e).view(-1).long(),
            lambda x, e: add_neighbors(x, e)[: len(x)],
            lambda x, e: torch.stack([x, -x], 1).view(-1, 2, 1),
        ],
        tmp_path / "out",
    )
    # 1 2 4 -> 1 3 6 -> 1 4 9
    assert outputs["node"].shape == (3, 2, 1) and outputs["node"].dtype == torch.int64
    assert outputs[[2, 0]].tolist() == [[[9], [-9]], [[1], [-1]]]
    assert outputs[torch.tensor([False, True, False])].tolist() == [[[4], [-4]]]
    assert outputs.gather_all()["node"].shape == (3, 2, 1)


def test_rows_by_id(tiny, tmp_path):
    """By ids, and by nothing else; own rows of several parts are a copy."""
    outputs = layerwise_inference(tiny, [add_neighbors], tmp_path / "out")
    outputs["node"].local.zero_()
    with outputs:
        assert outputs[[0, 1, 2, 1]].view(-1).tolist() == [1, 3, 6, 3]
        with pytest.raises(IndexError, match="id 3 at position 0"):
            outputs[[3]]
        with pytest.raises(
            KeyError, match=r"no outputs of node type 'nodes': there are \['node'\]"
        ):
            outputs["nodes"]
    assert outputs[[1]].item() == 3  # all files are this trainer's


def test_local_rows_are_mapped(tmp_path):
    """Those of one part are its file's; writing into them does not reach it."""
    RandomPartitioner.from_data(make_tiny(), tmp_path / "parts", 1).partition()
    data = DistDataset().load(tmp_path / "parts")
    outputs = layerwise_inference(data, [add_neighbors], tmp_path / "out")
    local = outputs["node"].local
    assert local.view(-1).tolist() == [1, 3, 6]
    file = tmp_path / "out/layer-0/node/part-0.npy"
    assert str(file) in Path("/proc/self/maps").read_text()
    local.zero_()
    assert outputs[[0, 1, 2]].view(-1).tolist() == np.load(file)[:, 0].tolist() == [1, 3, 6]


def test_along_edges(tmp_path):
    """A homogeneous folder of out-neighbours gives what the reversed graph gives."""
    graph = inference_jobs.make_graph()
    RandomPartitioner.from_data(graph, tmp_path / "parts", 2, edge_dir="out").partition()
    model = GraphSAGE(6, 8, num_layers=2, out_channels=3).eval()
    outputs = layerwise_inference(load(tmp_path / "parts", 2), model, tmp_path / "out")
    with torch.no_grad():
        same_outputs(outputs, {"node": model(graph.x, graph.edge_index.flip(0))})


def test_types_that_end(tmp_path):
    """A last layer that gives rows of one type only; what it needs comes from another."""
    data = inference_jobs.make_hetero()
    RandomPartitioner.from_data(data, tmp_path / "parts", 3).partition()

    def papers(x, edges):
        rows = torch.zeros(len(x["paper"]), 4)
        row, col = edges["author", "writes", "paper"]
        return {"paper": rows.index_add(0, col, x["author"][row]), "venue": None}

    outputs = layerwise_inference(
        load(tmp_path / "parts", 3),
        [lambda x, e: {"author": x["author"].float(), "paper": x["paper"]}, papers],
        tmp_path / "out",
        batch_size=20,
    )
    assert list(outputs) == ["paper"]
    row, col = data["author", "writes", "paper"].edge_index
    want = torch.zeros(inference_jobs.PAPERS, 4).index_add(0, col, data["author"].x.float()[row])
    torch.testing.assert_close(outputs.gather_all()["paper"], want)
    with pytest.raises(KeyError, match=r"name the node type first.*\['paper'\]"):
        outputs[[0]]


def wrong(layer):
    """A list of that layer."""
    return [layer]


@pytest.mark.parametrize("model,options,error,match", [
    (GraphSAGE(1, 2, 2), {}, ValueError, r"training mode: call .eval\(\)"),
    (GCN(1, 2, 2).eval(), {}, ValueError, r"'GCNConv' weights edges by the degrees.*gcn_norm"),
    ([TAGConv(1, 2).eval()], {}, ValueError, "'TAGConv' looks further than one hop"),
    (GraphSAGE(1, 2, 2, jk="cat").eval(), {}, ValueError, "jk='cat'"),
    (SAGEConv(1, 2).eval(), {}, TypeError, "a list of layers.*'SAGEConv'"),
    ([], {}, TypeError, "a list of layers"),
    ([3], {}, TypeError, "must be callable"),
    ([add_neighbors], {"batch_size": 0}, ValueError, "batch_size must be at least 1"),
    ([add_neighbors], {"max_edges": 1.5}, TypeError, "max_edges must be an integer"),
    ([add_neighbors], {"x": "features"}, KeyError, "no node type has an attribute 'features'"),
    ([add_neighbors], {"x": {"node": "y"}}, KeyError, "has no attribute 'y'"),
    ([add_neighbors], {"x": {"paper": "x"}}, KeyError, "no node type 'paper'"),
    ([add_neighbors], {"x": 3}, TypeError, "name of a node attribute"),
    ([add_neighbors], {"x": lambda ids: ids[:0]}, ValueError, r"called with \d ids and returned"),
    ([add_neighbors], {"edge_attrs": "w"}, TypeError, "a list of names"),
    ([add_neighbors], {"edge_attrs": ["w"]}, KeyError, "no edge type has an attribute 'w'"),
    ([add_neighbors], {"dtype": "int8"}, ValueError, "dtype must be float16"),
    ([add_neighbors], {"device": "nowhere"}, RuntimeError, "nowhere"),
    ([SAGEConv(1, 2).eval()], {"device": "meta"}, ValueError, "device='meta', but the model is on"),
    (wrong(lambda x, e: x[:0]), {}, ValueError, r"each of a batch's 1 nodes.*shape \[0, 1\]"),
    (wrong(lambda x, e: {"node": x}), {}, ValueError, "layer 0 must return a row.*'dict'"),
    (wrong(lambda x, e: x.to(torch.complex64)), {}, TypeError, "rows of dtype complex64"),
    (wrong(lambda x, e: x.repeat(1, len(x))), {}, ValueError, r"after rows of shape \(2,\)"),
])  # fmt: skip
def test_bad_arguments(tiny, tmp_path, model, options, error, match):
    """Errors say what was wrong; nothing half written stays."""
    with pytest.raises(error, match=match):
        layerwise_inference(tiny, model, tmp_path / "out", **{"batch_size": 1, **options})
    assert list(tmp_path.rglob("*")) in ([], [tmp_path / "out"])


def test_normalized_beforehand(tmp_path):
    """GCN is possible: with weights of the whole graph as an edge attribute."""
    from torch_geometric.nn.conv.gcn_conv import gcn_norm

    graph = inference_jobs.make_graph()
    edge_index, weight = gcn_norm(graph.edge_index, num_nodes=graph.num_nodes)
    conv = GCNConv(6, 4, normalize=False).eval()
    with_loops = Data(x=graph.x, edge_index=edge_index, weight=weight)
    RandomPartitioner.from_data(with_loops, tmp_path / "parts", 2).partition()
    outputs = layerwise_inference(
        load(tmp_path / "parts", 2), [conv], tmp_path / "out", edge_attrs=["weight"]
    )
    whole = GCNConv(6, 4).eval()
    whole.load_state_dict(conv.state_dict())
    with torch.no_grad():
        same_outputs(outputs, {"node": whole(graph.x, graph.edge_index)})


def test_heterogeneous_arguments(tmp_path):
    """Layers of heterogeneous graphs return dictionaries of known types; messages follow edges."""
    graph = inference_jobs.make_hetero()
    RandomPartitioner.from_data(graph, tmp_path / "parts", 1).partition()
    data = DistDataset().load(tmp_path / "parts")
    for layer, error, match in (
        (lambda x, e: x["paper"], TypeError, "must return a dictionary.*a tensor of shape"),
        (lambda x, e: {"papers": x["paper"]}, ValueError, r"rows of \['papers'\]"),
    ):
        with pytest.raises(error, match=match):
            layerwise_inference(data, [layer], tmp_path / "out", overwrite=True)
    RandomPartitioner.from_data(graph, tmp_path / "out-parts", 1, edge_dir="out").partition()
    data = DistDataset().load(tmp_path / "out-parts")
    with pytest.raises(ValueError, match="edge_dir='in'"):
        layerwise_inference(data, [lambda x, e: x], tmp_path / "out")


def test_output_folder(tiny, tmp_path):
    """Outputs are replaced if asked to; nothing else ever is."""
    root = tmp_path / "out"
    root.mkdir()
    (root / ".khop-probe-of-a-trainer-that-was-killed").touch()
    first = layerwise_inference(tiny, [add_neighbors] * 3, root)
    with pytest.raises(FileExistsError, match="is not empty"):
        layerwise_inference(tiny, [add_neighbors], root)
    assert [p.name for p in root.iterdir()] == ["layer-2"]
    assert first[[2]].item() == 13  # 1 2 4 -> 1 3 6 -> 1 4 9 -> 1 5 13
    second = layerwise_inference(tiny, [add_neighbors], root, overwrite=True)
    assert [p.name for p in root.iterdir()] == ["layer-0"]
    assert (first[[2]].item(), second[[2]].item()) == (13, 6)  # the old ones are still mapped
    (root / "thesis.txt").write_text("kept")
    with pytest.raises(FileExistsError, match=r"more than layer-wise outputs \(\['thesis.txt'\]\)"):
        layerwise_inference(tiny, [add_neighbors], root, overwrite=True)
    assert sorted(p.name for p in root.iterdir()) == ["layer-0", "thesis.txt"]


def start(job, arguments, *where):
    """Starts two trainers of a job of inference_jobs.py."""
    return jobs.start_trainers(job, arguments, 2, *where, program=inference_jobs.__name__)


def check_computed(results, cases):
    """Trainers together computed every node once."""
    for i, case in enumerate(cases):
        by_rank = [result["computed"][i] for result in results]
        for node_type, rows in Case(case["kind"]).expected.items():
            ids = [j for own in by_rank for j in own[node_type]]
            assert sorted(ids) == list(range(len(rows))), (case, node_type)
        assert case["kind"] == "hetero" or all(own["node"] for own in by_rank)


def test_two_trainers(parts_of, tmp_path):
    """Parts shared, served for nobody, in another order; folders in common and apart."""
    served = {"0": [0, 2], "1": [2]}
    cases = []
    for kind, num_parts, homes, also_serve, apart in (
        ("gat", 1, [0, 0], {}, False),
        ("sage", 2, [1, 0], {}, True),
        ("hetero", 2, [1, 0], {}, False),
        ("gat", 3, [0, 2], {"1": [1]}, False),
        ("hetero", 3, [0, 2], {"1": [1]}, True),
        ("sage", 3, [1, 1], served, False),
        ("hetero", 3, [1, 1], served, True),
    ):
        root = str(parts_of("hetero" if kind == "hetero" else "homogeneous", num_parts))
        case = {"kind": kind, "root": root, "homes": homes, "also_serve": also_serve}
        where = {"output": str(tmp_path / f"out-{len(cases)}"), "apart": apart}
        cases.append({**case, **where, "close": len(cases) % 2 == 0})
    results = jobs.finish_trainers(start("equal", {"cases": cases}), 150)
    check_computed(results, cases)


@pytest.mark.network
def test_two_hosts(two_hosts, tmp_path):
    """Two machines that share nothing but the network, each with its own part alone."""
    prefixes, master = two_hosts
    cases = []
    for kind, graph in (("sage", "homogeneous"), ("hetero", "hetero")):
        roots = [tmp_path / f"{kind}-{rank}" for rank in (0, 1)]
        if kind == "hetero":
            RandomPartitioner.from_data(GRAPHS[graph](), roots[0], 2).partition()
        else:
            data = GRAPHS[graph]()
            probs = jobs.make_probs(data.num_nodes, 2)
            FrequencyPartitioner.from_data(
                data, roots[0], 2, probs=probs, cache_ratio=0.1
            ).partition()
        shutil.copytree(roots[0], roots[1])
        for rank in (0, 1):
            shutil.rmtree(roots[rank] / f"part-{1 - rank}")
        where = {"root": list(map(str, roots)), "output": str(tmp_path / f"out-{kind}")}
        cases.append({"kind": kind, "homes": [0, 1], "apart": True, "close": True, **where})
    trainers = start("equal", {"cases": cases}, prefixes, master, 29513)
    check_computed(jobs.finish_trainers(trainers, 120), cases)


def test_servers_that_die(tmp_path, parts_of):
    """Servers of a part's rows and of outputs are started again, and nothing is missed."""
    roots = [tmp_path / f"parts-{rank}" for rank in (0, 1)]
    for rank, root in enumerate(roots):  # each trainer has its own part alone, and must ask
        shutil.copytree(parts_of("homogeneous", 2), root)
        shutil.rmtree(root / f"part-{1 - rank}")
    arguments = {"root": list(map(str, roots)), "homes": [0, 1], "output": str(tmp_path / "out")}
    results = jobs.finish_trainers(start("servers_die", arguments), 120)
    check_computed(results, [{"kind": "rgcn"}])
    assert [result["killed"] for result in results] == [6, 6]


def test_trainer_that_fails_or_dies(parts_of, tmp_path):
    """The other one raises: soon if it was told, else when it has heard nothing for long.

    One that was only stopped is told, when it goes on, that it was given up.
    """
    arguments = {
        "root": str(parts_of("homogeneous", 2)),
        "homes": [0, 1],
        "output": str(tmp_path / "outputs/out"),
        "lease": 3,
    }
    alive, dying = start("failing", arguments)
    try:
        (result,) = jobs.finish_trainers([alive], 150)
    finally:
        dying.kill()
        dying.communicate()
    kinds, texts, seconds = zip(*result["seen"], strict=True)
    assert set(kinds) == {"RendezvousError"}
    assert "trainer 1 has failed with ArithmeticError: no good" in texts[0]
    for text in texts[1:3]:
        assert "trainer 1, which has not been heard of for" in text
    assert "trainer 0 has given up this process, which has not been heard of" in texts[3]
    soon, *late, _ = seconds
    assert soon < SOON
    assert all(arguments["lease"] < each < arguments["lease"] + SOON for each in late)
    assert result["leftovers"] == []
