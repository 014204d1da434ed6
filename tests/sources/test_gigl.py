"""What GiGL's data preprocessor writes, against a plain writer of its formats."""

from __future__ import annotations

import gzip
import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

pytest.importorskip("yaml")

from khop.partition import GraphSource, partition_graph, verify_folder
from khop.sources import Scratch, read_source
from khop.sources.tfrecords import read_examples
from support.formats.sources import assert_same

RNG = np.random.default_rng(0)


def varint(number):
    number &= (1 << 64) - 1
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def message(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(values):
    """Floats packed, integers packed, texts; of one value a list that is not packed."""
    values = np.asarray(values)
    if values.dtype.kind == "f":
        packed = struct.pack(f"<{values.size}f", *values.ravel())
        single = varint(1 << 3 | 5) + packed
        return message(2, single if values.size == 1 else message(1, packed))
    if values.dtype.kind in "iu":
        packed = b"".join(varint(int(value)) for value in values.ravel())
        return message(3, varint(1 << 3) + packed if values.size == 1 else message(1, packed))
    return message(1, b"".join(message(1, str(text).encode()) for text in values.ravel()))


def example(values, rng):
    """Entries in any order."""
    names = rng.permutation(sorted(values))
    entries = [message(1, name.encode()) + message(2, feature(values[name])) for name in names]
    return message(1, b"".join(message(1, entry) for entry in entries))


def write(file, rows, rng=RNG):
    """TFRecords; checksums are zero."""
    file.parent.mkdir(parents=True, exist_ok=True)
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "wb") as out:
        for row in rows:
            record = example(row, rng)
            out.write(struct.pack("<QI", len(record), 0) + record + bytes(4))


AGE, X = RNG.integers(-5, 99, 30), RNG.random((30, 3), np.float32)
Y = RNG.integers(4, size=30)
STORY = RNG.random(12, np.float32)
READS = np.stack([RNG.integers(30, size=70), RNG.integers(12, size=70)])
WEIGHT = RNG.random(70, np.float32)


def written(folder):
    """A graph of two types in shards; returns the path of its configuration."""
    ids = RNG.permutation(30)
    users = [{"id": i, "x": X[i], "age": AGE[i], "y": Y[i], "name": ["a"]} for i in ids.tolist()]
    write(folder / "user/features-00001-of-00002.tfrecord", users[20:])
    write(folder / "user/features-00000-of-00002.tfrecord", users[:20])
    (folder / "user/schema.pbtxt").touch()
    write(folder / "story/part-0-of-1.tfrecord.gz", [{"id": i, "s": STORY[i]} for i in range(12)])
    reads = zip(*READS.tolist(), WEIGHT, strict=True)
    rows = [{"src": u, "dst": v, "w": w} for u, v, w in reads]
    write(folder / "reads/features-0-of-1.tfrecord", rows)
    user = {"nodeIdKey": "id", "featureKeys": ["age", "x"], "labelKeys": ["y"]}
    metadata = {
        "condensedNodeTypeToPreprocessedMetadata": {
            "0": {**user, "tfrecordUriPrefix": f"{folder}/user/features"},
            "1": {
                "nodeIdKey": "id",
                "featureKeys": ["s"],
                "tfrecordUriPrefix": f"file://{folder}/story/",
            },
        },
        "condensedEdgeTypeToPreprocessedMetadata": {
            "0": {
                "srcNodeIdKey": "src",
                "dstNodeIdKey": "dst",
                "mainEdgeInfo": {"featureKeys": ["w"], "tfrecordUriPrefix": f"{folder}/reads/"},
            }
        },
    }
    stored, config = folder / "preprocessed_metadata.yaml", folder / "frozen.yaml"
    stored.write_text(json.dumps(metadata))  # JSON is YAML
    reads = {"srcNodeType": "user", "relation": "reads", "dstNodeType": "story"}
    config.write_text(
        f"graphMetadata:\n  condensedNodeTypeMap:\n    '0': user\n    '1': story\n"
        f"  condensedEdgeTypeMap:\n    '0': {json.dumps(reads)}\n"
        f"sharedConfig:\n  preprocessedMetadataUri: {stored}\n"
    )
    return config


