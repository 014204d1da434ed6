"""Jobs of several trainers with a `GraphStore`, for tests."""

from __future__ import annotations

import hashlib
import os
import signal
import time

import numpy as np
import torch

import khop.nn
import khop.optim
from khop.distributed import GraphStore, init_worker_group
from khop.errors import KhopError
from support.cluster import jobs

NUM_ROWS = 500
PUSHES = 4
REDUCES = ("add", "add", "set", "max")


def pushes_of(rank):
    """The pushes of a trainer in a step: (ids with repeats, values, reduce)."""
    generator = np.random.default_rng(rank)
    for reduce in REDUCES:
        ids = generator.integers(0, NUM_ROWS, 2000)
        yield ids, generator.standard_normal((2000, 3)).astype(np.float32), reduce


def expected(world_size):
    """The rows after a step, by NumPy: trainer by trainer, push by push, row by row."""
    rows = np.zeros((NUM_ROWS, 3), np.float32)
    for rank in range(world_size):
        for ids, values, reduce in pushes_of(rank):
            if reduce == "add":
                np.add.at(rows, ids, values)
            elif reduce == "max":
                np.maximum.at(rows, ids, values)
            else:
                for i, value in zip(ids, values, strict=True):
                    rows[i] = value
    return rows


def _store(arguments):
    context, dataset, _ = jobs._load(arguments)
    return context, GraphStore(dataset, timeout=30)


def job_push(arguments):
    """A step of concurrent pushes. Returns the digest of all rows, and an integer sum."""
    context, store = _store(arguments)
    rows = store.create_node_tensor("rows", shape=(3,))
    counts = store.create_edge_tensor("counts", dtype=torch.int64)
    for ids, values, reduce in pushes_of(context.rank):
        rows.push(torch.from_numpy(ids), torch.from_numpy(values), reduce)
        counts.push(ids, np.full(len(ids), context.rank + 1), "add")
    before = rows.pull().abs().sum().item()
    version = store.step()
    values = rows.pull()
    digest = hashlib.sha256(values.numpy().tobytes()).hexdigest()
    total = int(counts.pull().sum())
    store.close()
    return {"digest": digest, "total": total, "before": before, "version": version}


def job_lose(arguments):
    """Trainer 0 loses the server of its partition, or trainer 1 is killed in a step."""
    context, store = _store(arguments)
    rows = store.create_node_tensor("rows")
    store.step()
    if arguments["how"] == "server":
        push = rows.push(None, torch.ones(NUM_ROWS), "add")
        if context.rank == 0:
            supervisor = store._client._service.endpoint_registry.supervisor
            os.kill(supervisor.servers[0].process.pid, signal.SIGKILL)
    elif context.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        if arguments["how"] == "server" and context.rank == 0:
            push.wait()
            rows.pull()
        store.step()
    except KhopError as error:
        return {"error": f"{type(error).__name__}: {error}", "seconds": time.monotonic() - began}
    return {"error": None}


def job_differ(arguments):
    """Trainers make different calls."""
    context, store = _store(arguments)
    init_worker_group()
    try:
        store.create_node_tensor("rows", shape=(1 + context.rank,))
    except KhopError as error:
        return {"error": str(error)}
    return {"error": None}


def batch_of(rank, step):
    """Ids with repeats, and the factor of each embedding in a trainer's loss."""
    generator = torch.Generator().manual_seed(10 * rank + step)
    ids = torch.randint(0, 60, (40,), generator=generator)
    return ids, torch.randn(40, 4, generator=generator)


def loss_of(rows, factors):
    return (rows * factors).sum() + (rows**2).mean()


OPTIMISERS = {
    "SparseSGD": {"lr": 0.3},
    "SparseAdagrad": {"lr": 0.3, "lr_decay": 0.1},
    "RowwiseAdagrad": {"lr": 0.3},
    "SparseAdam": {"lr": 0.3, "betas": (0.8, 0.95)},
}


def job_embed(arguments):
    """Steps of each optimiser. Returns the digest of each embedding, and the first's values."""
    context, store = _store(arguments)
    result = {}
    for name, options in OPTIMISERS.items():
        embedding = khop.nn.DistEmbedding(NUM_ROWS, 4, store, name)
        optimiser = getattr(khop.optim, name)([embedding], **options)
        for step in range(4):
            ids, factors = batch_of(context.rank, step)
            optimiser.zero_grad()
            loss_of(embedding(ids[:30]), factors[:30]).backward()
            loss_of(embedding(ids[30:]), factors[30:]).backward()
            optimiser.step()
        values = embedding.weight.pull()
        result[name] = hashlib.sha256(values.numpy().tobytes()).hexdigest()
        result[f"{name} values"] = values[:60].tolist()
    store.close()
    return result


def job_prefetch(arguments):
    """Train with rows that are pulled a batch ahead. Returns the ages, and a digest of all rows."""
    context, store = _store(arguments)
    history = khop.nn.History(NUM_ROWS, 4, store, "h")
    batches = [batch_of(context.rank, step) for step in range(6)]
    pulled, ages = [], []
    history.prefetch(batches[0][0])
    for step, (ids, values) in enumerate(batches):
        pulled.append(history.pull(ids))
        ages.append(history.age)
        if step + 1 < len(batches):
            history.prefetch(batches[step + 1][0])
        time.sleep(0.02 * ((context.rank + step) % 2))
        history.push(pulled[-1] + values, ids)
        store.step()
    values = torch.cat([*pulled, history.pull()])
    store.close()
    return {"ages": ages, "digest": hashlib.sha256(values.numpy().tobytes()).hexdigest()}


def job_propagate(arguments):
    """Run a hop of GCN. Returns the digest of the result, and its values."""
    generator = torch.Generator().manual_seed(0)
    torch.randint(0, 90, (2, 800), generator=generator)
    torch.rand(800, generator=generator)
    x = torch.randn(100, 5, generator=generator)
    _, store = _store(arguments)
    store.create_node_tensor("x", shape=(5,), init=x)
    store.update_all("x", "x", norm="sym")
    values = store["x"].pull()
    store.close()
    return {
        "digest": hashlib.sha256(values.numpy().tobytes()).hexdigest(),
        "values": values.tolist(),
    }


if __name__ == "__main__":
    jobs.run(globals())
