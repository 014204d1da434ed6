"""Every command with every option and choice that its parser has, run on small graphs.

`RUNS` is both what runs and what is compared with the parsers, so that an option without a run
fails here.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import urllib.request

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import khop
from khop.cli.main import COMMANDS, main, parser_of_all
from khop.partition import PartitionFolder, to_distdgl
from support import launching, ray_cluster
from support.cluster import jobs
from support.formats import ogb_saved
from support.formats.folders import earlier_folders
from support.versions import reading_torch_files

# {out} is a path that does not exist yet; the others are those of fixture `root`.
RUNS = [
    "partition ring {out} --num-parts 2 --method random --edge-dir in --seed 3 --debug --json "
    "--time-attr edge_time --weight-attr edge_weight --neighbor-ids --undirected",
    "partition types.pt {out} --num-parts 2 --method frequency --edge-dir out --fanout 2,-1 "
    "--batch-size 4 --cache-ratio 0.5 --cache-budget 1MB --seed-type b --quiet",
    "partition ring old --num-parts 2 --overwrite --quiet",
    "partition ring {out} --num-parts 2 --method stream --balance nodes,edges --slack 0.1 "
    "--passes 2",
    "partition ring {out} --num-parts 2 --assignment owners",
    "partition ring {out} --num-parts 2 --memory 1MB --tmp . --jobs 2 --clean",
    "partition ring {out} --num-parts 2 --method frequency --base stream",
    *(
        f"partition ring {{out}} --num-parts 2 --order {order} --cluster-ids --clusters 5"
        for order in ("original", "hotness", "cluster", "degree")
    ),
    "partition ring {out} --num-parts 2 --no-edge-ids",
    "partition ring {out} --num-parts 2 --plan",
    "partition ring {out} --num-parts 2 --feature-dtype x=int8 --deliver float32",
    "partition ring {out} --num-parts 2 --feature-dtype node.x=float16 --deliver stored",
    "partition circle:12 {out} --num-parts 2 --layout own_plugins:Circle "
    "--method own_plugins:Stripes --option width=3",
    "repartition parts {out} --num-parts 2 --method own_plugins:Stripes --option width=3",
    "repartition parts {out} --num-parts 3 --json --debug --no-edge-ids",
    "repartition parts {out} --num-parts 3 --plan --memory 1GB",
    "repartition parts {out} --num-parts 3 --feature-dtype edge_weight=int8 --deliver float32",
    "repartition parts {out} --num-parts 3 --feature-dtype edge_weight=bfloat16 --deliver stored",
    "repartition parts {out} --num-parts 3 --memory 1GB --tmp . --jobs 2 --clean --quiet",
    "repartition parts {out} --num-parts 2 --method random --edge-dir in --seed 3 --quiet "
    "--weight-attr edge_weight --neighbor-ids --order hotness",
    "repartition parts {out} --num-parts 2 --method frequency --edge-dir out --fanout 2,-1 "
    "--batch-size 4 --cache-ratio 0.5 --cache-budget 1MB --seed-type node --base stream "
    "--order original",
    "repartition parts old --num-parts 2 --method stream --balance nodes,edges --slack 0.1 "
    "--passes 2 --order degree --overwrite --time-attr edge_time",
    "repartition parts {out} --num-parts 2 --assignment owners --order cluster --cluster-ids "
    "--clusters 5",
    "propagate ring_parts --attr x --out a --hops 2 --norm sym --self-loops --every-hop --debug",
    "propagate ring_parts --attr x --out b --norm row --weight edge_weight --memory 1MB --tmp . "
    "--jobs 2 --clean --json",
    *(
        f"propagate ring_parts --attr x --out {reduce} --reduce {reduce} --quiet "
        "--edge-type 'node to node'"
        for reduce in ("sum", "mean", "min", "max")
    ),
    "pack ring_parts {out} --seed 1 --attr x --debug",
    "pack ring_parts {out} --seed 1 --attr x --epochs 2 --fanout 2,-1 --batch-size 4 --in-order "
    "--split train_mask --seed-type node --drop-last --replace --no-edges --hot-memory 1MB "
    "--memory 1MB --max-bytes 1MB --plan --json",
    "pack ring_parts packed --seed 1 --attr x --overwrite --quiet",
    "convert parts {out} --to distdgl --graph-name ring --debug",
    "convert parts {out} --quiet",
    "convert parts {out} --feature-dtype edge_weight=float8 --deliver float32 --quiet",
    "convert parts {out} --feature-dtype edge_weight=float16 --deliver stored",
    "convert dgl/ring.json {out} --to khop --time-attr edge_time --weight-attr edge_weight "
    "--neighbor-ids",
    "convert dgl old --overwrite --quiet",
    "convert versions/version-1 {out} --overwrite --to khop --jobs 2",
    "convert versions/version-2 --in-place",
    "inspect parts --json --debug --report --fanout 2 --batch-size 4 --batches 2 --seed-type node",
    "inspect parts --report --cache-memory 1MB",
    "partition ring - --num-parts 2 --compare random,stream --sample 30 --fanout 2 --batch-size 4",
    "verify parts --json --debug --jobs 2 --tmp .",
    "keygen {out} --clients 2 --json --debug",
    "keygen keys --add guest --json",
    "keygen keys --revoke gone",
    "doctor --json --debug",
    "doctor parts --json",
]
OGB_RUN = "partition ogb:ogbn-tiny {out} --num-parts 2 --root {root} --quiet"
METIS_RUNS = [
    "partition ring {out} --num-parts 2 --method metis",
    "partition ring {out} --num-parts 2 --method cluster-metis --clusters 8",
    "partition ring {out} --num-parts 2 --method frequency --base metis",
    "partition ring {out} --num-parts 2 --method frequency --base cluster-metis",
    "repartition parts {out} --num-parts 2 --method metis",
    "repartition parts {out} --num-parts 2 --method cluster-metis --clusters 8 --cluster-ids",
    "repartition parts {out} --num-parts 2 --method frequency --base metis",
    "repartition parts {out} --num-parts 2 --method frequency --base cluster-metis",
]
RAY_RUNS = [
    "partition ring {out} --num-parts 2 --on ray --ray {address} --memory 1MB --jobs 2 --json",
    "repartition parts {out} --num-parts 3 --on ray --ray {address} --overwrite",
]
PLOT_RUN = "inspect parts --plot {out}.svg"
COMPARE_RUN = "partition ring {out}.svg --num-parts 2 --compare random,frequency --cache-ratio 0.1"
COMPLETION_RUNS = [f"completion {shell} --debug" for shell in ("bash", "zsh", "tcsh")]
SERVE_RUNS = [
    "serve parts --rank 0 --num-servers 1 --num-clients 0 --master 127.0.0.1:{port} --part 0 "
    "--part 1 --lease 60 --host 127.0.0.1 --port {port} --key-file keys/server.key --labels y.npy "
    "--buffer-limit 1GB --cache-limit 1GB --metrics-port {page} --methods own_methods --debug "
    "--tensor-limit 1GB --job-tensor-limit 100MB",
    "serve parts --master 127.0.0.1:{port} --insecure",
]
OWN_METHODS = """from dataclasses import dataclass
from khop.sampler import SaintWalks, register