@pytest.mark.parametrize("memory", [None, 1 << 15])
def test_a_graph_of_two_types(tmp_path, memory):
    config = written(tmp_path / "in")
    source = read_source(str(config), scratch=Scratch(tmp_path / "unpacked", memory))
    assert {t: node.count for t, node in source.nodes.items()} == {"user": 30, "story": 12}
    user, story = source.nodes["user"].attrs, source.nodes["story"].attrs
    assert np.array_equal(user["x"].array, np.column_stack([AGE, X]).astype(np.float32))
    assert (user["y"].array.tolist(), user["y"].dtype) == (Y.tolist(), "int64")
    assert np.array_equal(story["x"].array, STORY)
    ((edge_type, edge),) = source.edges.items()
    assert edge_type == ("user", "reads", "story")
    assert np.stack([edge.src, edge.dst]).tolist() == READS.tolist()
    assert np.array_equal(edge.attrs["edge_attr"].array, WEIGHT)
    partition_graph(source, tmp_path / "parts", 2)
    assert verify_folder(tmp_path / "parts") == []


def test_a_graph_of_one_type(tmp_path):
    """It is homogeneous, and may be numbered by nothing; the prefix is a folder."""
    write(tmp_path / "nodes/a.tfrecord", [{"id": i, "x": X[i]} for i in range(5)])
    write(tmp_path / "edges/a.tfrecord", [{"u": i, "v": 4} for i in range(3)])
    metadata = {
        "condensedNodeTypeToPreprocessedMetadata": {
            "0": {"nodeIdKey": "id", "featureKeys": ["x"], "tfrecordUriPrefix": f"{tmp_path}/nodes"}
        },
        "condensedEdgeTypeToPreprocessedMetadata": {
            "0": {
                "srcNodeIdKey": "u",
                "dstNodeIdKey": "v",
                "mainEdgeInfo": {"tfrecordUriPrefix": f"{tmp_path}/edges"},
            }
        },
    }
    (tmp_path / "metadata.yaml").write_text(json.dumps(metadata))
    edge = {"srcNodeType": "user", "relation": "friend", "dstNodeType": "user"}
    config = {
        "graphMetadata": {"nodeTypes": ["user"], "edgeTypes": [edge]},
        "sharedConfig": {"preprocessedMetadataUri": f"{tmp_path}/metadata.yaml"},
    }
    (tmp_path / "frozen.yaml").write_text(json.dumps(config))
    wanted = GraphSource.from_arrays(5, [[0, 1, 2], [4, 4, 4]], {"x": X[:5]})
    assert_same(read_source(str(tmp_path / "frozen.yaml")), wanted)


NUMBERS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(width=32, allow_nan=False)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_any_numbers(tmp_path_factory, data):
    width = data.draw(st.integers(1, 4))
    lists = st.lists(
        st.tuples(
            st.lists(NUMBERS, min_size=width, max_size=width),
            st.lists(FLOATS, min_size=width, max_size=width),
        ),
        min_size=1,
        max_size=5,
    )
    rows = data.draw(lists)
    file = tmp_path_factory.mktemp("records") / "a.tfrecord"
    write(file, [{"n": np.array(n), "f": np.array(f, np.float32)} for n, f in rows])
    found = read_examples([file], {"numbers": ["n"], "floats": ["f"]}, Scratch())
    shape = (len(rows),) if width == 1 else (len(rows), width)
    assert found["numbers"].dtype == np.int64
    assert np.array_equal(found["numbers"], np.array([n for n, _ in rows]).reshape(shape))
    expected = np.array([f for _, f in rows], np.float32).reshape(shape)
    assert np.array_equal(found["floats"], expected)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 255), st.integers(0, 10**6))
def test_damaged_records(tmp_path_factory, place, byte, cut):
    """Any byte changed, any end: rows of the right shape, or an error that names the file."""
    file = tmp_path_factory.mktemp("records") / "a.tfrecord"
    write(file, [{"n": [i], "f": [0.5, 1.5]} for i in range(4)], np.random.default_rng(1))
    content = bytearray(file.read_bytes())
    content[place % len(content)] = byte
    file.write_bytes(content[: len(content) - cut % 20])
    try:
        found = read_examples([file], {"numbers": ["n"], "floats": ["f"]}, Scratch())
    except ValueError as error:
        assert str(file) in str(error)
    else:
        assert len(found["numbers"]) == len(found["floats"]) == 4


