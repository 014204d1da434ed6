"""A trainer that prints where Linux has put it and its children, and a digest of its batches.

python -m support.cluster.placed FOLDER [PLACEMENT]
"""

import json
import re
import sys
from collections import Counter
from pathlib import Path

import torch

from khop.distributed import (
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    init_worker_group,
)
from khop.distributed.loaders import placing
from support.cluster import jobs
from support.cluster.launched import digest

OPTIONS = {
    "num_neighbors": [4, 4],
    "input_nodes": torch.arange(200),
    "batch_size": 20,
    "seed": 3,
}


def where(pid):
    """Return the cores and the memory policy of a process, as Linux reports them."""
    with Path(f"/proc/{pid}/status").open() as status:
        cores = next(line.split()[1] for line in status if line.startswith("Cpus_allowed_list"))
    with Path(f"/proc/{pid}/numa_maps").open() as maps:
        return [cores, maps.readline().split()[1]]


def pages(pid, text):
    """Return {node: pages} of the mappings of a process whose line has `text`."""
    counts = Counter()
    with Path(f"/proc/{pid}/numa_maps").open() as maps:
        for line in maps:
            if text in line:
                counts.update({n: int(count) for n, count in re.findall(r" N(\d+)=(\d+)", line)})
    return dict(counts)


def ring_policies(pid):
    """Return the memory policies of the arenas that a process has mapped."""
    with Path(f"/proc/{pid}/numa_maps").open() as maps:
        return sorted({line.split()[1] for line in maps if "memfd:khop-ring" in line})


def main(folder, placement=None):
    context = init_worker_group()
    dataset = DistDataset().load(folder, context.rank % 2)
    options = MpDistSamplingWorkerOptions(num_workers=2)
    loader = DistNeighborLoader(dataset, worker_options=options, placement=placement, **OPTIONS)
    made, samplers = digest(loader), [worker.pid for worker in loader.workers]
    servers = [pid for pid in jobs.khop_processes() if pid not in samplers]
    found = {
        "digest": made,
        "trainer": where("self"),
        "threads": torch.get_num_threads(),
        "samplers": [where(pid) for pid in samplers],
        "servers": [where(pid) for pid in servers],
        "rings": ring_policies("self"),
        "pages": {
            "arenas": pages("self", "memfd:khop-ring"),
            "trainer": pages("self", "anon="),
            "samplers": [pages(pid, "anon=") for pid in samplers],
        },
        "stats": loader.stats().placement,
        "position": placing._position(dataset),
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
