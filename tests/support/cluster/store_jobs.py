"""Jobs of several trainers with a `GraphStore`, for tests."""

from __future__ import annotations

import hashlib
import os
import signal
import time

import numpy as np
import torch
import torch.distributed.checkpoint as dcp

import khop.nn
import khop.optim
from khop.distributed import GraphStore, init_client, store_inference
from khop.errors import KhopError
from support.cluster import inference_jobs, jobs

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
    """Return a trainer's rank in the store and the store, over its own or over graph servers."""
    if "port" not in arguments:
        context, dataset, _ = jobs._load(arguments)
        return context.rank, GraphStore(dataset, timeout=30)
    rank = int(os.environ["RANK"])
    init_client(arguments["num_servers"], 0, rank, "127.0.0.1", arguments["port"])
    ((job, clients),) = [item for item in arguments["jobs"].items() if rank in item[1]]
    return clients.index(rank), GraphStore(None, timeout=30, job=job, clients=clients)


def job_push(arguments):
    """A step of concurrent pushes. Returns the digest of all rows, and an integer sum."""
    rank, store = _store(arguments)
    rows = store.create_node_tensor("rows", shape=(3,))
    counts = store.create_edge_tensor("counts", dtype=torch.int64)
    for ids, values, reduce in pushes_of(rank):
        rows.push(torch.from_numpy(ids), torch.from_numpy(values), reduce)
        counts.push(ids, np.full(len(ids), rank + 1), "add")
    before = rows.pull().abs().sum().item()
    version = store.step()
    values = rows.pull()
    digest = hashlib.sha256(values.numpy().tobytes()).hexdigest()
    total = int(counts.pull().sum())
    store.close()
    return {"digest": digest, "total": total, "before": before, "version": version}


def read(reader, name, queue):
    """Read a tensor in a forked process, and put its rows and their version into a queue."""
    values = reader[name].pull()
    queue.put((values.tolist(), reader.version))


def job_lose(arguments):
    """Trainer 0 loses the server of its partition, or trainer 1 is killed in a step."""
    rank, store = _store(arguments)
    rows = store.create_node_tensor("rows", on_disk=arguments.get("on_disk"))
    store.step()
    began = time.monotonic()
    if arguments["how"] == "server":
        try:  # the server may have been killed already
            push = rows.push(None, torch.ones(NUM_ROWS), "add")
        except KhopError as error:
            text = f"{type(error).__name__}: {error}"
            return {"error": text, "seconds": time.monotonic() - began}
        if "pids" in arguments:
            if rank == 0:
                os.kill(arguments["pids"][arguments["victim"]], signal.SIGKILL)
        elif rank == 0:
            supervisor = store._client.access.service.endpoint_registry.supervisor
            os.kill(supervisor.servers[0].process.pid, signal.SIGKILL)
    elif rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        if arguments["how"] == "server" and rank == 0:
            push.wait()
            rows.pull()
        store.step()
    except KhopError as error:
        seconds = time.monotonic() - began
        if rank == 0:  # has the job's store, where the others find the cause
            time.sleep(1)
        return {"error": f"{type(error).__name__}: {error}", "seconds": seconds}
    return {"error": None}


def job_count(arguments):
    """Many steps, in each of which each trainer adds 1 to all rows."""
    _, store = _store(arguments)
    rows = store.create_node_tensor("rows", shape=(3,))
    for _ in range(arguments["steps"]):
        rows.push(None, torch.ones(NUM_ROWS, 3), "add")
        store.step()
    store.step()  # keeps the tensors until a reader has seen them
    time.sleep(arguments.get("stay", 0))
    store.close()
    return {"version": store.version}


def job_differ(arguments):
    """Trainers make different calls."""
    rank, store = _store(arguments)
    try:
        store.create_node_tensor("rows", shape=(1 + rank,))
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
    rank, store = _store(arguments)
    result = {}
    for name, options in OPTIMISERS.items():
        on_disk = arguments.get("on_disk")
        embedding = khop.nn.DistEmbedding(NUM_ROWS, 4, store, name, on_disk=on_disk)
        optimiser = getattr(khop.optim, name)([embedding], **options)
        for step in range(4):
            ids, factors = batch_of(rank, step)
            optimiser.zero_grad()
            loss_of(embedding(ids[:30]), factors[:30]).backward()
            loss_of(embedding(ids[30:]), factors[30:]).backward()
            optimiser.step()
        values = embedding.weight.pull()
        result[name] = hashlib.sha256(values.numpy().tobytes()).hexdigest()
        result[f"{name} values"] = values[:60].tolist()
    store.close()
    return result


def job_torch_checkpoint(arguments):
    """Save a store, embedding and optimiser by torch, or load them. Returns digests."""
    rank, store = _store(arguments)
    torch.distributed.init_process_group(
        "gloo",
        store=torch.distributed.FileStore(arguments["meeting"], store.num_trainers),
        rank=rank,
        world_size=store.num_trainers,
    )
    embedding = khop.nn.DistEmbedding(NUM_ROWS, 4, store, "e", init="zeros")
    optimiser = khop.optim.SparseAdam(embedding, lr=0.3, betas=(0.8, 0.95))
    store.create_edge_tensor("w", dtype=torch.bfloat16)
    store.create_node_tensor("empty", shape=(0,))
    state = {"store": store, "optimiser": optimiser}
    if arguments["save"]:
        for step in range(2):
            ids, factors = batch_of(rank, step)
            loss_of(embedding(ids), factors).backward()
            optimiser.step()
        store["w"].push(np.arange(rank, 3000, 7), torch.ones(429).bfloat16(), "add")
        store.step()
        dcp.save(state, checkpoint_id=arguments["folder"])
    else:
        optimiser.param_groups[0]["lr"] = 9.0
        dcp.load(state, checkpoint_id=arguments["folder"])
    result = {"version": store.version, "lr": optimiser.param_groups[0]["lr"]}
    result["saved"] = _digests(store)
    ids, factors = batch_of(rank, 7)
    loss_of(embedding(ids), factors).backward()
    optimiser.step()
    result["next"] = _digests(store)
    torch.distributed.destroy_process_group()
    store.close()
    return result


