"""Features in fewer bits: what a folder stores, whoever writes it, and what is refused."""

import itertools
import json
import pickle

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import khop
from khop.cli.main import main
from khop.data import Feature
from khop.data.encoding import Encoding
from khop.errors import FolderError
from khop.partition import (
    PartitionFolder,
    convert_features,
    folder_source,
    from_distdgl,
    make_partitioner,
    repartition,
    to_distdgl,
    verify_folder,
)
from khop.partition.out_of_core.effort import identity_of
from khop.partition.out_of_core.resources import Resources
from khop.partition.out_of_core.workspace import Workspace
from khop.partition.source import no_progress
from khop.partition.writing.narrowed import fit_narrowed, narrowed as narrowed_attrs
from support.cut_graphs import files_of

TORCH = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8": torch.float8_e4m3fn,
}
DTYPES = [*TORCH, "int8"]
EDGE = ("node", "to", "node")


def make_graph(num_nodes=200, num_edges=2000):
    rng = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(num_nodes, 37, generator=rng),
        y=torch.arange(num_nodes),
        train_mask=torch.arange(num_nodes) % 3 == 0,
        edge_index=torch.randint(0, num_nodes, (2, num_edges), generator=rng),
        edge_attr=torch.rand(num_edges, 3, generator=rng),
        edge_weight=torch.rand(num_edges, generator=rng),
    )


def narrowed(values, dtype):
    """The numbers that are stored: by PyTorch, and of int8 by float64."""
    if dtype in TORCH:
        return values.to(TORCH[dtype]).float().numpy()
    values = values.numpy()
    encoding = Encoding.of_range(values.min(0), values.max(0))
    codes = (values.astype(np.float64) - encoding.zero) / np.maximum(encoding.scale, 1e-30)
    return np.clip(np.rint(codes), -128, 127).astype(np.float32) * encoding.scale + encoding.zero


def held(root, level="node", name="x"):
    """All rows of an attribute, by original id."""
    source = folder_source(PartitionFolder(root))
    holders = source.nodes if level == "node" else source.edges
    return next(iter(holders.values())).attrs[name].numbers()


def test_an_ended_run_is_resumed_with_the_same_dtypes_only(tmp_path):
    graph, found = make_graph(), []
    for dtypes, deliver in [
        (None, "float32"),
        ({"x": "bfloat16"}, "float32"),
        ({"x": "bfloat16"}, "stored"),
        ({"x": "float8"}, "float32"),
        ({"x": "int8"}, "float32"),
        ({"edge_attr": "int8"}, "float32"),
    ]:
        options = {"feature_dtype": dtypes, "deliver": deliver, "memory": "64MB"}
        found.append(identity_of(make_partitioner(graph, tmp_path / "p", 2, **options)))
        assert found[-1] == identity_of(make_partitioner(graph, tmp_path / "p", 2, **options))
    assert all(a != b for a, b in itertools.combinations(found, 2))


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_same_folder_whoever_writes_it(tmp_path, dtype):
    """In memory and out of core, by any number of threads, from another folder, and cut again."""
    graph, dtypes = make_graph(), {"x": dtype, "edge_attr": dtype}
    options = {
        "method": "frequency",
        "num_neighbors": [3],
        "batch_size": 8,
        "cache_ratio": 0.1,
    }
    khop.partition_graph(graph, tmp_path / "wide", 2, **options)
    khop.partition_graph(graph, tmp_path / "one", 2, feature_dtype=dtypes, jobs=1, **options)
    files = files_of(tmp_path / "one")
    assert PartitionFolder(tmp_path / "one").meta.node_types[0].cached != [0, 0]
    for name, more in (("threads", {"jobs": 3}), ("files", {"memory": "64MB", "jobs": 2})):
        khop.partition_graph(graph, tmp_path / name, 2, feature_dtype=dtypes, **options, **more)
        assert files_of(tmp_path / name) == files
    convert_features(tmp_path / "wide", tmp_path / "converted", dtypes)
    assert files_of(tmp_path / "converted") == files
    repartition(tmp_path / "one", tmp_path / "other", 3)
    repartition(tmp_path / "other", tmp_path / "again", 2, **options)
    assert files_of(tmp_path / "again") == files
    assert verify_folder(tmp_path / "one") == []  # compares copies as they are stored


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_and_description(tmp_path, dtype):
    """meta.json says how rows are stored and delivered, under a flag; so does `khop inspect`."""
    graph, dtypes = make_graph(), {"x": dtype, "edge_attr": dtype}
    khop.partition_graph(graph, tmp_path / "both", 2, feature_dtype=dtypes)
    assert np.array_equal(held(tmp_path / "both"), narrowed(graph.x, dtype))
    edge_attr = narrowed(graph.edge_attr, dtype)
    assert np.array_equal(held(tmp_path / "both", "edge", "edge_attr"), edge_attr)
    assert np.array_equal(held(tmp_path / "both", "edge", "edge_weight"), graph.edge_weight)
    summary = khop.partition_graph(graph, tmp_path / "parts", 2, feature_dtype={"x": dtype})
    content = json.loads((tmp_path / "parts" / "meta.json").read_text())
    x = content["node_types"][0]["attrs"]["x"]
    name = {"float8": "float8_e4m3fn"}.get(dtype, dtype)
    assert content["flags"] == ["encodings"]
    assert x["encoding"] == name
    assert x["stored"] == [{"float8": "uint8"}.get(dtype, dtype), [37]]
    assert x["delivered"] == ["float32", [37]]
    assert [len(v) for v in x["parameters"].values()] == ([37, 37] if dtype == "int8" else [])
    assert summary.encoded == {"x of node": f"{name}, float32 in batches"}
    assert f"x of node: {name}, float32 in batches" in str(summary)
    attr = PartitionFolder(tmp_path / "parts").meta.node_types[0].attrs["x"]
    assert attr.row_bytes == 37 * (1 if dtype in ("int8", "float8") else 2)


