"""Servers that die, stop or are cut off come back, or all hear of it; batches are the same."""

import contextlib
import os
import signal
import threading

import jobs
import pytest
from faults import FEW_AHEAD, SOON, make_loader, make_reference, within

from khop.distributed import keeper
from khop.errors import PartitionUnavailableError


def server_pids(loader):
    """Process ids of the servers that this trainer keeps."""
    servers = loader.data.service().whereabouts.keeper.servers
    return [server.process.pid for server in servers.values()]


def with_fault(loader, fault, at=(1, 9)):
    """Batches of an epoch, in the middle of which `fault()` happens."""
    for number, batch in enumerate(loader):
        if number in at:
            fault()
        yield batch.clone()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_servers_that_die_come_back(graph, folder_of, num_workers, number):
    """However it ends, a server is there again at its place, and what was asked is asked again."""
    loader = make_loader(folder_of("random", 2), 2, num_workers, channel_size=FEW_AHEAD)
    before = loader.data.service().endpoints()

    def kill():
        for pid in server_pids(loader):
            os.kill(pid, number)

    with within(SOON + 3):
        assert jobs.same_batches(with_fault(loader, kill), make_reference(graph)) == len(loader)
    assert loader.data.service().whereabouts.keeper.num_restarts == 2
    assert loader.data.service().endpoints() == before


def test_server_that_never_works_again(folder_of, monkeypatch):
    """One that dies whenever it is started is given up: an exception that says how it ended."""
    monkeypatch.setattr(keeper, "_MAX_IN_A_ROW", 3)
    loader = make_loader(folder_of("random", 2), 2, channel_size=FEW_AHEAD)
    iterator = iter(loader)
    next(iterator)
    over = threading.Event()

    def kill():
        while not over.wait(0.02):
            for pid in server_pids(loader):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        with (
            within(SOON),
            pytest.raises(
                PartitionUnavailableError, match=r"partition 1 has ended for good.*SIGKILL"
            ),
        ):
            list(iterator)
        with within(SOON), pytest.raises(PartitionUnavailableError, match="ended for good"):
            list(loader)
    finally:
        over.set()
        thread.join()
