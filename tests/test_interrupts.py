"""A signal's handler that raises an exception ends the program, also where Python drops it."""

import signal
import subprocess
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


ASKED = """
import sys, time, khop
print(khop.stopping(), "torch" in sys.modules, flush=True)
while not khop.stopping():
    time.sleep(0.01)
print("saved", flush=True)
time.sleep(60)
"""


@pytest.mark.process
@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGUSR1])
def test_a_script_is_asked_to_stop(first):
    """It goes on until it looks. Two signals of SIGTERM end it."""
    child = subprocess.Popen([sys.executable, "-c", ASKED], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "False False\n"
    child.send_signal(first)
    assert child.stdout.readline() == "saved\n"
    child.send_signal(signal.SIGUSR1)
    if first == signal.SIGUSR1:
        child.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.5)
    child.send_signal(signal.SIGTERM)
    assert child.wait(20) == -signal.SIGTERM
    child.stdout.close()


def test_only_the_main_thread_can_begin_to_look(monkeypatch):
    monkeypatch.setattr(interrupts, "_is_watching", False)
    errors = []

    def look():
        try:
            interrupts.stopping()
        except ValueError as error:
            errors.append(str(error))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert "main thread" in errors[0]