def test_delivered_as_stored(tmp_path):
    """bfloat16 and float16 as such: an ordinary attribute, without a flag."""
    graph = make_graph()
    dtypes = {"x": "bfloat16", "edge_attr": torch.float16}
    khop.partition_graph(graph, tmp_path / "a", 2, feature_dtype=dtypes, deliver="stored")
    graph.x, graph.edge_attr = graph.x.bfloat16(), graph.edge_attr.half()
    khop.partition_graph(graph, tmp_path / "b", 2)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
    assert json.loads((tmp_path / "a" / "meta.json").read_text())["flags"] == []


def test_from_other_dtypes(tmp_path):
    """float64, float16 and bfloat16 of the input go by way of float32."""
    graph = make_graph()
    wide = graph.x.bfloat16().float()
    for i, values in enumerate([wide.double(), wide, wide.bfloat16()]):
        graph.x = values
        khop.partition_graph(graph, tmp_path / str(i), 1, feature_dtype={"x": "int8"})
    assert files_of(tmp_path / "0") == files_of(tmp_path / "1") == files_of(tmp_path / "2")
    khop.partition_graph(graph, tmp_path / "wide", 1, feature_dtype={"x": "float32"})
    assert np.array_equal(held(tmp_path / "wide"), wide)


def test_widened_again(tmp_path):
    """float32 of a folder is what its batches have; also in DistDGL's format."""
    graph = make_graph()
    khop.partition_graph(graph, tmp_path / "small", 2, feature_dtype={"x": "int8"})
    expected = narrowed(graph.x, "int8")
    convert_features(tmp_path / "small", tmp_path / "wide", {"x": "float32"})
    assert PartitionFolder(tmp_path / "wide").meta.encoded == {}
    assert np.array_equal(held(tmp_path / "wide"), expected)
    repartition(tmp_path / "small", tmp_path / "other", 3, feature_dtype={"x": "float32"})
    assert np.array_equal(held(tmp_path / "other"), expected)
    to_distdgl(tmp_path / "small", tmp_path / "dgl")
    from_distdgl(tmp_path / "dgl", tmp_path / "back")
    assert np.array_equal(held(tmp_path / "back"), expected)
    from_distdgl(tmp_path / "dgl", tmp_path / "smaller", feature_dtype={"x": "bfloat16"})
    bits = torch.from_numpy(expected).bfloat16().float()
    assert np.array_equal(held(tmp_path / "smaller"), bits)


