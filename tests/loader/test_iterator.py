"""The epoch iterator over a source that does what a test says: order, counts, errors, leaving."""

import contextlib
import gc
import io
import weakref

import pytest
import torch
from torch_geometric.data import Data

from khop.loader import NeighborLoader
from khop.loader.iteration.iterator import UNKNOWN, BatchSource, EpochIterator
from khop.loader.iteration.resume import EpochProgress
from khop.metrics.loader_stats import StatsAccumulator

NUM_BATCHES = 5


class Broken(Exception):
    """An error that a test asks for."""


class Source(BatchSource):
    """A source of batches 0 to 4; `log` has what was done with it.

    Args:
        take, finish: errors of `take` and `finish`, by batch.
        arrived: batches that have arrived before they are asked for.
        ends: True if an error of `take` ends the epoch.
    """

    def __init__(self, take=None, finish=None, arrived=(), ends=False):
        self.errors = {"take": take or {}, "finish": finish or {}}
        self.arrived = arrived
        self.can_prefetch = len(arrived) > 0
        self.ends = ends
        self.log = []

    def _do(self, step, batch):
        self.log.append((step, batch))
        if batch in self.errors[step]:
            if step == "take" and self.ends:
                self.close()
            raise self.errors[step][batch]

    def take(self, index):
        if index >= NUM_BATCHES or "close" in self.log:
            raise StopIteration
        self._do("take", index)
        return 0, index

    def has_arrived(self, index):
        return index in self.arrived

    def finish(self, pending):
        self._do("finish", pending)
        return pending, UNKNOWN

    def close(self):
        self.log.append("close")


def iterate(source, progress=None):
    """An iterator, the progress of its epoch, and the counts of its loader."""
    progress = progress or EpochProgress(7)
    tally = StatsAccumulator(0)
    return EpochIterator(range(NUM_BATCHES), source, progress, tally), progress, tally


def results(iterator, number=20):
    """Batches, and the names of errors in their place, until the end is reported twice."""
    found = []
    for _ in range(number):
        try:
            found.append(next(iterator))
        except StopIteration:
            found.append("end")
        except BaseException as error:
            found.append(type(error).__name__)
        if found[-2:] == ["end", "end"]:
            return found[:-2]
    raise AssertionError(f"no end: {found}")


def test_batches_come_in_order_and_count_when_they_are_delivered():
    iterator, progress, tally = iterate(Source())
    assert len(iterator) == NUM_BATCHES
    for batch in range(NUM_BATCHES):
        assert next(iterator) == batch
        assert (progress.delivered, progress.ended) == (batch + 1, False)
    assert results(iterator) == []
    assert (progress.delivered, progress.failed, progress.ended) == (NUM_BATCHES, 0, True)
    assert tally.snapshot().batches == NUM_BATCHES


@pytest.mark.parametrize("delivered", range(NUM_BATCHES + 1))
def test_a_resumed_epoch_takes_what_was_not_delivered(delivered):
    source = Source()
    iterator, progress, tally = iterate(source, EpochProgress(7, delivered))
    rest = list(range(delivered, NUM_BATCHES))
    assert results(iterator) == rest
    assert [index for step, index in source.log[:-1] if step == "take"] == rest
    assert (progress.delivered, progress.ended) == (NUM_BATCHES, True)
    assert tally.snapshot().batches == len(rest)


@pytest.mark.parametrize("step", ["take", "finish"])
@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("arrived", [(), range(NUM_BATCHES)])
def test_an_error_stands_in_its_batchs_place(step, batch, arrived):
    """Once; the next call goes on with the next batch."""
    iterator, progress, tally = iterate(Source(arrived=arrived, **{step: {batch: Broken()}}))
    expected = list(range(NUM_BATCHES))
    expected[batch] = "Broken"
    assert results(iterator) == expected
    assert (progress.delivered, progress.failed, progress.ended) == (NUM_BATCHES, 0, True)
    assert tally.snapshot().batches == NUM_BATCHES - 1


@pytest.mark.parametrize("arrived", [(), range(NUM_BATCHES)])
def test_an_error_that_ends_the_epoch_leaves_its_batch_due(arrived):
    iterator, progress, _ = iterate(Source(take={3: Broken()}, arrived=arrived, ends=True))
    assert results(iterator) == [0, 1, 2, "Broken"]
    assert (progress.delivered, progress.failed, progress.ended) == (3, 1, False)
    resumed, again, _ = iterate(Source(), EpochProgress(7, progress.delivered))
    assert results(resumed) == [3, 4]
    assert again.ended


def test_a_failed_batch_is_due_until_a_later_one_is_delivered():
    iterator, progress, _ = iterate(Source(finish={1: Broken(), 2: Broken()}))
    counts = []
    for _ in range(4):
        with contextlib.suppress(Broken):
            next(iterator)
        counts.append(progress.delivered)
    assert counts == [1, 1, 1, 4]


