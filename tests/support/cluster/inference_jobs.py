"""Graphs, models and trainers' programs for tests of layer-wise inference.

python -m support.cluster.inference_jobs NAME ARGUMENTS      runs a job, see `cluster.jobs`
"""

import os
import signal
import time
from pathlib import Path

import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import (
    GAT,
    GIN,
    PNA,
    EdgeCNN,
    GATConv,
    GraphSAGE,
    HeteroConv,
    RGCNConv,
    SAGEConv,
)

from support.cluster import jobs

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
PAPERS, AUTHORS, VENUES = 90, 60, 3


def make_graph(num_nodes=300, num_edges=1500):
    """Return a random graph with loops and repeated edges. Node 0 and the last ten are isolated."""
    generator = torch.Generator().manual_seed(5)
    edge_index = torch.randint(1, num_nodes - 10, (2, num_edges), generator=generator)
    edge_index[:, -40:] = edge_index[:, :40]
    return Data(
        x=torch.randn(num_nodes, 6, generator=generator),
        edge_index=edge_index,
        edge_attr=torch.randn(num_edges, 2, generator=generator),
        edge_type=torch.randint(3, (num_edges,), generator=generator),
        num_nodes=num_nodes,
    )


def make_hetero():
    """Return a heterogeneous graph with few venues, an edge type without edges, isolated nodes.

    There are fewer venues than parts, and they have no features.
    """
    generator = torch.Generator().manual_seed(6)
    sizes = {"paper": PAPERS, "author": AUTHORS, "venue": VENUES}
    data = HeteroData()
    data["paper"].x = torch.randn(PAPERS, 6, generator=generator)
    data["author"].x = torch.randn(AUTHORS, 4, generator=generator).to(torch.float16)
    data["venue"].num_nodes = VENUES
    for src, relation, dst, count in (
        ("author", "writes", "paper", 300),
        ("paper", "rev_writes", "author", 300),
        ("paper", "cites", "paper", 200),
        ("venue", "prints", "paper", 90),
        ("paper", "rev_prints", "venue", 90),
        ("author", "never", "venue", 0),
    ):
        ends = [
            torch.randint(max(1, sizes[t] - 2), (count,), generator=generator) for t in (src, dst)
        ]
        data[src, relation, dst].edge_index = torch.stack(ends)
    return data


class HeteroLayer(torch.nn.Module):
    """Layer with GraphSAGE along some edge types, attention along others, and an activation."""

    def __init__(self, edge_types, width):
        super().__init__()
        self.conv = HeteroConv({
            t: GATConv((-1, -1), width, add_self_loops=False)
            if t[1] in ("writes", "never")
            else SAGEConv((-1, -1), width)
            for t in edge_types
        })  # fmt: skip

    def forward(self, x, edges):
        x = {name: rows.float() for name, rows in x.items()}
        return {name: rows.relu() for name, rows in self.conv(x, edges).items()}


class Case:
    """A model, its arguments of `layerwise_inference`, and its output for the whole graph."""

    def __init__(self, kind):
        torch.manual_seed(1)
        self.options = {"batch_size": 40, "max_edges": 150}
        if kind == "hetero":
            self._hetero()
            return
        graph = make_graph()
        with torch.no_grad():
            if kind == "rgcn":
                self.model = [RGCNConv(6, 8, 3).eval(), RGCNConv(8, 4, 3).eval()]
                self.options["edge_attrs"] = ["edge_type"]
                hidden = self.model[0](graph.x, graph.edge_index, graph.edge_type)
                output = self.model[1](hidden, graph.edge_index, graph.edge_type)
            elif kind == "edge_attrs":
                convs = [GATConv(6, 8, edge_dim=2).eval(), GATConv(8, 4, edge_dim=2).eval()]
                self.model = [lambda x, e, a, conv=conv: conv(x, e, a).tanh() for conv in convs]
                self.options["edge_attrs"] = ["edge_attr"]
                output = graph.x
                for conv in convs:
                    output = conv(output, graph.edge_index, graph.edge_attr).tanh()
            else:
                kinds = {"sage": GraphSAGE, "gat": GAT, "gin": GIN, "edge": EdgeCNN, "pna": PNA}
                more = {}
                if kind == "pna":
                    more = {"aggregators": ["sum", "max"], "scalers": ["identity"]}
                    more["deg"] = torch.ones(9, dtype=torch.long)
                self.model = kinds[kind](6, 16, num_layers=3, out_channels=4, **more).eval()
                output = self.model(graph.x, graph.edge_index)
        self.expected = {"node": output}

    def _hetero(self):
        graph = make_hetero()
        embedding = torch.nn.Embedding(VENUES, 5)
        self.model = [HeteroLayer(graph.edge_types, 8).eval() for _ in range(2)]
        self.options["x"] = {"paper": "x", "author": "x", "venue": embedding}
        with torch.no_grad():
            x = {**graph.x_dict, "venue": embedding.weight}
            for layer in self.model:  # also decides on the lazy layers' widths
                x = layer(x, graph.edge_index_dict)
        self.expected = x