def test_one_type_of_several(tmp_path):
    """'x' of all types, 'paper.x' or ('paper', 'x') of one; later keys win."""
    data = HeteroData()
    writes = ("author", "writes", "paper")
    data["paper"].x, data["author"].x = torch.rand(6, 2), torch.rand(4, 2)
    data[writes].edge_index = torch.tensor([[0, 1], [1, 2]])
    data[writes].edge_attr = torch.rand(2, 1)

    def encodings(**dtypes):
        khop.partition_graph(data, tmp_path / "p", 1, overwrite=True, **dtypes)
        described = PartitionFolder(tmp_path / "p").meta.encoded
        return {name: attr.encoding for name, attr in described.items()}

    both = {"x of paper": "int8", "x of author": "float16"}
    assert encodings(feature_dtype={"x": "float16", "paper.x": "int8"}) == both
    assert encodings(feature_dtype={"x": "float16", ("paper", "x"): "int8"}) == both
    edges = {"edge_attr of author writes paper": "int8"}
    for key in ("edge_attr", "author writes paper.edge_attr", (writes, "edge_attr")):
        assert encodings(feature_dtype={key: "int8"}) == edges
    with pytest.raises(ValueError, match=r"names 'z', but attributes are \['author writes paper"):
        encodings(feature_dtype={"z": "int8"})


@pytest.mark.parametrize(
    ("value", "dtype", "error"),
    [
        (70_000, "float16", r"'x' of 'node' holds values up to 70000 in column 3, .* 65504"),
        (-500, "float8", r"values up to 500 in column 3, and float8_e4m3fn ends at 448"),
        (np.inf, "float8", r"'x' of 'node' holds inf in row 7, column 3"),
        (np.nan, "int8", r"'x' of 'node' holds nan in row 7, column 3"),
        (-np.inf, "int8", r"holds -inf in row 7, column 3, which int8 has no number for"),
        (3.4e38, "bfloat16", r"holds 3\.39.*e\+38 in row 7, column 3, which bfloat16"),
    ],
)
@pytest.mark.parametrize("jobs", [1, 2])
def test_values_that_cannot_be_stored(tmp_path, value, dtype, error, jobs):
    graph = make_graph()
    graph.x[7, 3] = value
    with pytest.raises(ValueError, match=error):
        khop.partition_graph(graph, tmp_path / "p", 2, feature_dtype={"x": dtype}, jobs=jobs)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("dtype", [*DTYPES, "float32"])
def test_numbers_beyond_float32(tmp_path, dtype):
    """A finite float64 never becomes infinite in silence."""
    graph = make_graph()
    graph.x = graph.x.double()
    graph.x[7, 3] = 1e300
    with pytest.raises(ValueError, match=r"holds 1e\+300 in row 7, column 3, which \w+ has no"):
        khop.partition_graph(graph, tmp_path / "p", 2, feature_dtype={"x": dtype})


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8"])
def test_nan_and_infinity(tmp_path, dtype):
    graph = make_graph()
    graph.x[7, 3] = np.nan
    if dtype != "float8":
        graph.x[8, 3], graph.x[9, 3] = np.inf, -np.inf
    khop.partition_graph(graph, tmp_path / "p", 2, feature_dtype={"x": dtype})
    assert np.array_equal(held(tmp_path / "p"), narrowed(graph.x, dtype), equal_nan=True)


