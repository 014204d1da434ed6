"""Requests for rows that trees, times and exclusions narrow: right answers, or clear refusals."""

import json

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from khop.channel.message import pack, unpack
from khop.distributed.rpc.partition_handler import RequestHandler
from khop.distributed.rpc.protocol import PROTOCOL
from khop.partition import PartitionFolder
from khop.storage.part import Part
from support.cluster import twins

PART = 1
CITES = list(twins.heterogeneous().edge_types).index(twins.CITES)
WRITES = list(twins.heterogeneous().edge_types).index(twins.WRITES)


@pytest.fixture(scope="module")
def part(tmp_path_factory):
    """Part 1 of 3 of a heterogeneous graph with times and weights."""
    root = tmp_path_factory.mktemp("handler") / "parts"
    return Part(PartitionFolder(twins.partitioned(twins.heterogeneous(), root, 3, "time")), PART)


@pytest.fixture(scope="module")
def handler(part):
    """What answers."""
    return RequestHandler(part)


HOP = {
    "fanout": 3,
    "replace": False,
    "with_edge": True,
    "key": 9,
    "weighted": False,
    "last": False,
}


def request(op, **fields):
    """The header of a request that can be answered."""
    common = {"protocol": PROTOCOL, "id": 5, "part": PART, "relation": WRITES, "rows": []}
    needs = {
        "sample": {"hop": HOP},
        "induce": {"with_edge": True},
        "has_edges": {},
    }  # fmt: skip
    hop = {name: fields.pop(name) for name in list(fields) if op == "sample" and name in HOP}
    header = {"op": op, **common, **needs[op], **fields}
    return {**header, "hop": {**HOP, **hop}} if hop else header


def ask(handler, header, *arrays):
    """Error or None, and arrays of the answer."""
    reply, answer = unpack(handler(pack(header, arrays)))
    assert reply["id"] == header["id"]
    assert ("error" in reply) <= (not answer)
    return reply.get("error"), answer


def rows_of(part, relation):
    """New ids of the nodes whose neighbours the part holds."""
    bounds = part.meta.node_types[part.relations[relation][1]].bounds
    return np.arange(bounds[PART], bounds[PART + 1])


def neighbors_of(part, relation, row):
    """New ids of a row's neighbours, in the row's order."""
    indptr, indices = part.rows(relation)
    place = row - rows_of(part, relation)[0]
    return indices[indptr[place] : indptr[place + 1]].tolist()


def split(counts, values):
    """The values of each row."""
    return [chunk.tolist() for chunk in np.split(values, np.cumsum(counts)[:-1])]


# Right answers --------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", [WRITES, CITES])
def test_has_edges_answers_for_each_pair(part, handler, relation):
    """Each pair of a row and a neighbour, ids of no node included."""
    rows = rows_of(part, relation)
    count = part.meta.node_types[part.relations[relation][0]].count
    pairs = np.stack(np.meshgrid(rows, np.arange(-2, count + 2))).reshape(2, -1)
    error, (found,) = ask(
        handler, request("has_edges", relation=relation), pairs[0].copy(), pairs[1].copy()
    )
    assert error is None and found.dtype == bool
    edges = {(row, n) for row in rows.tolist() for n in neighbors_of(part, relation, row)}
    assert found.tolist() == [(row, n) in edges for row, n in pairs.T.tolist()]


def test_rows_of_a_time(part, handler):
    """With times: all neighbours that are not later, in the order of the row."""
    rows = rows_of(part, WRITES)
    seed_times = np.arange(len(rows)) % 11 - 1
    times = part.node_times(part.relations[WRITES][0])
    keys = np.array([0 if t == 0 else np.float64(t).view(np.int64) for t in seed_times])
    keys[seed_times < 0] = -(2**62)
    header = request("sample", rows=["trees", "times"], fanout=-1)
    trees = np.arange(len(rows), dtype=np.int32)
    error, (counts, neighbors, _) = ask(handler, header, rows, trees, keys)
    assert error is None
    for row, key, drawn in zip(rows, keys, split(counts, neighbors), strict=True):
        assert drawn == [n for n in neighbors_of(part, WRITES, row) if times[n] <= key]
    assert 0 < counts.sum() < sum(len(neighbors_of(part, WRITES, row)) for row in rows)