def same_outputs(outputs, expected):
    """Check outputs by original id: of all nodes, of some, and of this trainer's own nodes.

    Returns {node type: ids of the trainer's own nodes}.
    """
    assert set(outputs) == set(expected)
    own = {}
    for node_type, rows in expected.items():
        ours = outputs[node_type]
        assert ours.shape == rows.shape and ours.dtype == rows.dtype
        torch.testing.assert_close(ours.gather_all(), rows, **CLOSE)
        ids = torch.tensor([2, 0, 2, 1])
        torch.testing.assert_close(ours[ids], rows[ids], **CLOSE)
        torch.testing.assert_close(ours.local, rows[ours.local_ids], **CLOSE)
        own[node_type] = ours.local_ids.tolist()
    return own


def leftovers(root):
    """Return the files in an output folder that are neither complete outputs nor their folders."""
    # Unlike `rglob`, `os.walk` passes over folders that another trainer removes meanwhile.
    return sorted(
        name
        for _, _, names in os.walk(root)
        for name in names
        if Path(name).suffix != ".npy" or name.startswith(".")
    )


# Jobs -----------------------------------------------------------------------------------------


def _load(case, rank):
    from khop.distributed import DistDataset

    root = case["root"] if isinstance(case["root"], str) else case["root"][rank]
    also = case.get("also_serve", {}).get(str(rank), [])
    return DistDataset().load(root, case["homes"][rank], also_serve=also)


def job_equal(arguments):
    """Check that each case equals the whole graph's forward pass. Return the trainer's nodes."""
    from khop.distributed import init_worker_group, layerwise_inference

    context = init_worker_group()
    computed = []
    for case in arguments["cases"]:
        wanted = Case(case["kind"])
        output_dir = case["output"] + (f"-{context.rank}" if case.get("apart") else "")
        outputs = layerwise_inference(
            _load(case, context.rank), wanted.model, output_dir, **wanted.options
        )
        computed.append(same_outputs(outputs, wanted.expected))
        assert leftovers(output_dir) == []
        if case.get("close"):
            outputs.close()
    return {"computed": computed}


def job_servers_die(arguments):
    """Run inference while servers of rows and outputs are killed in each layer and at the end."""
    from khop.distributed import init_worker_group, layerwise_inference
    from support.cluster import jobs

    context = init_worker_group()
    wanted, killed = Case("rgcn"), set()

    def kill():
        # The server of rows and that of outputs, when both are there again.
        while len(alive := set(jobs.khop_processes()) - killed) < 2:
            time.sleep(0.01)
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
        killed.update(alive)

    def struck(layer):
        calls = []

        def compute(*inputs):
            calls.append(1)
            if len(calls) == 2:
                kill()
            return layer(*inputs)

        return compute

    outputs = layerwise_inference(
        _load(arguments, context.rank),
        list(map(struck, wanted.model)),
        arguments["output"] + f"-{context.rank}",
        **wanted.options,
    )
    kill()
    computed = same_outputs(outputs, wanted.expected)
    outputs.close()
    return {"computed": [computed], "killed": len(killed)}


def job_failing(arguments):
    """Let trainer 1 fail in its last layer, be stopped, be killed. Return trainer 0's errors.

    Trainer 0 lets the stopped trainer continue once it has given it up.
    """
    from khop.distributed import init_worker_group, layerwise_inference

    context = init_worker_group()
    context.members.publish("pid", os.getpid())
    pids = context.members.wait_for("pid", [0, 1], "publish its process")
    data = _load(arguments, context.rank)
    seen, entered = [], []  # entered: a trainer may hear of the failure before its own last layer

    def last(x, edge_index):
        entered.append(time.monotonic())
        if context.rank == 1 and len(seen) == 0:
            raise ArithmeticError("no good")
        if context.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP if len(seen) == 1 else signal.SIGKILL)
        return x

    for i in range(3):
        entered.append(time.monotonic())
        try:
            layerwise_inference(data, [lambda x, e: x, last], f"{arguments['output']}-{i}")
        except Exception as error:
            seen.append([type(error).__name__, str(error), time.monotonic() - entered[-1]])
        if i == 1 and context.rank == 0:
            os.kill(pids[1], signal.SIGCONT)
            time.sleep(1.0)  # else it hears of the next failure at once
        if i == 1 and context.rank == 1:
            context.members.publish("seen", seen[-1])
        context.members.lease = context.members.timeout = arguments["lease"]
    seen.append(context.members.wait_for("seen", [1], "go on")[1])
    return {"seen": seen, "leftovers": leftovers(Path(arguments["output"]).parent)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    jobs.run(globals())