def bad_uri(folder):
    replace(folder / "frozen.yaml", f"{folder}/preprocessed", "gs://bucket/preprocessed")


def bad_prefix(folder):
    replace(folder / "preprocessed_metadata.yaml", "user/features", "user/none")


def bad_folder(folder):
    replace(folder / "preprocessed_metadata.yaml", "/reads/", "/nowhere/at/all/")


def bad_key(folder):
    replace(folder / "preprocessed_metadata.yaml", '"w"', '"weight"')


def bad_ids(folder):
    write(folder / "story/part-0-of-1.tfrecord.gz", [{"id": i, "s": 0.5} for i in (0, 1, 1)])


def bad_type(folder):
    replace(folder / "frozen.yaml", '"dstNodeType": "story"', '"dstNodeType": "page"')


def bad_yaml(folder):
    (folder / "frozen.yaml").write_text("a: [")


def bad_content(folder):
    (folder / "frozen.yaml").write_text("- a list")


def bad_code(folder):
    (folder / "frozen.yaml").write_text("!!python/object/apply:os.mkdir [exploded]")


def bad_aliases(folder):
    """A list of 9 aliases of a list of 9 aliases, and so on: 9^12 entries in 700 bytes."""
    lines = ["a0: &a0 x", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 13))]
    nested = [*lines, "graphMetadata: {condensedNodeTypeMap: {'0': *a12}}"]
    (folder / "frozen.yaml").write_text("\n".join(nested))


def bad_keys(folder):
    """A million bytes of YAML would make a row of 10^5 features of a value each, or of 10^6."""
    replace(folder / "preprocessed_metadata.yaml", '["age", "x"]', '["x", "x"]')


def bad_base(folder):
    """YAML 1.1 reads 1:30 as 90: a text of so many digits takes minutes."""
    (folder / "frozen.yaml").write_text(f"graphMetadata: 1{':10' * 300_000}")


def bad_kinds(folder):
    rows = [{"src": 0, "dst": 0, "w": 1}, {"src": 0, "dst": 0, "w": 0.5}]
    write(folder / "reads/features-0-of-1.tfrecord", rows)


def bad_files(folder):
    (folder / "reads/features-0-of-1.tfrecord").unlink()
    write(folder / "reads/features-0-of-2.tfrecord", [{"src": 0, "dst": 0, "w": 1}])
    write(folder / "reads/features-1-of-2.tfrecord", [{"src": 0, "dst": 0, "w": 0.5}])


def bad_shards(folder):
    write(folder / "reads/features-1-of-1.tfrecord", [{"src": 0, "dst": 0, "w": 0.5}])


def replace(file, old, new):
    content = file.read_text()
    assert old in content
    file.write_text(content.replace(old, new))


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (bad_uri, "'gs://bucket/preprocessed_metadata.yaml' is not on this machine"),
        (bad_prefix, "no file of TFRecords begins with .*user/none', as '0' of"),
        (bad_folder, "there is no folder"),
        (bad_key, r"features-0-of-1.tfrecord' is damaged, .* lacks \['weight'\]: it has \['dst'"),
        (bad_ids, "have 3 nodes, whose ids are not each of 0 to 2 once"),
        (bad_type, "joins 'page', which is none of"),
        (bad_yaml, "frozen.yaml' is no YAML"),
        (bad_content, "frozen.yaml' must be an object"),
        (bad_code, "frozen.yaml' is no YAML: could not determine a constructor"),
        (bad_aliases, "frozen.yaml' is no YAML: it has aliases"),
        (bad_keys, r"names a key twice: \['x', 'x'\]"),
        (bad_base, "frozen.yaml' is no YAML: a text of 900,001 characters"),
        (bad_kinds, "integers in some rows and fractions in others"),
        (bad_files, "and files beside it, are integers in some rows and fractions in others"),
        (bad_shards, "holds 2 of the 1 files"),
    ],
)
def test_bad_input(tmp_path, break_it, message):
    config = written(tmp_path)
    break_it(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_source(str(config))
    assert not (tmp_path / "exploded").exists()