def _digests(store):
    return {
        name: hashlib.sha256(tensor.pull().float().numpy().tobytes()).hexdigest()
        for name, tensor in store.tensors().items()
    }


def job_scale(arguments):
    """Scaled steps of which trainer 1 has an infinity, or no gradients, in some."""
    rank, store = _store(arguments)
    embedding = khop.nn.DistEmbedding(NUM_ROWS, 2, store, "e", init="zeros")
    dense = torch.nn.Linear(1, 1)
    optimisers = khop.optim.SparseSGD(embedding, lr=1.0), torch.optim.SGD(dense.parameters(), 1.0)
    if arguments["own"]:
        scaler = khop.optim.GradScaler(store, "cpu", init_scale=8.0)
    else:
        scaler, optimisers = torch.amp.GradScaler("cpu", init_scale=8.0), optimisers[:1]
    steps = []
    for factor in (1.0, float("inf") if rank else 2.0, 4.0):
        loss = (embedding(torch.tensor([3, 3])) * factor).sum() + dense(torch.ones(1, 1)).sum()
        if factor == 4.0 and rank and arguments["own"]:
            loss = dense(torch.ones(1, 1)).sum()
            optimisers[0].zero_grad()
        scaler.scale(loss).backward()
        if arguments["clip"]:
            scaler.unscale_(optimisers[0])
            torch.nn.utils.clip_grad_norm_(embedding.rows, 1.0)
        for optimiser in optimisers:
            scaler.step(optimiser)
            optimiser.zero_grad()
        scaler.update()
        steps.append([*embedding.weight[3].tolist(), scaler.get_scale(), store.version])
    store.close()
    return {"steps": steps}


def job_prefetch(arguments):
    """Train with rows that are pulled a batch ahead. Returns the ages, and a digest of all rows."""
    rank, store = _store(arguments)
    history = khop.nn.History(NUM_ROWS, 4, store, "h")
    batches = [batch_of(rank, step) for step in range(6)]
    pulled, ages = [], []
    history.prefetch(batches[0][0])
    for step, (ids, values) in enumerate(batches):
        pulled.append(history.pull(ids))
        ages.append(history.age)
        if step + 1 < len(batches):
            history.prefetch(batches[step + 1][0])
        time.sleep(0.02 * ((rank + step) % 2))
        history.push(pulled[-1] + values, ids)
        store.step()
    values = torch.cat([*pulled, history.pull()])
    store.close()
    return {"ages": ages, "digest": hashlib.sha256(values.numpy().tobytes()).hexdigest()}


def job_batches(arguments):
    """Train on batches with rows of tensors. Returns a digest of all tensors of all batches."""
    rank, store = _store(arguments)
    store.create_node_tensor("h", shape=(4,), init=("normal", 3))
    store.create_edge_tensor("w", dtype=torch.int64)
    seeds = torch.arange(rank, NUM_ROWS, 10)
    loader = khop.distributed.DistNeighborLoader(
        store._client.access.graph,
        *([4, 3], seeds),
        **{"batch_size": 16, "shuffle": True, "seed": 7, "transform": store.transform(["h", "w"])},
    )
    digest, versions = hashlib.sha256(), []
    for batch in loader:
        for name, value in sorted(batch.to_dict().items()):
            if isinstance(value, torch.Tensor):
                content = value.reshape(-1).contiguous().view(torch.uint8)
                digest.update(name.encode() + content.numpy().tobytes())
        versions.append(batch.store_version)
        time.sleep(0.02 * ((rank + len(versions)) % 2))
        store["h"].push(batch.n_id, batch.h.sin() + batch.x.float().mean(), "add")
        store["w"].push(batch.e_id, batch.w + batch.e_id, "set")
        store.step()
    rows = store["h"].pull(), store["w"].pull()
    loader.shutdown()
    store.close()
    for values in rows:
        digest.update(values.numpy().tobytes())
    return {"digest": digest.hexdigest(), "versions": versions}


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


def job_infer(arguments):
    """Layer-wise inference of clients. Returns the outputs, or the error if a layer fails."""
    rank, store = _store(arguments)
    case = inference_jobs.Case(arguments["kind"])
    model = case.model
    if arguments["fails"] == rank:
        model = [lambda x, *_: x.new_empty(0), model[-1]]
    elif arguments["fails"] is not None:
        model = [lambda x, *_: x, model[-1]]
    try:
        outputs = store_inference(store, model, "out", **case.options)
    except (KhopError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    names = sorted(store.tensors())
    outputs = {name: tensor.pull().tolist() for name, tensor in outputs.items()}
    store.close()
    return {"outputs": outputs, "names": names}


if __name__ == "__main__":
    jobs.run(globals())
