"""Order in which a sampler draws, requests and writes its batches: no process, no graph."""

import random

import pytest

from khop.distributed.sampling import window
from khop.distributed.sampling.window import Stage, Task, Window


def keys(*batches):
    return [(0, batch) for batch in batches]


class Drawn(int):
    """A batch of 10 bytes."""

    nbytes = 10


class Sampler:
    """Moves batches on as a sampler does. Drawing ends when the test says so.

    Args:
        arguments: of the window.
    """

    def __init__(self, *arguments):
        self.window = Window(*arguments)
        self.announced, self.fetched, self.written, self.held = [], [], [], set()

    def may_write(self, batch):
        """No batch needs another's rows."""
        return batch not in self.held

    def begin(self):
        """Starts to draw all batches that may be drawn. Returns their numbers."""
        begun = []
        while (following := self.window.next_to_draw()) is not None:
            key, is_requested = following
            self.window.tasks.append(Task(key, None, iter(()), is_requested))
            begun.append(key[1])
        return begun

    def end_drawing(self, *batches):
        """Some batches are drawn (all, if none is named)."""
        for task in self.window.tasks:
            if task.stage == Stage.DRAWING and (not batches or task.key[1] in batches):
                task.stage, task.drawn = Stage.DRAWN, Drawn(task.key[1])

    def go_on(self):
        """Announces, requests and writes what can be. Returns the batches that were written."""
        window, written = self.window, []
        for _ in range(1000):
            if (task := window.next_to_announce()) is not None:
                task.stage = Stage.ANNOUNCED
                self.announced.append(task.key[1])
            elif (task := window.next_to_fetch()) is not None:
                task.stage = Stage.FETCHING
                self.fetched.append(task.key[1])
            elif (task := window.next_to_write(self.may_write)) is not None:
                window.tasks.remove(task)
                written.append(task.key[1])
            else:
                break
        self.written += written
        return written


def test_a_batch_waits_until_the_next_ones_are_known():
    """Of 10 batches the first is written when 3 others are announced, the last three at once."""
    sampler = Sampler(2, 3, True)
    sampler.window.add(keys(*range(10)))
    assert sampler.begin() == [0, 1]
    sampler.end_drawing()
    assert sampler.go_on() == []
    assert sampler.begin() == [2, 3]
    sampler.end_drawing()
    assert sampler.go_on() == [0]
    while sampler.begin():
        sampler.end_drawing()
        sampler.go_on()
    assert sampler.written == list(range(10))


def test_a_batch_does_not_wait_long_for_others(monkeypatch):
    """Batch 2 waits for an unreachable partition: batches 0 and 1 are written nevertheless."""
    now = 100.0
    monkeypatch.setattr(window.time, "monotonic", lambda: now)
    sampler = Sampler(3, 8, True)
    sampler.window.add(keys(0, 1, 2))
    sampler.begin()
    sampler.end_drawing(0, 1)
    assert sampler.go_on() == []
    now += window.MAX_WAIT + 0.01
    assert sampler.go_on() == [0]
    assert sampler.go_on() == []
    now += window.MAX_WAIT + 0.01
    assert sampler.go_on() == [1]


def test_batches_are_announced_in_order():
    sampler = Sampler(3, 1, True)
    sampler.window.add(keys(0, 1, 2))
    sampler.begin()
    sampler.end_drawing(1, 2)
    assert sampler.go_on() == sampler.announced == []
    sampler.end_drawing(0)
    assert sampler.go_on() == sampler.announced == [0, 1, 2]


def test_batches_ahead_are_drawn_and_not_written():
    sampler = Sampler(2, 2, True)
    sampler.window.add(keys(0), keys(1, 2, 3, 4, 5, 6, 7))
    drawn = []
    while begun := sampler.begin():
        drawn += begun
        sampler.end_drawing()
        sampler.go_on()
    assert sampler.written == [0]
    assert drawn == [0, 1, 2, 3, 4]  # no more than lookahead + concurrency wait
    assert not sampler.window.is_busy
    sampler.window.add(keys(1))
    assert sampler.go_on() == [1]