def test_rows_without_some_neighbours(part, handler):
    """Excluded neighbours do not come, of whatever draw; all others do."""
    rows = rows_of(part, CITES)
    pairs = [(row, n) for row in rows for n in neighbors_of(part, CITES, row)[::2]]
    excluded = [np.array(side, np.int64) for side in zip(*pairs, strict=True)]
    kept = [
        [n for n in neighbors_of(part, CITES, row) if (row, n) not in set(pairs)] for row in rows
    ]
    for fanout in (-1, 2):
        header = request("sample", relation=CITES, rows=["excluded"], fanout=fanout)
        error, (counts, neighbors, _) = ask(handler, header, rows, *excluded)
        assert error is None
        for wanted, drawn in zip(kept, split(counts, neighbors), strict=True):
            assert drawn == wanted if fanout < 0 else set(drawn) <= set(wanted)
            assert len(drawn) == (len(wanted) if fanout < 0 else min(fanout, len(wanted)))


def test_edges_among_members(part, handler):
    """A member's place in the list of keys stands for it; others do not come."""
    rows = rows_of(part, CITES)
    members = np.arange(0, 120, 3)
    header = request("induce", relation=CITES)
    error, (counts, numbers, edges) = ask(handler, header, rows, members)
    assert error is None and len(edges) == len(numbers)
    for row, found in zip(rows, split(counts, numbers), strict=True):
        expected = [n for n in neighbors_of(part, CITES, row) if n % 3 == 0]
        assert members[found].tolist() == expected


# Refusals -------------------------------------------------------------------------------------


def vectors(count):
    """Arrays that follow ids: trees, times, excluded rows, excluded neighbours."""
    return (
        np.zeros(count, np.int32),
        np.zeros(count, np.int64),
        np.zeros(2, np.int64),
        np.zeros(2, np.int64),
    )


@pytest.mark.parametrize("names,change,match", [
    (["trees"], {0: np.zeros(2, np.int64)}, "lacks a vector of int32"),
    (["trees"], {0: np.zeros(3, np.int32)}, "come with 3 entries, not 2"),
    (["trees"], {0: np.array([0, -1], np.int32)}, "trees below 0"),
    (["times"], {1: np.zeros(2)}, "lacks a vector of int64"),
    (["times"], {1: np.zeros((1, 2), np.int64)}, "lacks a vector of int64"),
    (["times"], {1: np.zeros(0, np.int64)}, "come with 0 entries, not 2"),
    (["excluded"], {3: np.zeros(1, np.int64)}, "come with 1 entries, not 2"),
    (["excluded"], {2: np.zeros(2, np.uint64)}, "lacks a vector of int64"),
    (["trees", "times"], {1: None}, "lacks a vector of int64"),
])  # fmt: skip
@pytest.mark.parametrize("op", ["sample", "induce"])
def test_malformed_vectors_of_rows_are_refused(part, handler, op, names, change, match):
    """Vectors of another type or length, or missing."""
    rows = rows_of(part, WRITES)[:2]
    places = [
        i for i, n in ((0, "trees"), (1, "times"), (2, "excluded"), (3, "excluded")) if n in names
    ]
    given = {**dict(enumerate(vectors(2))), **change}
    arrays = [given[place] for place in places if given[place] is not None]
    complete = all(value is not None for value in change.values())
    further = [np.arange(3)] if op == "induce" and complete else []
    error, _ = ask(handler, request(op, rows=names), rows, *arrays, *further)
    assert error["type"] == "ProtocolError"
    assert error["message"].startswith("a request") and match in error["message"]


@pytest.mark.parametrize("op,arrays,match", [
    ("sample", [np.zeros(1, np.int64)], "1 arrays too many"),
    ("induce", [], "one vector of int64 ids"),
    ("induce", [np.zeros(1, np.int64)] * 2, "one vector of int64 ids"),
    ("induce", [np.zeros(1)], "one vector of int64 ids"),
    ("has_edges", [], "one vector of int64 ids"),
    ("has_edges", [np.zeros(3, np.int64)], "other numbers of rows and neighbours"),
    ("has_edges", [np.zeros((2, 1), np.int64)], "one vector of int64 ids"),
])  # fmt: skip
def test_unexpected_arrays_after_rows_are_refused(part, handler, op, arrays, match):
    """Too many arrays, too few, or others."""
    error, _ = ask(handler, request(op), rows_of(part, WRITES)[:2], *arrays)
    assert error["type"] == "ProtocolError" and match in error["message"]