def test_refusals(tmp_path):
    graph = make_graph()
    for dtypes, deliver, error in [
        ({"y": "int8"}, "float32", "'y' of 'node', which is int64: only floating-point"),
        ({"x": "int4"}, "float32", r"bfloat16, float16, int8, float8 or float32 \(got 'int4'\)"),
        ({"x": "int8"}, "stored", r"deliver='stored' is for bfloat16 and float16 \(got int8\)"),
        ({"x": "int8"}, "trainer", "deliver must be 'float32' or 'stored'"),
        (None, "stored", "deliver='stored' needs feature_dtype"),
    ]:
        with pytest.raises((ValueError, TypeError), match=error):
            khop.partition_graph(graph, tmp_path / "p", 1, feature_dtype=dtypes, deliver=deliver)
    weighted = {"weight_attr": "edge_weight"}
    with pytest.raises(ValueError, match=r"'edge_weight' .* in fewer bits.*'float32'"):
        dtypes = {"edge_weight": "int8"}
        khop.partition_graph(graph, tmp_path / "p", 1, feature_dtype=dtypes, **weighted)
    khop.partition_graph(graph, tmp_path / "w", 1, **weighted)
    with pytest.raises(ValueError, match="'edge_weight', the times or weights of draws"):
        convert_features(tmp_path / "w", tmp_path / "c", {"edge_weight": "int8"})
    with pytest.raises(ValueError, match="lie within each other"):
        convert_features(tmp_path / "w", tmp_path / "w" / "c", {"x": "int8"})
    with pytest.raises(ValueError, match="balance names 'z'"):
        graph.z = torch.rand(200)
        dtypes = {"z": "int8"}
        khop.partition_graph(
            graph, tmp_path / "p", 2, method="stream", balance=["z"], feature_dtype=dtypes
        )


def test_damaged_input_is_not_converted(tmp_path):
    khop.partition_graph(make_graph(), tmp_path / "p", 1)
    with (tmp_path / "p/part-0/node/node/x.npy").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x17")
    with pytest.raises(FolderError, match=r"x\.npy: its bytes have changed"):
        convert_features(tmp_path / "p", tmp_path / "c", {"x": "int8"})
    assert not (tmp_path / "c").exists()


def test_other_machines_get_paths_and_scales(tmp_path):
    """What tasks of a cluster narrow: rows of mapped files, pickled as paths, and the scales."""
    values = make_graph(2000).x.numpy()
    np.save(tmp_path / "x.npy", values)
    rows = Feature(np.load(tmp_path / "x.npy", mmap_mode="r"))
    made = narrowed_attrs({"node": {"x": rows}}, {"x": "int8"}, "float32")
    fit_narrowed(made, Workspace(Resources(None, 1)), no_progress)
    sent = pickle.dumps(made["node"]["x"])
    assert len(sent) < 3000 < values.nbytes
    got = pickle.loads(sent)
    assert got.array.tobytes() == made["node"]["x"].array.tobytes()
    assert np.array_equal(
        got.encoding.decode(got.array), narrowed(torch.from_numpy(values), "int8")
    )


def test_commands(tmp_path, capsys):
    """khop partition, convert and repartition, and inspect, which shows it."""
    torch.save(make_graph().to_dict(), tmp_path / "graph.pt")
    khop.partition_graph(make_graph(), tmp_path / "a", 2)
    source, quiet = str(tmp_path / "a"), "--quiet"
    small = ["--feature-dtype", "x=int8", "--feature-dtype", "node to node.edge_attr=bfloat16"]
    assert main(["convert", source, str(tmp_path / "b"), *small, quiet]) == 0
    parts = ["--num-parts", "2", quiet]
    assert main(["repartition", source, str(tmp_path / "c"), *parts, *small]) == 0
    assert files_of(tmp_path / "b") == files_of(tmp_path / "c")
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "b")]) == 0
    assert "x of node: int8, float32 in batches" in capsys.readouterr().out
    stored = [*parts, "--feature-dtype", "x=float16", "--deliver", "stored"]
    assert main(["repartition", source, str(tmp_path / "d"), *stored]) == 0
    assert PartitionFolder(tmp_path / "d").meta.node_types[0].attrs["x"].dtype == "float16"
    for command, error in [
        (["convert", source, "--in-place", *small], "name an OUTPUT, not --in-place"),
        (["convert", source, str(tmp_path / "e"), "--to", "distdgl", *small], "--feature-dtype"),
        (["repartition", source, "e", *parts, "--feature-dtype", "x"], "must be NAME=DTYPE"),
    ]:
        try:
            assert main(command) != 0
        except SystemExit as ended:
            assert ended.code != 0
        assert error in capsys.readouterr().err
