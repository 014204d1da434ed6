"""Graphs that several tests share, levels of tests, and their order."""

import contextlib
import faulthandler
import gc
import logging
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from torch_geometric.data import Data

from khop import interrupts
from khop.distributed import get_context, shutdown_worker_group
from support import durations, levels, order, versions, zygote

# All parts of tests are on this machine. Unless a test says otherwise, their rows go by message, as
# between machines.
os.environ.setdefault("KHOP_SAME_HOST_READS", "0")

gc.disable()  # until all tests are known: a fifth of what it takes to find them

# Machines that run tests are busy: hypothesis' 200 ms for an example say nothing about khop. Based
# on the profile in force, which in CI is hypothesis' own.
settings.register_profile("khop", settings(deadline=None))
settings.load_profile("khop")


def pytest_addoption(parser):
    parser.addoption("--shuffle", type=int, metavar="SEED", help="order files at random")
    parser.addoption(
        "--write-durations", action="store_true", help="write tests/support/durations.txt"
    )
    parser.addoption(
        "--write-recorded", action="store_true", help="write tests/support/recorded/batches.txt"
    )


@pytest.hookimpl(trylast=True)  # after pytest has enabled faulthandler
def pytest_configure(config):
    """Signals, forked programs, and a file for what ends this process: `scripts/test` shows it."""
    torch.set_num_threads(1)  # several wait for each other by spinning
    # A shell that starts the tests in the background has Ctrl-C ignored, by children as well.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "LD_PRELOAD" not in os.environ:  # sanitizers start threads
        zygote.install()
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    if worker == "main" and config.getoption("write_durations"):
        config.pluginmanager.register(durations.Recorder())
    if folder := os.environ.get("KHOP_TEST_LOGS"):
        faulthandler.enable((Path(folder) / f"{worker}.faults").open("w"))


def pytest_ignore_collect(collection_path, config):
    """With `-m 'unit ...'` files without such tests are not read."""
    units = config.option.markexpr.startswith("unit") and collection_path.name.startswith("test_")
    return (units and not levels.may_have_units(collection_path, Path(__file__).parent)) or None


@pytest.hookimpl(tryfirst=True)  # before -m chooses by levels
def pytest_collection_modifyitems(config, items):
    """Levels for all, and `slow`; slow files first, or files in an order of `--shuffle`."""
    levels.mark(items, Path(__file__).parent)
    for item in items:
        if durations.function_of(item.nodeid) in durations.measured():
            item.add_marker("slow")
    order.arrange(items, config.getoption("shuffle"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """A unit test starts no process, nor do its fixtures; others fork programs unless marked."""
    if levels.of_test(item) == "unit":
        around = levels.no_processes()
    else:
        marked = item.get_closest_marker("real_exec")
        around = zygote.real_exec() if marked else contextlib.nullcontext()
    with around:
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    """A test that reads a file of torch.save is skipped where torch is too old for that."""
    try:
        return (yield)
    except Exception as error:
        if versions.refused_for_its_version(error):
            pytest.skip(str(error))
        raise


def pytest_collection_finish():
    """What is imported stays: to look through PyTorch takes each collection of garbage 0.2 s."""
    gc.collect()
    gc.freeze()
    gc.enable()
    # In each step of each test pytest adds a handler to every logger that does not propagate: of
    # PyTorch's there are fifty.
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch") and isinstance(logger, logging.Logger):
            logger.propagate = True


@pytest.fixture(autouse=True)
def leaves_its_job():
    """A loader over partitions makes this process a trainer; the next test starts from none.

    Nor is anything left of signals whose exception a destructor dropped.
    """
    is_member = get_context() is not None
    yield
    with contextlib.suppress(BaseException):
        interrupts.raise_dropped()
    if not is_member:
        shutdown_worker_group()


def _power_law(num_nodes, num_edges, seed):
    """Edges whose ends follow a skewed distribution; the last tenth of the nodes is isolated."""
    rng = np.random.default_rng(seed)
    top = num_nodes * 9 // 10
    weights = 1.0 / np.arange(1, top + 1) ** 0.8
    ends = rng.choice(top, size=(2, num_edges), p=weights / weights.sum())
    return rng.permutation(num_nodes)[ends]


@pytest.fixture
def power_law():
    """Returns power_law(num_nodes, num_edges, seed=0): [2, num_edges] int64."""
    return lambda num_nodes, num_edges, seed=0: _power_law(num_nodes, num_edges, seed)


@pytest.fixture
def data():
    """200 nodes, 1,600 edges in random order, isolated nodes; every attribute tells its own id."""
    num_nodes, num_edges = 200, 1600
    return Data(
        x=torch.arange(num_nodes, dtype=torch.float32).view(-1, 1).repeat(1, 5),
        y=torch.arange(num_nodes) * 7,
        edge_index=torch.from_numpy(_power_law(num_nodes, num_edges, 1)),
        edge_attr=torch.arange(num_edges, dtype=torch.float32).view(-1, 1),
    )


@pytest.fixture
def two_threads(monkeypatch):
    """Torch and khop have two threads, as on any machine where something may be done beside."""
    monkeypatch.setattr("khop.sampler.pyg.random_walks.available_cores", lambda: 2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
