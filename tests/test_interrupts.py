"""A signal's handler that raises an exception ends the program, also where Python drops it."""

import signal
import sys
import threading

import pytest
import torch
from torch_geometric.data import Data

from khop import interrupts
from khop.distributed.membership.polling import pauses
from khop.loader import NeighborLoader


class Signalled:
    """Objects in whose destructor a signal comes."""

    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


@pytest.fixture(autouse=True)
def handler(monkeypatch):
    """SIGTERM exits with status 143. Python's hook is khop's, where pytest has its own."""
    monkeypatch.setattr(sys, "unraisablehook", interrupts.keep_dropped)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_next_batch_raises_it(num_workers):
    """Once; the batch is not lost."""
    data = Data(edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=3)
    loader = NeighborLoader(data, [1], batch_size=1, num_workers=num_workers)
    iterator, seen = iter(loader), []
    seen.append(next(iterator))
    Signalled()
    with pytest.raises(SystemExit, match="143"):
        next(iterator)
    seen += list(iterator)
    assert [batch.input_id.tolist() for batch in seen] == [[0], [1], [2]]


def test_a_wait_for_other_trainers_raises_it():
    with pytest.raises(SystemExit, match="143"):
        for _ in pauses(60):
            Signalled()


def test_errors_of_destructors_are_reported_as_ever(monkeypatch):
    """Those of class Exception, and whatever other threads raise."""
    reported = []
    monkeypatch.setattr(interrupts, "_previous_hook", lambda u: reported.append(u.exc_type))

    class Wrong:
        def __init__(self, error):
            self.error = error

        def __del__(self):
            raise self.error

    Wrong(ValueError())
    thread = threading.Thread(target=lambda: Wrong(SystemExit(1)) and None)
    thread.start()
    thread.join()
    assert reported == [ValueError, SystemExit]
    interrupts.raise_dropped()