@register
@dataclass(frozen=True)
class Fewest(SaintWalks):
    '''Walks of one step.'''
"""
OWN_PLUGINS = """import numpy as np
from khop.partition import GraphSource, PartitionerBase
from khop.sources import Source

class Circle(Source):
    def matches(self, spec):
        return spec.startswith("circle:")

    def read(self, spec, scratch, root):
        nodes = np.arange(int(spec.partition(":")[2]))
        return GraphSource.from_arrays(len(nodes), [nodes, np.roll(nodes, 1)])

class Stripes(PartitionerBase):
    def _configure(self, width):
        self.width = width

    def assign_nodes(self, node_type):
        return np.arange(self.source.nodes[node_type].count) // self.width % self.num_parts
"""
RUN_RUNS = [
    "run --local 2 --env OWN=1 --placement none --workdir . --grace 1 --lease 60 --log-dir {out} "
    "--interface lo --master-addr 127.0.0.1 --parts parts --debug -- own_plugins.py",
    "run --hosts n[01-02]:2,m --trainers-per-host 3 --python 'conda run python' --rsh 'ssh -p 22' "
    "--dry-run -- train.py",
    "run --hostfile hosts --dry-run -- train.py",
    "run --servers a,b --clients c:2 --parts parts --dry-run -- train.py",
    "run --slurm --dry-run -- train.py",
]
STEP = {
    **{"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"},
    **{"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NUM_NODES": "1"},
}
DISTRIBUTE_RUNS = [
    "distribute parts --hosts localhost --to {out} --copies 1 --jobs 2 --lease 60 --json --debug "
    f"--python {sys.executable}",
    "distribute parts --hostfile hosts --rsh 'ssh -p 22' --dry-run --quiet",
]
TOP_RUN = "top 127.0.0.1:{port} --key-file keys/client.key --interval 0.1 --once --json --debug"
INSECURE_TOP_RUN = "top 127.0.0.1:{port} --insecure --interval 0.1 --once --json"
ALL_RUNS = [
    *RUNS,
    *METIS_RUNS,
    *RAY_RUNS,
    OGB_RUN,
    PLOT_RUN,
    *COMPLETION_RUNS,
    *SERVE_RUNS,
    *RUN_RUNS,
    *DISTRIBUTE_RUNS,
    TOP_RUN,
    INSECURE_TOP_RUN,
]


def parsers():
    """{command: its parser}."""
    (commands,) = (a for a in parser_of_all()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(commands.choices)


def words_of_parser(parser):
    """Options of a parser, and options (or positional arguments) with each of their choices."""
    words = set()
    for action in parser._actions:
        name = action.option_strings[-1] if action.option_strings else action.dest
        if isinstance(action, argparse._HelpAction):
            continue
        if action.choices:
            words |= {(name, choice) for choice in action.choices}
        elif action.option_strings:
            words.add((name,))
    return words


def words_of_run(parser, words):
    """Those of `words_of_parser` that a command line has."""
    found = set()
    for action in parser._actions:
        if not action.option_strings:
            found |= {(action.dest, word) for word in words if word in (action.choices or ())}
        elif action.option_strings[-1] in words:
            name = action.option_strings[-1]
            after = words[words.index(name) + 1 :]
            found.add((name, after[0]) if action.choices else (name,))
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_run(name):
    parser = parsers()[name]
    run = set()
    for words in map(shlex.split, ALL_RUNS):
        if words[0] == name:
            run |= words_of_run(parser, words[1:])
    left_out = words_of_parser(parser) - run
    assert not left_out, f"add runs of `khop {name}` with {sorted(left_out)} to this file"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with two graphs, partition folders, keys and labels."""
    root = tmp_path_factory.mktemp("options")
    ids = np.arange(40)
    (root / "ring").mkdir()
    edges = np.stack([ids, (ids + 1) % 40])
    np.save(root / "ring" / "edge_index.npy", edges)
    np.save(root / "ring" / "x.npy", ids[:, None].astype(np.float32))
    np.save(root / "ring" / "edge_time.npy", ids % 7)
    np.save(root / "ring" / "edge_weight.npy", ids / 40)
    np.save(root / "y.npy", ids)
    (root / "own_methods.py").write_text(OWN_METHODS)
    (root / "own_plugins.py").write_text(OWN_PLUGINS)
    (root / "owners").mkdir()
    np.save(root / "owners" / "node.npy", ids % 2)
    data = HeteroData()
    data["a"].num_nodes = data["b"].num_nodes = 40
    data["a", "to", "b"].edge_index = data["b", "of", "a"].edge_index = torch.from_numpy(edges)
    torch.save(data, root / "types.pt")
    for name in ("parts", "old"):
        ring = Data(edge_index=torch.from_numpy(edges), num_nodes=40)
        ring.edge_weight, ring.edge_time = torch.ones(40), torch.arange(40)
        khop.partition_graph(ring, root / name, 2)
    ring.x, ring.train_mask = torch.ones(40, 2), torch.arange(40) < 9
    khop.partition_graph(ring, root / "ring_parts", 2)
    packed = ["pack", str(root / "ring_parts"), str(root / "packed"), "--seed", "1", "--attr", "x"]
    assert main(packed) == 0
    to_distdgl(root / "parts", root / "dgl", graph_name="ring")
    earlier_folders(root / "versions")
    for options in ([], ["--add", "gone"]):
        assert main(["keygen", str(root / "keys"), *options]) == 0
    return root


