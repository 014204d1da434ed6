"""Rows of a batch come from several sources, and are written in one pass. The oracle is NumPy."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from khop.channel import message
from khop.channel.message import FRAME_BYTES, frame_slices
from khop.data import Feature
from khop.data.encoding import Encoding
from khop.data.feature import DecodedFeature
from khop.data.tickets import ReadTicket
from khop.sampler import replies
from khop.sampler.rows.ordered_pass import OrderedPass, is_orderable
from khop.sampler.rows.row_fetch import KeptRows, LocalRows, RowFetch, RowRequest, write_rows
from khop.storage.folder import AttrMeta

WIDTH = 16  # floats of a row: a line of the cache
ATTRIBUTES = {"id": AttrMeta.of("int64"), "x": AttrMeta.of("float32", (WIDTH,))}


class Reply(ReadTicket):
    """A request whose reply has `arrays`, once `succeed` was called."""

    def __init__(self, arrays):
        super().__init__()
        self._arrays = arrays

    def result(self):
        super().result()
        return self._arrays


def rows_of(ids):
    """The attributes of some ids, each row different from all others."""
    x = np.arange(WIDTH) + 1000.0 * ids[:, None]
    return [ids, x.astype(np.float32)]


def requested(ids, positions, kept=None):
    """A request for rows, whose reply has an array for each frame."""
    arrays = [
        values[of_frame]
        for values, attr in zip(rows_of(ids), ATTRIBUTES.values(), strict=True)
        for of_frame in frame_slices(len(ids), attr.row_bytes)
    ]
    return RowRequest(ATTRIBUTES, "partition 1", 10**6, len(ids), Reply(arrays), positions, kept)


def outs_of(count):
    return [np.full(count, -1), np.full((count, WIDTH), -1, np.float32)]


def local_rows(first, ids, positions):
    """Rows of a part whose first id is `first`."""
    tables = [Feature(values) for values in rows_of(np.arange(first, first + 1000))]
    return LocalRows(tables, ids - first, positions)


@pytest.fixture
def small_frames(monkeypatch):
    """Frames of four rows."""
    monkeypatch.setattr(message, "FRAME_BYTES", 4 * WIDTH * 4)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_sources(data):
    """Own rows, copies, and replies of two owners of which each comes in pieces, in any order."""
    owners = np.array(data.draw(st.lists(st.integers(0, 3), max_size=60)), np.int64)
    ids = 1000 * owners + np.arange(len(owners)) % 1000
    fetch = RowFetch(ids)
    for owner in range(4):
        at = np.flatnonzero(owners == owner)
        if owner < 2:
            if data.draw(st.booleans()):  # positions of cached rows are in any order
                at = at[::-1].copy()
            fetch.local.append(local_rows(1000 * owner, ids[at], at))
            continue
        step = data.draw(st.integers(1, 20))
        for first in range(0, len(at), step):
            piece = at[first : first + step]
            fetch.remote.append(requested(ids[piece], piece))
    outs, replies = outs_of(len(ids)), [request.ticket for request in fetch.remote]
    arrivals = iter(data.draw(st.permutations(replies)))
    for waiting in write_rows([(fetch, outs)]):
        while not all(ticket.done for ticket in waiting):
            next(arrivals).succeed()
    for expected, out in zip(rows_of(ids), outs, strict=True):
        np.testing.assert_array_equal(out, expected)


def test_replies_of_several_frames(small_frames):
    """The last frame of a reply is not full, and one of the next reply begins in the middle."""
    positions = np.arange(0, 60, 2)
    fetch = RowFetch(np.arange(60), [local_rows(0, positions + 1, positions + 1)])
    fetch.remote = [requested(positions[a:b], positions[a:b]) for a, b in ((0, 11), (11, 30))]
    assert len(fetch.remote[0].ticket._arrays) == 1 + 3
    for request in fetch.remote:
        request.ticket.succeed()
    outs = outs_of(60)
    assert list(write_rows([(fetch, outs)])) == []
    for expected, out in zip(rows_of(fetch.ids), outs, strict=True):
        np.testing.assert_array_equal(out, expected)


def test_a_cached_row_is_read_before_its_memory_is_used_again(small_frames):
    """Positions 0 and 59 are in the cache. The first reply has a row for the slot of the latter."""
    ids = np.arange(60)
    cache = [values.copy() for values in rows_of(np.array([0, 59]))]
    hits = LocalRows([Feature(values) for values in cache], np.array([0, 1]), np.array([0, 59]))
    fetch = RowFetch(ids, [hits])
    kept = KeptRows(cache, np.array([7, 8, 20]), np.array([1, 0, 1])), None
    for (first, last), stays in zip(((1, 30), (30, 59)), kept, strict=True):
        fetch.remote.append(requested(ids[first:last], ids[first:last], stays))
    outs = outs_of(60)
    for request in fetch.remote:
        request.ticket.succeed()
    list(write_rows([(fetch, outs)]))
    for expected, out in zip(rows_of(ids), outs, strict=True):
        np.testing.assert_array_equal(out, expected)
    for expected, values in zip(rows_of(np.array([9, 21])), cache, strict=True):
        np.testing.assert_array_equal(values, expected)


def test_rows_are_written_once_the_rows_before_are_here():
    """A pass does not wait for the last reply: it writes what it can."""
    ids = np.arange(6)
    out = outs_of(6)[1]
    ordered = OrderedPass([out], [(rows_of(ids)[1:], ids[[0, 2, 5]], ids[[0, 2, 5]])])
    ordered.write(1)
    assert out[:, 0].tolist() == [0, -1, -1, -1, -1, -1]
    ordered.take([rows_of(ids[[1, 4]])[1:]], ids[[1, 4]])
    ordered.write(3)
    assert out[:, 0].tolist() == [0, 1000, 2000, -1, -1, -1]
    ordered.take([rows_of(ids[[3]])[1:]], ids[[3]])
    ordered.write(6)
    np.testing.assert_array_equal(out, rows_of(ids)[1])


def test_which_attributes_a_pass_writes():
    """Wide rows of plain arrays. Encoded rows are widened, and narrow ones share lines."""
    narrow, wide = outs_of(3)
    assert is_orderable(wide, [Feature(wide)])
    assert not is_orderable(narrow, [Feature(narrow)])
    halves = DecodedFeature(Feature(wide.astype(np.float16)), Encoding("float16"))
    assert not is_orderable(wide, [Feature(wide), halves])
    assert not is_orderable(wide, [Feature(wide), None])


@pytest.mark.parametrize("row_bytes", [0, 1, 400, FRAME_BYTES, FRAME_BYTES + 1])
@pytest.mark.parametrize("count", [0, 1, 2621, 2622, 10_000])
def test_slices_fit_frames(count, row_bytes):
    slices = frame_slices(count, row_bytes)
    assert slices[0].start == 0
    assert slices[-1].stop == count
    assert all(a.stop == b.start for a, b in itertools.pairwise(slices))
    lengths = [piece.stop - piece.start for piece in slices]
    assert all(length == 1 or length * row_bytes <= FRAME_BYTES for length in lengths if count)
    assert all((length + 1) * row_bytes > FRAME_BYTES for length in lengths[:-1])


def test_replies_with_other_arrays(small_frames):
    """As many arrays as slices, each with the rows of its slice."""
    good = requested(np.arange(6), np.arange(6)).ticket._arrays
    attributes = ATTRIBUTES
    assert len(replies.check_rows(good, "partition 1", 6, attributes, 6)[1]) == 2
    for bad in (good[:-1], [*good, good[-1]], [good[0], good[2], good[1]]):
        with pytest.raises(replies.ProtocolError, match="partition 1 sent"):
            replies.check_rows(bad, "partition 1", 6, attributes, 6)
