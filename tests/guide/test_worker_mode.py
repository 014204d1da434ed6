"""Sections 2.1 and 4.1: four trainers on two machines' partitions, under DDP."""

import math

import pytest
import torch

from guide import products
from support.cluster import jobs


@pytest.mark.timeout(400)
def test_worker_mode(parts, tmp_path):
    """Contexts, batches and training of all trainers; in `job.py` each checks its own."""
    data = parts["data"]
    graph = {"x": data.x, "y": data.y.view(-1), "edge_index": data.edge_index}
    torch.save(graph, tmp_path / "graph.pt")
    arguments = {"root": parts["root_dir"], "graph": str(tmp_path / "graph.pt")}
    done = jobs.finish_trainers(
        jobs.start_trainers("worker", arguments, 4, program="guide.job"), 360
    )
    for rank, trainer in enumerate(done):
        assert trainer["role"] == "WORKER"
        assert trainer["context"] == {
            "dist_ctx.world_size": 4,
            "dist_ctx.rank": rank,
            "dist_ctx.group_name": "distributed-trainer",
            "dist_ctx.worker_name": f"distributed-trainer_{rank}",
        }
        assert trainer["batches"] == math.ceil(products.NUM_TRAIN / 4 / 1024)
        assert trainer["weights"] == done[0]["weights"]
        assert trainer["loss"] < math.log(products.NUM_CLASSES) / 2
    seeds = sorted(seed for trainer in done for seed in trainer["seeds"])
    assert seeds == sorted(parts["split_idx"]["train"].tolist())