@pytest.fixture
def run(root, tmp_path, monkeypatch, capfd):
    """Returns run(line, **names): runs a command here, and returns what it printed."""
    monkeypatch.chdir(root)
    handler = signal.getsignal(signal.SIGTERM)

    def run(line, **names):
        capfd.readouterr()
        words = shlex.split(line.format(out=tmp_path / "out", **names))
        assert main(words) == 0
        assert signal.getsignal(signal.SIGTERM) is handler
        printed = capfd.readouterr()
        assert printed.err == "", words  # no terminal: no progress bar
        if "--json" in words:
            assert isinstance(json.loads(printed.out), dict)
        return printed.out

    return run


@pytest.mark.parametrize(
    "line", [pytest.param(r, marks=reading_torch_files if ".pt " in r else ()) for r in RUNS]
)
def test_runs(run, line):
    assert (run(line) == "") == ("--quiet" in line)


@pytest.mark.process
@pytest.mark.parametrize("line", METIS_RUNS)
def test_metis(run, line):
    pytest.importorskip("pymetis")
    assert run(line)


def test_ray(run):
    with ray_cluster.started():
        for line in RAY_RUNS:
            assert run(line, address=os.environ["RAY_ADDRESS"])


def test_what_options_of_partition_do(run, tmp_path):
    """All that is asked for is in the folder."""
    run(RUNS[0])
    meta = PartitionFolder(tmp_path / "out").meta
    (edges,) = meta.edge_types
    assert (meta.num_parts, meta.edge_dir, edges.count, edges.neighbor_ids) == (2, "in", 80, True)
    assert (meta.time_attr.name, meta.weight_attr) == ("edge_time", "edge_weight")
    assert meta.method["seed"] == 3