def test_the_batch_of_a_dead_sampler_comes_first():
    """The trainer waits for batch 3, behind batches ahead that it will not request before."""
    sampler = Sampler(2, 2, True)
    sampler.window.add([], keys(*range(10, 20)))
    while sampler.begin():
        sampler.end_drawing()
        sampler.go_on()
    sampler.window.add(keys(3))
    assert sampler.begin() == [3]
    sampler.end_drawing()
    assert sampler.go_on() == [3]


def test_a_batch_that_depends_on_no_other_overtakes():
    sampler = Sampler(3, 1, True)
    sampler.window.add(keys(0, 1, 2))
    sampler.begin()
    sampler.end_drawing()
    sampler.held = {0, 2}
    assert sampler.go_on() == [1]
    sampler.held = set()
    assert sampler.go_on() == [0, 2]
    assert sampler.fetched == [0, 1, 2]


def test_without_lookahead_any_batch_is_written_when_it_is_drawn():
    sampler = Sampler(3, 0, False)
    sampler.window.add(keys(0, 1, 2, 3), keys(4))
    assert sampler.begin() == [0, 1, 2]
    sampler.end_drawing(2)
    assert sampler.go_on() == [2]
    assert sampler.begin() == [3]
    sampler.end_drawing()
    assert sampler.go_on() == [0, 1, 3]
    assert sampler.begin() == []  # it is not requested


def test_batches_that_are_drawn_ahead_are_bounded_by_bytes():
    """Of batches of 10 bytes two are drawn ahead, and none waits for more of them."""
    sampler = Sampler(1, 5, True, 25)
    sampler.window.add(keys(0, 1), keys(2, 3, 4, 5, 6))
    drawn = []
    while begun := sampler.begin():
        drawn += begun
        sampler.end_drawing()
        sampler.window.next_to_announce().stage = Stage.ANNOUNCED
    assert drawn == [0, 1, 2]
    assert sampler.window.next_to_fetch().key == (0, 0)
    assert (0, 6) in sampler.window
    assert (0, 7) not in sampler.window


def test_batches_of_a_closed_epoch_are_forgotten():
    sampler = Sampler(1, 2, True)
    sampler.window.add(keys(0, 1), [(1, 5)])
    sampler.begin()
    (removed,) = sampler.window.remove(0)
    assert removed.key == (0, 0)
    assert sampler.window.next_to_draw() == ((1, 5), False)


@pytest.mark.parametrize("seed", range(20))
def test_every_requested_batch_is_written(seed):
    """Whatever order batches are named, requested and drawn in, nothing waits for ever."""
    rng = random.Random(seed)
    concurrency, lookahead = rng.randint(1, 4), rng.randint(0, 6)
    is_ordered, most_bytes = lookahead > 0 or rng.random() < 0.5, rng.choice([None, 5, 35])
    sampler = Sampler(concurrency, lookahead, is_ordered, most_bytes)
    batches = list(range(40))
    unnamed, ahead = batches[:], []
    for _ in range(3000):
        if unnamed and rng.random() < 0.3:
            ahead.append(unnamed.pop(0))
            sampler.window.add([], keys(ahead[-1]))
        if rng.random() < 0.3 and (ahead or unnamed):
            taken = ahead or unnamed
            sampler.window.add(keys(taken.pop(0 if rng.random() < 0.8 else -1)))
        sampler.begin()
        drawing = [t.key[1] for t in sampler.window.tasks if t.stage == Stage.DRAWING]
        assert len(drawing) <= concurrency
        assert len(sampler.window.tasks) <= 2 * concurrency + lookahead + 1
        if drawing:
            sampler.end_drawing(rng.choice(drawing))
        sampler.go_on()
    assert sorted(sampler.written) == batches
    assert sampler.fetched == sampler.written or lookahead == 0
