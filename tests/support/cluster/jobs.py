"""Programs that the distributed tests run as trainers, and functions that tests share with them.

python -m support.cluster.jobs NAME ARGUMENTS    runs a job as a trainer, with ARGUMENTS in JSON
"""

import contextlib
import gc
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data

from support import processes

FANOUTS = [4, -1, 3]
BATCH_SIZE = 32
ATTRIBUTES = (
    "n_id",
    "e_id",
    "edge_index",
    "x",
    "half",
    "brain",
    "y",
    "edge_attr",
    "train_mask",
    "input_id",
)


def make_graph(num_nodes=500, num_edges=3000, seed=0):
    """Return a random graph whose features are ids, with loops and repeated edges.

    Node 0 and the last ten nodes are isolated.
    """
    generator = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(1, num_nodes - 10, (2, num_edges), generator=generator)
    edge_index[:, -50:] = edge_index[:, :50]
    ids = torch.arange(num_nodes)
    return Data(
        x=ids.float().view(-1, 1).repeat(1, 5),
        half=ids.to(torch.float16),
        brain=(ids % 256).to(torch.bfloat16).view(-1, 1),
        y=ids.clone(),
        edge_index=edge_index,
        edge_attr=torch.arange(num_edges).view(-1, 1).float(),
        train_mask=torch.rand(num_nodes, generator=generator) < 0.4,
        num_nodes=num_nodes,
    )


def make_probs(num_nodes, num_parts):
    """Return probabilities of access per node and part, which differ between parts."""
    generator = np.random.default_rng(1)
    return [generator.random(num_nodes) ** 3 for _ in range(num_parts)]


def seeds_of_rank(rank, num_nodes=500):
    """Return the seeds of a trainer, with duplicates and an isolated node."""
    generator = torch.Generator().manual_seed(100 + rank)
    seeds = torch.randperm(num_nodes, generator=generator)[:150]
    return torch.cat([seeds, torch.tensor([0, 5, 5])])


def same_batches(loader, reference, attributes=ATTRIBUTES):
    """Check that two loaders' batches of an epoch are equal bit for bit. Return their number."""
    count = 0
    for ours, theirs in zip(loader, reference, strict=True):
        for name in attributes:
            assert ours[name].dtype == theirs[name].dtype, name
            assert torch.equal(ours[name], theirs[name]), f"{name} of batch {count}"
        assert ours.num_sampled_nodes == theirs.num_sampled_nodes
        assert ours.num_sampled_edges == theirs.num_sampled_edges
        assert ours.batch_size == theirs.batch_size
        count += 1
    return count


def make_loader(root, num_parts, num_workers, **options):
    """Return a loader of some seeds whose trainer serves all parts.

    If `num_workers` is None, the trainer makes the batches.
    """
    from khop.distributed import (
        CollocatedDistSamplingWorkerOptions,
        DistDataset,
        DistNeighborLoader,
        MpDistSamplingWorkerOptions,
    )

    workers = CollocatedDistSamplingWorkerOptions()
    if num_workers is not None:
        keywords = {"buffer_size": options.pop("buffer_size", None)}
        if "worker_concurrency" in options:
            keywords["worker_concurrency"] = options.pop("worker_concurrency")
        workers = MpDistSamplingWorkerOptions(num_workers=num_workers, **keywords)
    return DistNeighborLoader(
        DistDataset().load(root, 0, also_serve=range(1, num_parts)),
        FANOUTS,
        seeds_of_rank(0),
        batch_size=16,
        with_edge=True,
        collect_features=True,
        worker_options=workers,
        **options,
    )


# Resources ------------------------------------------------------------------------------------


def khop_processes():
    """Return the process ids of this process's children that run a program of khop."""
    pids = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            pids += map(int, (task / "children").read_text().split())
    return sorted(pid for pid in pids if b"khop.distributed" in _command_line(pid))


def _command_line(pid):
    """Return the command line of a child. Empty if it has ended."""
    while True:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return b""
        if command or state == "Z":
            return command
        time.sleep(0.001)  # It has none for a moment while its program is being loaded.


def pids_of(loader):
    """Return the process ids of a loader's samplers."""
    return [worker.pid for worker in loader.workers]


def publish(path, text):
    """Write a file that others wait for: it appears with all of its text."""
    unfinished = path.with_name(path.name + ".new")
    unfinished.write_text(text)
    unfinished.rename(path)


def wait_for_ends(pids, seconds=5.0):
    """Wait until processes have ended. Return the ones that still run after `seconds`."""
    end = time.monotonic() + seconds
    while (alive := [p for p in pids if _is_alive(p)]) and time.monotonic() < end:
        time.sleep(0.05)
    return alive