@reading_torch_files
def test_an_ogb_data_set_below_a_root(run, tmp_path, monkeypatch):
    pytest.importorskip("ogb")
    graph = {
        "edge_index": np.array([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]]),
        "num_nodes": 6,
        "node_feat": np.eye(6, dtype=np.float32),
        "edge_feat": None,
    }
    saved = ogb_saved.save(
        tmp_path, "ogbn-tiny", graph, np.array([0, 1, 0, 1, 0, 1]), ogb_saved.thirds(6), 2
    )
    assert main(OGB_RUN.format(out=tmp_path / "out", root=saved).split()) == 0
    assert PartitionFolder(tmp_path / "out").meta.num_parts == 2


def test_a_picture(run, tmp_path):
    pytest.importorskip("matplotlib")
    assert f"{tmp_path}/out.svg" in run(PLOT_RUN)
    assert "<svg" in (tmp_path / "out.svg").read_text()
    assert "frequency" in run(COMPARE_RUN)
    assert "<svg" in (tmp_path / "out.svg").read_text()


@pytest.mark.parametrize("line", COMPLETION_RUNS)
def test_completion(run, line):
    pytest.importorskip("shtab")
    assert "num-parts" in run(line)


@pytest.mark.parametrize("line", RUN_RUNS)
def test_jobs(root, tmp_path, line):
    (root / "hosts").write_text("a slots=2\nb\n")
    step = STEP if "--slurm" in line else {}
    done = launching.run(*shlex.split(line.format(out=tmp_path))[1:], folder=root, **step)
    assert done.returncode == 0, done
    assert ("--dry-run" in line) == ("train.py" in done.stdout)


@pytest.mark.parametrize("line", DISTRIBUTE_RUNS)
def test_distribute(run, root, line):
    (root / "hosts").write_text("a slots=2\nb\n")
    shown = run(line)
    assert ("a " in shown) == ("--dry-run" in line)


@pytest.mark.parametrize("line", SERVE_RUNS)
def test_servers(run, root, line):
    """A server with everything, `khop top` of it, and one that needs no keys."""
    port, page = jobs.free_port(), jobs.free_port()
    words = shlex.split(line.format(port=port, page=page))
    code = f"import sys; sys.path[:] = {sys.path!r}; from khop.cli.main import main; main()"
    server = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout.readline() == f"serving at tcp://127.0.0.1:{port}\n"
        has_keys = "--key-file" in words
        for _ in range(10):  # a busy machine may take longer than `--once` waits
            shown = json.loads(run(TOP_RUN if has_keys else INSECURE_TOP_RUN, port=port))
            if shown["servers"]["0"]["picture"] is not None:
                break
        assert shown["servers"]["0"]["picture"]["parts"] == [0, 1]
        if has_keys:
            with urllib.request.urlopen(f"http://127.0.0.1:{page}/metrics", timeout=20) as got:
                assert b"khop_" in got.read()
    finally:
        server.terminate()
        _, errors = server.communicate(timeout=20)
    assert server.returncode == 0, errors


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_help(capsys, name):
    with pytest.raises(SystemExit) as ended:
        main([*([] if name is None else [name]), "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: khop {name or '[-h]'}")
