"""Examples in docstrings: the names that they may use, and a runner.

An example is a doctest in the docstring of a public name. It may use public names of khop without
an import. `names` adds a graph, a folder, a device and a port.
"""

import contextlib
import doctest
import importlib
import importlib.util
import inspect
import io
import sys
from dataclasses import dataclass

import numpy as np
import torch
import torch_geometric
from torch_geometric.data import Data

import khop
from khop import _native, log
from khop.distributed import get_context
from khop.distributed.job.context import leave
from khop.partition import RandomPartitioner

MODULES = tuple(
    f"khop.{name}"
    for name in (
        *("data", "datasets", "distributed", "loader", "metrics", "nn", "numa", "optim"),
        *("partition", "plot", "sampler", "sources", "stats", "trace"),
    )
)
OPTIONAL = {"khop.lightning": "lightning"}
"""{module: package that it needs}"""

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def public():
    """Return {'khop.loader.NeighborLoader': the class, ...} of all public classes and functions."""
    found = {}
    optional = [m for m, needed in OPTIONAL.items() if importlib.util.find_spec(needed)]
    for module in map(importlib.import_module, (*MODULES, *optional)):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                found[f"{module.__name__}.{name}"] = value
    return {**found, "khop.log.configure": log.configure}


def of(value):
    """Return the doctest of a public class or function. None if it has no example."""
    text = inspect.getdoc(value) or ""
    parsed = doctest.DocTestParser().get_doctest(text, {}, value.__qualname__, None, 0)
    return parsed if parsed.examples else None


def make_graph():
    """Return a graph of six nodes in a circle, each with edges from the next two."""
    to = torch.arange(6).repeat_interleave(2)
    return Data(
        x=torch.rand(6, 4),
        y=torch.arange(6) % 3,
        edge_index=torch.stack([(to + torch.tensor([1, 2]).repeat(6)) % 6, to]),
        train_mask=torch.arange(6) < 4,
    )


def names(path, folder, port):
    """Return the names that examples may use.

    Args:
        path: an empty folder.
        folder: folder of the graph's only partition.
        port: port of 127.0.0.1 where a graph server of this folder listens, or will.
    """
    return {
        **{name.rpartition(".")[2]: value for name, value in public().items()},
        **{"METHODS": importlib.import_module("khop.sampler").METHODS},
        **{"dataclass": dataclass},
        **{"khop": khop, "np": np, "sys": sys, "torch": torch, "torch_geometric": torch_geometric},
        **{"data": make_graph(), "device": _native.emulated_device(0, 1)},
        **{"path": path, "folder": str(folder), "port": port},
    }


def partition(folder):
    """Write the graph into a partition folder, as its only part."""
    RandomPartitioner.from_data(make_graph(), folder, 1).partition()


def run(value, given):
    """Run the example of a public class or function. AssertionError if its output differs."""
    test, report = of(value), io.StringIO()
    test.globs = given
    results = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=report.write)
    assert results.failed == 0, report.getvalue()
    assert results.attempted > 0


@contextlib.contextmanager
def undone():
    """Undo what an example in the block has configured, and leave the job that it has joined."""
    identity = dict(log._ORIGIN)
    try:
        yield
    finally:
        log.reset()
        log._ORIGIN.clear()
        log._ORIGIN.update(identity)
        if (context := get_context()) is not None:
            leave(context.role)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