def _is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def resources():
    """Return sets of khop's children, memfds (descriptors and mappings) and socket folders."""
    memory = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if "memfd:khop" in str(descriptor.readlink()):
                memory.add((descriptor.name, descriptor.stat().st_ino))
    maps = Path("/proc/self/maps").read_text().splitlines()
    memory.update(line for line in maps if "memfd:khop" in line)
    sockets = {p.name for p in Path(tempfile.gettempdir()).glob("khop-*")}
    return set(khop_processes()), memory, sockets


def wait_for_end_of_resources(before, seconds=5.0):
    """Wait until no resource is left that was not in `before`, or the time is over.

    Returns:
        Children, the number of memfds, and socket folders that are left. Garbage is collected
        if any are left, as it may hold them. In a process of many tests this takes 0.1 s.
    """
    end = time.monotonic() + seconds
    while any(new := _beyond(before)) and time.monotonic() < end:
        gc.collect()
        if not any(new := _beyond(before)):
            break
        time.sleep(0.05)
    return new[0], len(new[1]), new[2]


def _beyond(before):
    return [now - then for now, then in zip(resources(), before, strict=True)]


# Running trainers -----------------------------------------------------------------------------


def free_port():
    """Return a port of the loopback interface that no process uses.

    A process that starts first takes it seconds later. So it is none that the system gives away
    meanwhile (these begin at 32768), and none that tests beside this one look for.
    """
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    own = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = secrets.randbelow(10_000 // count) * count + own + 20_000
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def variables_of_torchrun(rank, world_size, master, port):
    """Return the environment variables that torchrun sets for a rank."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": master,
        "MASTER_PORT": str(port),
    }


def start_trainers(
    job,
    arguments,
    world_size,
    prefixes=None,
    master="127.0.0.1",
    port=None,
    program="support.cluster.jobs",
    variables=variables_of_torchrun,
):
    """Start one process of the module `program` per rank. prefixes[rank] precedes its command."""
    port = port or free_port()
    trainers = []
    for rank in range(world_size):
        told = variables(rank, world_size, master, port)
        command = processes.command(program, job, json.dumps(arguments))
        prefix = prefixes[rank] if prefixes else []
        trainers.append(
            subprocess.Popen(
                [*prefix, *command],
                env=processes.environment(**told, OMP_NUM_THREADS="1"),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return trainers


def finish_trainers(trainers, seconds=150.0, silent=False):
    """Wait for trainers to end. Return what each printed, from JSON.

    AssertionError with its output if one failed, and with `silent` if it wrote to standard error.
    """
    end = time.monotonic() + seconds
    outputs = []
    for process in trainers:
        try:
            outputs.append(process.communicate(timeout=max(0.1, end - time.monotonic())))
        except subprocess.TimeoutExpired:
            for other in trainers:
                other.kill()
            outputs.append(process.communicate())
            raise AssertionError(f"a trainer hangs:\n{outputs[-1]}") from None
    for process, (out, err) in zip(trainers, outputs, strict=True):
        assert process.returncode == 0, f"exit status {process.returncode}\n{out}\n{err}"
        assert not (silent and err), f"nothing is to be seen of a job that goes well, but:\n{err}"
    return [json.loads(out.strip().splitlines()[-1]) for out, _ in outputs]


def run(names):
    """Run the job that the command line names, and print its result as JSON."""
    gc.freeze()  # What is imported: to take PyTorch apart in the end takes more than a second.
    print(json.dumps(names[f"job_{sys.argv[1]}"](json.loads(sys.argv[2]))))


# Jobs -----------------------------------------------------------------------------------------


def _load(arguments):
    from khop.distributed import (
        CollocatedDistSamplingWorkerOptions,
        DistDataset,
        MpDistSamplingWorkerOptions,
        init_worker_group,
    )

    context = init_worker_group()
    homes = arguments["homes"]
    also = arguments.get("also_serve", {}).get(str(context.rank), [])
    dataset = DistDataset().load(
        arguments["root"], partition_idx=homes[context.rank], also_serve=also
    )
    workers = arguments.get("num_workers")
    if workers is None:
        return context, dataset, CollocatedDistSamplingWorkerOptions()
    return context, dataset, MpDistSamplingWorkerOptions(num_workers=workers)


def job_compare(arguments):
    """Check two epochs against the in-memory loader with this rank's stream."""
    from khop.distributed import DistNeighborLoader
    from khop.loader import NeighborLoader

    context, dataset, options = _load(arguments)
    seeds = seeds_of_rank(context.rank)
    common = {"batch_size": BATCH_SIZE, "shuffle": True, "seed": 3}
    loader = DistNeighborLoader(
        dataset,
        FANOUTS,
        seeds,
        with_edge=True,
        collect_features=True,
        worker_options=options,
        **common,
    )
    reference = NeighborLoader(make_graph(), FANOUTS, seeds, stream=context.rank, **common)
    counts = [same_batches(loader, reference) for _ in range(2)]
    return {"batches": counts, "rows": loader.stats().rows}


def job_compare_all(arguments):
    """Run `job_compare` for each of several cases."""
    return [job_compare(case) for case in arguments["cases"]]


def job_stores(arguments):
    """Read batches of PyG's NodeLoader over the dataset as stores, and whole attributes.

    Each rank has a folder with only its own part.
    """
    from torch_geometric.loader import NodeLoader

    from khop.distributed import PartitionSampler
    from khop.sampler import NeighborSampler

    rank = int(os.environ["RANK"])
    _, dataset, _ = _load({**arguments, "root": arguments["roots"][rank]})
    graph, seeds = make_graph(), seeds_of_rank(rank)
    common = {"input_nodes": seeds, "batch_size": BATCH_SIZE}
    sampler = PartitionSampler(dataset, FANOUTS, seed=3)
    ours = NodeLoader((dataset, dataset), sampler, **common)
    reference = NodeLoader(graph, NeighborSampler(graph, FANOUTS, seed=3, stream=rank), **common)
    batches = same_batches(ours, reference)
    for name in ("x", "half", "brain", "y", "train_mask"):
        assert torch.equal(dataset.get_tensor(None, name, None), graph[name]), name
    assert torch.equal(dataset.get_tensor((None, None), "edge_attr", None), graph.edge_attr)
    some = torch.tensor([2999, 0, 7, 7])
    assert torch.equal(dataset.get_tensor((None, None), "edge_attr", some), graph.edge_attr[some])
    assert torch.equal(torch.stack(dataset.get_edge_index(None, "coo")), graph.edge_index)
    return {"batches": batches}


def job_split(arguments):
    """Return a trainer's share of the training nodes, and batches for unequal numbers of seeds."""
    from khop.distributed import DistNeighborLoader, node_split

    context, dataset, options = _load(arguments)
    mask = make_graph().train_mask
    share = node_split(mask)
    assert torch.equal(share, node_split("train_mask"))
    local = torch.isin(share, dataset.local_nodes()).sum().item()
    few = share[: 40 + 25 * context.rank]  # 2 batches on rank 0, 3 on rank 1
    loader = DistNeighborLoader(dataset, [3], few, batch_size=BATCH_SIZE, worker_options=options)
    seen = [batch.n_id[: batch.batch_size] for batch in loader]
    assert torch.equal(torch.cat(seen), few)
    dropping = DistNeighborLoader(
        dataset, [3], few, batch_size=BATCH_SIZE, drop_last=True, worker_options=options
    )
    sizes = [batch.batch_size for batch in dropping]
    return {"share": share.tolist(), "local": local, "batches": len(seen), "dropping": sizes}


def job_early(arguments):
    """Let rank 0 leave after one batch of each loader, while rank 1 needs its server long after."""
    from khop.distributed import DistNeighborLoader

    loaders = []
    for num_workers in arguments["num_workers"]:
        context, dataset, options = _load({**arguments, "num_workers": num_workers})
        common = {"worker_options": options, "collect_features": True, "seed": 1}
        loaders.append(DistNeighborLoader(dataset, [4], None, batch_size=100, **common))
    if context.rank == 0:
        return {"batches": [len([next(iter(loader))]) for loader in loaders]}
    time.sleep(2)
    batches = [sum(1 for _ in loader) for loader in loaders]
    return {"batches": batches, "remote": [loader.stats().rows["remote"] for loader in loaders]}


def job_trace(arguments):
    """Record a trace of an epoch."""
    import khop
    from khop.distributed import DistNeighborLoader

    _, dataset, options = _load(arguments)
    loader = DistNeighborLoader(
        dataset, [4, 4], None, batch_size=50, worker_options=options, collect_features=True, seed=1
    )
    with khop.trace.record(arguments["path"]) as recording:
        batches = sum(1 for _ in loader)
    return {"batches": batches, "path": str(recording.path)}


def job_slow(arguments):
    """Report the start, then iterate slowly. Print the error that ends it, and its time."""
    from khop.distributed import DistNeighborLoader

    context, dataset, options = _load(arguments)
    options.timeout = 180
    loader = DistNeighborLoader(
        dataset, [4, 4], None, batch_size=4, worker_options=options, collect_features=True, seed=1
    )
    children = khop_processes()
    publish(Path(arguments["ready"] + f".{context.rank}"), json.dumps(children))
    last = time.monotonic()
    try:
        while True:
            for _ in loader:
                time.sleep(0.01)
                last = time.monotonic()
    except Exception as error:
        return {
            "error": type(error).__name__,
            "message": str(error),
            "after": time.monotonic() - last,
        }


if __name__ == "__main__":
    run(globals())