@pytest.mark.parametrize("op", ["sample", "induce", "has_edges"])
@pytest.mark.parametrize("change", [
    {"relation": 99}, {"relation": None}, {"rows": "trees"}, {"rows": [["trees"]]}, {"part": 0},
])  # fmt: skip
def test_fields(part, handler, op, change):
    """Fields out of their range or type."""
    rows = rows_of(part, WRITES)[:2]
    further = [] if op == "sample" else [rows]
    error, _ = ask(handler, request(op, **change), rows, *further)
    assert error["type"] == "ProtocolError"


@pytest.mark.parametrize("op", ["sample", "induce", "has_edges"])
def test_rows_of_other_parts(part, handler, op):
    """A row that the part does not own is named."""
    for row in (rows_of(part, WRITES)[0] - 1, rows_of(part, WRITES)[-1] + 1, -(2**63), 2**63 - 1):
        rows = np.array([row])
        error, _ = ask(handler, request(op), rows, *([] if op == "sample" else [rows]))
        assert error["type"] == "IndexError" and str(row) in error["message"]


def test_weights_that_are_not_there(handler, part):
    """Citations have no weights."""
    header = request("sample", relation=CITES, weighted=True)
    error, _ = ask(handler, header, rows_of(part, CITES)[:1])
    assert error["type"] == "ProtocolError" and "has no weights" in error["message"]


# Anything -------------------------------------------------------------------------------------

IDS = st.one_of(st.integers(0, 130), st.integers(-(2**63), 2**63 - 1))
DTYPES = st.sampled_from(
    ["int64"] * 6 + ["int32"] * 3 + ["uint64", "float64", "bool", "int8", "float16"]
)


@st.composite
def any_array(draw):
    """Mostly a vector of ids."""
    values = np.array(draw(st.lists(IDS, max_size=6)), np.int64)
    array = values.astype(draw(DTYPES))
    return array if draw(st.integers(0, 9)) else array.reshape(1, -1)


@st.composite
def any_request(draw):
    """A request that may be right in all but a few things."""
    op = draw(st.sampled_from(["sample", "induce", "has_edges"]))
    names = draw(st.lists(st.sampled_from(["trees", "times", "excluded", "more"]), max_size=3))
    relation = draw(st.integers(0, 4))
    fanout = draw(st.one_of(st.integers(-1, 9), st.sampled_from([2**31, 2**62, 2**63 - 1])))
    header = request(op, rows=names, relation=relation)
    flags = {name: draw(st.booleans()) for name in ("replace", "weighted", "last", "with_edge")}
    if op == "sample":
        header["hop"] = {**HOP, "fanout": fanout, **flags}
    elif op == "induce":
        header["with_edge"] = flags["with_edge"]
    if not draw(st.integers(0, 5)):
        name = draw(st.sampled_from(sorted(header)))
        header[name] = draw(st.sampled_from([None, -1, 2**64, 0.5, "", [], {}, [[]], True]))
    return {**header, "id": 5}


@given(st.data(), any_request())
@settings(max_examples=400)
def test_any_request(part, data, header):
    """Whatever is asked gets an answer of the right form or an error that is no accident."""
    handler = RequestHandler(part)
    arrays = data.draw(st.lists(any_array(), max_size=5))
    if data.draw(st.integers(0, 3)) and type(header["relation"]) is int:  # rows that are there
        rows = rows_of(part, header["relation"] % 5)
        chosen = data.draw(
            st.lists(st.sampled_from(rows.tolist()) if len(rows) else IDS, max_size=4)
        )
        arrays[:1] = [np.array(chosen, np.int64)]
    error, answer = ask(handler, header, *arrays)
    if error is not None:
        assert error["type"] in ("ProtocolError", "IndexError", "ValueError"), error
    elif header["op"] == "has_edges":
        assert answer[0].shape == arrays[0].shape
    elif header["op"] in ("sample", "induce"):
        assert len(answer[0]) == len(arrays[0]) and answer[0].sum() == len(answer[1])
        assert len(answer) == 2 + header.get("hop", header)["with_edge"]
    error, _ = ask(handler, request("sample"), rows_of(part, WRITES))
    assert error is None


@given(st.lists(st.binary(max_size=64), max_size=4), st.sampled_from(["sample", "induce"]))
@settings(max_examples=200)
def test_any_bytes(part, frames, op):
    """A good header before frames of any bytes."""
    handler = RequestHandler(part)
    described = [["int64", [len(frame) // 8]] for frame in frames]
    header = {**request(op, rows=["times", "excluded"]), "arrays": described}
    reply, _ = unpack(handler([json.dumps(header).encode(), *frames]))
    assert "error" not in reply or reply["error"]["type"] in ("ProtocolError", "IndexError")
