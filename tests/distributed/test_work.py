"""Work of requests to a partition: its cost is bounded, and it is done in slices."""

import numpy as np
import pytest

from khop.channel.message import pack, unpack
from khop.distributed.rpc import work
from khop.distributed.rpc.partition_handler import RequestHandler
from khop.distributed.rpc.protocol import (
    Degrees,
    Fetch,
    HasEdges,
    Induce,
    Sample,
    pack_rows,
    request_header,
)
from khop.errors import ProtocolError
from khop.sampler.methods import Labor
from khop.sampler.requests import HopRequest, RowSet
from support.cluster.partition_server import CITES, PART, make_part, own_rows
from support.cluster.twins import WRITES as WRITES_NAME, heterogeneous

WRITES = list(heterogeneous().edge_types).index(WRITES_NAME)


@pytest.fixture(scope="module")
def part(tmp_path_factory):
    return make_part(tmp_path_factory.mktemp("work") / "parts")


def run(handler, request, arrays):
    """Reply's header and arrays, and the number of slices."""
    frames = [bytes(f) for f in pack(request_header(request, 1, part=PART), arrays)]
    steps, count = handler.steps(frames), 1
    while True:
        try:
            next(steps)
            count += 1
        except StopIteration as end:
            return *unpack([bytes(f) for f in end.value]), count


def hop(fanout, **options):
    return HopRequest(fanout, options.pop("replace", False), True, 7, **options)


def sample(relation, rows, request):
    names, arrays = pack_rows(rows)
    return Sample(relation, names, request), arrays


def all_requests(part):
    """Requests of all kinds for all rows of the part, named several times."""
    writes, cites = (np.tile(own_rows(part, of), 8) for of in (WRITES, CITES))
    trees, times = np.arange(len(writes), dtype=np.int32), np.full(len(writes), 2**62)
    excluded = cites[::3].copy(), np.arange(len(cites[::3]))
    members = np.arange(0, 120, 2)
    place = part.relations[CITES][1]
    return {
        "uniform": sample(CITES, RowSet(cites), hop(3)),
        "all": sample(CITES, RowSet(cites), hop(-1)),
        "again": sample(CITES, RowSet(cites), hop(3, replace=True)),
        "excluded": sample(CITES, RowSet(cites, excluded=excluded), hop(2)),
        "trees": sample(WRITES, RowSet(writes, trees, times), hop(2)),
        "last": sample(WRITES, RowSet(writes, trees, times), hop(1, last=True)),
        "weighted": sample(WRITES, RowSet(writes), hop(2, weighted=True)),
        "induce": (Induce(CITES, [], True), [cites, members]),
        "has_edges": (HasEdges(CITES, []), [cites, np.arange(len(cites)) % 120]),
        "degrees": (Degrees(CITES), [cites]),
        "fetch": (Fetch("node", place, [*part.meta.node_types[place].attrs, "id"]), [cites]),
    }


KINDS = ["uniform", "all", "again", "excluded", "trees", "last", "weighted"]
KINDS += ["induce", "has_edges", "degrees", "fetch"]


@pytest.mark.parametrize("name", KINDS)
def test_slices_give_what_a_whole_request_gives(part, monkeypatch, name):
    """One slice where it is cheap; more where it is not, with the same reply."""
    request, arrays = all_requests(part)[name]
    _, whole, count = run(RequestHandler(part), request, arrays)
    assert count == 1 and whole
    monkeypatch.setattr(work, "SLICE", 200)
    monkeypatch.setattr(work, "ROWS_AT_ONCE", 16)
    header, found, count = run(RequestHandler(part), request, arrays)
    assert "error" not in header
    assert count >= 4
    for ours, theirs in zip(found, whole, strict=True):
        assert np.array_equal(ours, theirs) and ours.dtype == theirs.dtype


@pytest.mark.parametrize("name", ["uniform", "all", "excluded", "induce", "has_edges"])
def test_what_costs_too_much_is_refused_before_anything_is_drawn(part, monkeypatch, name):
    """However few bytes ask for it, and however few the reply would have."""
    request, arrays = all_requests(part)[name]
    monkeypatch.setattr(work, "MOST", 500)
    header, _, count = run(RequestHandler(part), request, arrays)
    assert header["error"]["type"] == "ProtocolError"
    assert "more than the 500 that are allowed: ask for less" in header["error"]["message"]
    assert count == 1


@pytest.mark.parametrize("name", ["uniform", "all", "excluded", "weighted", "last", "induce"])
def test_a_handler_that_is_stopped_draws_nothing(part, name):
    handler = RequestHandler(part)
    handler.stop.set()
    header, _, _ = run(handler, *all_requests(part)[name])
    assert "stopped" in header["error"]["message"]


def test_numbers_of_a_request_are_bounded(part, monkeypatch):
    """Excluded edges are sorted at once, members are kept in one table."""
    requests = all_requests(part)
    for name, limit in (("excluded", "MOST_EXCLUDED"), ("induce", "MOST_MEMBERS")):
        monkeypatch.setattr(work, limit, 10)
        header, _, _ = run(RequestHandler(part), *requests[name])
        assert "more than the 10 allowed" in header["error"]["message"]


# Costs of rows, worked out by hand ------------------------------------------------------------

DEGREES = np.array([0, 10, 1000, 1_000_000])


def test_a_row_costs_its_picks_or_its_neighbours():
    """Draws do not read rows; LABOR does, and so does a row of which edges are excluded."""
    uniform = work.costs_of_rows(hop(10), DEGREES, None)
    assert uniform.max() == uniform[1] < 50
    labor = work.costs_of_rows(hop(10, method=Labor([10]).spec()), DEGREES, None)
    assert labor[3] > 1_000_000 and labor[3] > 900 * labor[2]
    excluded = work.costs_of_rows(hop(10), DEGREES, np.array([0, 0, 0, 100_000]))
    assert (excluded[:3] == uniform[:3]).all() and excluded[3] > 1_000_000
    assert work.costs_of_rows(hop(-1), DEGREES, None)[3] >= 1_000_000
    assert work.costs_of_induced(DEGREES, 10)[3] >= 500_000
    assert work.costs_of_edges(DEGREES)[3] >= 10_000


def test_rows_that_cannot_be_divided_are_bounded():
    """Draws by weight without replacement move the square of the fan-out."""
    few = work.costs_of_rows(hop(100, weighted=True), DEGREES, None)
    assert few[3] < 2000
    with pytest.raises(ProtocolError, match="a fan-out of 100000 by weight"):
        work.costs_of_rows(hop(100_000, weighted=True), DEGREES, None)
    # A row that is taken whole is no draw.
    assert work.costs_of_rows(hop(100_000, weighted=True), DEGREES[:3], None)[2] < 10_000
    work.check_draws(hop(1 << 20, replace=True))
    with pytest.raises(ProtocolError, match="with replacement"):
        work.check_draws(hop(1 << 21, replace=True))


def test_slices_have_about_the_same_cost():
    costs = np.array([4, 1, 1, 1, 30, 2, 2, 2, 2])
    parts = work.slices(costs, 8)
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(9))
    assert all(costs[part][1:].sum() <= 8 for part in parts)
    assert len(parts) == 3
    assert work.slices(costs[:0]) == [slice(0, 0)]