def test_an_epoch_whose_last_batch_failed_has_not_ended():
    iterator, progress, _ = iterate(Source(finish={4: Broken()}))
    assert results(iterator) == [0, 1, 2, 3, "Broken"]
    assert (progress.delivered, progress.ended) == (4, False)


def test_a_stop_iteration_of_a_transform_is_a_failure_not_the_end():
    iterator, progress, _ = iterate(Source(finish={2: StopIteration()}))
    assert list(iterator) == [0, 1]
    assert (progress.delivered, progress.failed, progress.ended) == (2, 1, False)
    assert list(iterator) == [3, 4]


def test_a_batch_that_has_arrived_is_taken_before_the_one_before_it_is_finished():
    source = Source(arrived=(1, 3))
    assert results(iterate(source)[0]) == list(range(NUM_BATCHES))
    steps = [("take", 0), ("take", 1), ("finish", 0), ("finish", 1), ("take", 2), ("take", 3)]
    assert source.log == [*steps, ("finish", 2), ("finish", 3), ("take", 4), ("finish", 4), "close"]


def test_an_error_of_a_batch_taken_ahead_waits_for_its_turn():
    source = Source(take={1: Broken()}, arrived=(1,), ends=True)
    iterator, progress, _ = iterate(source)
    assert next(iterator) == 0
    assert source.log == [("take", 0), ("take", 1), "close", ("finish", 0)]
    assert (progress.delivered, progress.failed) == (1, 0)
    assert results(iterator) == ["Broken"]


@pytest.mark.parametrize("arrived", [(), (2,)])
@pytest.mark.parametrize("step", ["take", "finish"])
def test_an_interrupt_loses_no_batch(step, arrived):
    """Also if it came while a batch was taken ahead: the batches after that are not delivered."""
    source = Source(arrived=arrived, ends=True, **{step: {2: KeyboardInterrupt()}})
    iterator, progress, _ = iterate(source)
    found = results(iterator)
    delivered = [batch for batch in found if batch != "KeyboardInterrupt"]
    assert found.count("KeyboardInterrupt") == 1
    if step == "finish":
        assert delivered == [0, 1, 3, 4] and progress.ended
    else:
        assert delivered == list(range(progress.delivered)) and not progress.ended


@pytest.mark.parametrize("delivered", [0, 2, NUM_BATCHES])
def test_a_closed_iterator_is_at_its_end_but_the_epoch_is_not(delivered):
    source = Source(arrived=range(NUM_BATCHES))
    iterator, progress, _ = iterate(source)
    for _ in range(delivered):
        next(iterator)
    iterator.close()
    iterator.close()
    assert source.log.count("close") == 1
    assert results(iterator) == []
    assert (progress.delivered, progress.ended) == (delivered, False)


def test_the_source_is_dropped_with_its_iterator():
    """At once; and at the end of the epoch, if somebody keeps the iterator."""
    gc.disable()
    try:
        for leave in (next, list):
            source = Source(arrived=(1,))
            seen = weakref.ref(source)
            iterator = iterate(source)[0]
            leave(iterator)
            kept = iterator if iterator._source is None else None
            del source, iterator
            assert seen() is None
            del kept
    finally:
        gc.enable()


def test_an_iterator_keeps_its_loader():
    class Loader:
        def __len__(self):
            return NUM_BATCHES

    loader = Loader()
    seen = weakref.ref(loader)
    iterator = EpochIterator(loader, Source(), EpochProgress(7), StatsAccumulator(0))
    del loader
    assert len(iterator) == NUM_BATCHES
    assert seen() is not None
    del iterator
    assert seen() is None


def test_iterators_count_each_their_own_epoch():
    """Of one loader, in turns; statistics are of both."""
    progresses = EpochProgress(7), EpochProgress(8)
    tally = StatsAccumulator(0)
    one, other = (EpochIterator(range(NUM_BATCHES), Source(), p, tally) for p in progresses)
    assert [next(one), next(other), next(one)] == [0, 0, 1]
    assert [progress.delivered for progress in progresses] == [2, 1]
    assert results(one) == [2, 3, 4]
    assert [progress.ended for progress in progresses] == [True, False]
    assert tally.snapshot().batches == 6


def test_progress_bar_counts_batches_and_begins_where_the_epoch_was():
    data = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=20)
    loader, text = NeighborLoader(data, [1], batch_size=2, seed=0), io.StringIO()
    for number, _ in enumerate(loader.progress(file=text, mininterval=0)):
        if number == 3:
            state = loader.state_dict()
            break
    assert "4/10" not in text.getvalue()  # a batch counts when the next is asked for
    assert "3/10" in text.getvalue()
    other, text = NeighborLoader(data, [1], batch_size=2, seed=0), io.StringIO()
    other.load_state_dict(state)
    assert len(list(other.progress(file=text, mininterval=0))) == 6
    assert "4/10" in text.getvalue()
    assert "10/10" in text.getvalue()
