"""`khop partition | inspect | verify | doctor`, as a user runs them."""

from __future__ import annotations

import json
import os
import pickle

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

from khop.partition import PartitionFolder
from khop.typing import NODE
from support.formats.forging import forge
from support.versions import reading_torch_files


@pytest.fixture
def graph(tmp_path):
    """A ring of 40 nodes, half of them for training; read without torch, which takes seconds."""
    ids = np.arange(40)
    (tmp_path / "ring").mkdir()
    np.save(tmp_path / "ring" / "edge_index.npy", np.stack([ids, (ids + 1) % 40]))
    np.save(tmp_path / "ring" / "x.npy", ids[:, None].astype(np.float32))
    np.save(tmp_path / "ring" / "train_mask.npy", ids % 2 == 0)
    return "ring"


def test_partition_verify_inspect(program, graph, tmp_path):
    done = program("partition", graph, "out", "--num-parts", 4)
    assert done.returncode == 0, done.stderr
    assert "nodes           40; 10 to 10 per part (largest / mean = 1.000)" in done.stdout
    assert "neighbours drawn 'in'" in done.stdout
    assert "edge cut" in done.stdout
    assert "training seeds  20" in done.stdout
    verified = program("verify", "out")
    assert (verified.returncode, verified.stderr) == (0, "")
    assert "4 parts" in verified.stdout
    assert "all sound" in verified.stdout
    assert program("inspect", "out").stdout == done.stdout


def test_all_commands_print_json(command, graph, tmp_path):
    """What they print is one object, and says the same as their text."""
    summary = json.loads(command("partition", graph, "out", "--num-parts", 2, "--json").stdout)
    assert summary == json.loads(command("inspect", "out", "--json").stdout)
    assert summary["nodes"] == [20, 20]
    assert json.loads(command("verify", "out", "--json").stdout)["problems"] == []
    (tmp_path / "out" / "meta.json").write_text("{}")
    broken = command("verify", "out", "--json")
    assert broken.returncode == 1
    assert len(json.loads(broken.stdout)["problems"]) == 1
    keys = json.loads(command("keygen", "keys", "--clients", 2, "--json").stdout)
    assert [name.rpartition("/")[2] for name in keys["clients"]] == ["client-0.key", "client-1.key"]
    added = json.loads(command("keygen", "keys", "--add", "guest", "--json").stdout)
    assert added["clients"][0].endswith("guest.key")
    revoked = json.loads(command("keygen", "keys", "--revoke", "guest", "--json").stdout)
    assert revoked == {"revoked": "guest"}


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_all_commands_and_options(command, shell):
    pytest.importorskip("shtab")
    done = command("completion", shell)
    assert done.returncode == 0, done.stderr
    for word in ("partition", "doctor", "--num-parts", "--key-file"):
        assert word in done.stdout


def test_frequency(command, graph, tmp_path):
    done = command(
        *("partition", graph, "out", "--num-parts", 2, "--method", "frequency"),
        *("--fanout", "2,-1", "--batch-size", 8, "--cache-ratio", 0.1, "--cache-budget", "1MB"),
        *("--edge-dir", "out", "--undirected", "--seed", 3),
    )
    assert done.returncode == 0, done.stderr
    assert "local" in done.stdout
    found = json.loads(command("inspect", "out", "--json").stdout)
    assert found["edge_dir"] == "out"
    assert found["edges"] == [40, 40]
    assert found["train_seeds"] == [10, 10]
    assert found["cached"] == [4, 4]
    assert found["method"]["num_neighbors"] == [2, -1]
    assert found["method"]["batch_size"] == 8
    assert found["mean_shares"]["local"] > 0.6  # a ring falls into arcs
    assert found["edge_cut"] < 0.3
    assert found["node_balance"] == 1


def test_the_bundled_graph(command, tmp_path):
    done = command("partition", "debian", "out", "--num-parts", 2, "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    meta = PartitionFolder(tmp_path / "out").meta
    assert meta.node_type(NODE).count == 63666
    assert {"x", "y", "train_mask", "val_mask", "test_mask"} <= set(meta.node_type(NODE).attrs)
    assert "edge_kind" in meta.edge_types[0].attrs


def test_the_bundled_graph_with_its_types(command, tmp_path):
    arguments = ("--num-parts", 2, "--undirected", "--quiet")
    done = command("partition", "debian-hetero", "out", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    meta = PartitionFolder(tmp_path / "out").meta
    counts = {t.name: t.count for t in meta.node_types}
    assert counts == {"package": 63666, "source": 34172, "maintainer": 2248, "tag": 597}
    assert [len(t.attrs) for t in meta.node_types if t.name != "package"] == [0, 0, 0]
    edges = {t.name: t.count for t in meta.edge_types}
    assert len(edges) == 16
    assert edges["package", "depends", "package"] == edges["package", "rev_depends", "package"]
    assert edges["tag", "rev_tagged", "package"] == 109902


@pytest.mark.parametrize("name", ["edge_index.npy", "edges.csv", "edges.parquet"])
def test_folder_of_files_is_partitioned(command, tmp_path, name):
    folder = tmp_path / "in"
    folder.mkdir()
    edges = np.array([[0, 1, 2], [1, 2, 0]])
    if name == "edge_index.npy":
        np.save(folder / name, edges)
    else:
        pandas = pytest.importorskip("pandas")
        table = pandas.DataFrame({"src": edges[0], "dst": edges[1]})
        table.to_csv(folder / name, index=False) if "csv" in name else table.to_parquet(
            folder / name
        )
    np.save(folder / "x.npy", np.eye(4, dtype=np.float16))
    done = command("partition", "in", "out", "--num-parts", 2)
    assert done.returncode == 0, done.stderr
    meta = PartitionFolder(tmp_path / "out").meta
    assert (meta.node_type(NODE).count, meta.edge_types[0].count) == (4, 3)
    assert meta.node_type(NODE).attrs["x"].dtype == "float16"


@reading_torch_files
def test_heterogeneous(command, tmp_path):
    data = HeteroData()
    data["a"].x, data["b"].num_nodes = torch.rand(6, 2), 4
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1], [3, 2]])
    data["b", "from", "a"].edge_index = torch.tensor([[3, 2], [0, 1]])
    torch.save(data, tmp_path / "g.pt")
    done = command("partition", "g.pt", "out", "--num-parts", 2)
    assert done.returncode == 0, done.stderr
    assert "10 of 2 types" in done.stdout
    done = command(
        *("partition", "g.pt", "o", "--num-parts", 2, "--method", "frequency"),
        *("--fanout", "2,2", "--seed-type", "b", "--cache-ratio", 1, "--quiet"),
    )
    assert done.returncode == 0, done.stderr
    assert "all sound" in command("verify", "o").stdout
    method = PartitionFolder(tmp_path / "o").meta.method
    assert (method["seed_type"], method["num_seeds"]) == ("b", 4)


def test_times_and_weights(command, fails, graph, tmp_path):
    np.save(tmp_path / graph / "edge_time.npy", np.arange(40) % 7)
    np.save(tmp_path / graph / "edge_weight.npy", np.arange(40) / 40)
    arguments = ("partition", graph, "out", "--num-parts", 2)
    for method in ("random", "frequency"):
        options = ("--time-attr", "edge_time", "--weight-attr", "edge_weight", "--method", method)
        done = command(*arguments, *options, "--overwrite")
        assert done.returncode == 0, done.stderr
        assert "times           'edge_time' of edges, rows sorted by them" in done.stdout
        assert "weights         'edge_weight' of edges" in done.stdout
        assert "all sound" in command("verify", "out").stdout
    found = json.loads(command("inspect", "out", "--json").stdout)
    assert found["times"] == {"attr": "edge_time", "level": "edge"}
    assert found["weights"] == "edge_weight"
    message = fails("partition", graph, "o", "--num-parts", 2, "--time-attr", "when")
    assert "time_attr='when' is no attribute" in message


@pytest.mark.parametrize("method", ["random", "frequency"])
def test_neighbor_ids(command, graph, tmp_path, method):
    done = command(
        "partition", graph, "out", "--num-parts", 2, "--neighbor-ids", "--method", method
    )
    assert done.returncode == 0, done.stderr
    assert "all sound" in command("verify", "out").stdout
    assert len(list((tmp_path / "out").rglob("neighbor_id.npy"))) == 2
    assert "neighbour ids   original ones beside the new" in command("inspect", "out").stdout
    assert json.loads(command("inspect", "out", "--json").stdout)["neighbor_ids"] is True


def test_verify_tells_what_is_wrong(program, graph, tmp_path):
    program("partition", graph, "out", "--num-parts", 2, "--quiet")
    file = tmp_path / "out" / "map" / "node.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    done = program("verify", "out")
    assert done.returncode == 1
    assert "map/node.npy: its bytes have changed" in done.stdout
    assert "1 problem found" in done.stdout
    done = program("verify", "nowhere")
    assert done.returncode == 2
    assert "no partition folder" in done.stderr


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_plot(command, graph, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    method = ["--method", "frequency"] if suffix == "png" else []
    command("partition", graph, "out", "--num-parts", 3, "--quiet", *method)
    done = command("inspect", "out", "--plot", f"p.{suffix}")
    assert done.returncode == 0, done.stderr
    assert f"p.{suffix}" in done.stdout
    start = (tmp_path / f"p.{suffix}").read_bytes()[:8]
    assert start.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")


def test_plot_of_a_graph_without_edges(command, tmp_path):
    (tmp_path / "g").mkdir()
    np.save(tmp_path / "g" / "edge_index.npy", np.empty((2, 0), np.int64))
    np.save(tmp_path / "g" / "y.npy", np.arange(12))
    command("partition", "g", "out", "--num-parts", 12, "--quiet")
    done = command("inspect", "out", "--plot", "p.png")
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr


def test_plot_errors(command, program, fails, graph, tmp_path):
    command("partition", graph, "out", "--num-parts", 2, "--quiet")
    assert "must end with .png, .svg or .pdf" in fails("inspect", "out", "--plot", "p.xyz")
    (tmp_path / "matplotlib.py").write_text("raise ModuleNotFoundError('gone')")
    done = program("inspect", "out", "--plot", "p.png")  # -m puts the working directory first
    assert done.returncode == 2
    assert "pip install matplotlib" in done.stderr


def test_existing_folders(command, fails, graph, tmp_path):
    command("partition", graph, "out", "--num-parts", 2, "--quiet")
    assert "--overwrite" in fails("partition", graph, "out", "--num-parts", 3)
    done = command("partition", graph, "out", "--num-parts", 3, "--overwrite", "--quiet")
    assert done.returncode == 0
    assert PartitionFolder(tmp_path / "out").num_parts == 3
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    arguments = ("partition", graph, "home", "--num-parts", 2, "--overwrite")
    assert "is not a partition folder: it will not be overwritten" in fails(*arguments)
    assert (tmp_path / "home" / "thesis.tex").exists()


def test_bounded_memory(command, fails, graph, tmp_path):
    """The plan is printed; what an ended run left is named, and removed on request."""
    (tmp_path / ".khop-out-0123.stage").mkdir()
    arguments = ("partition", graph, "out", "--num-parts", 2, "--memory", "1MB")
    done = command(*arguments)
    assert done.returncode == 0
    assert done.stdout.startswith("40 nodes, 40 edges: reads ")
    assert ".khop-out-0123.stage' is of a run that was ended" in done.stderr
    done = command(*arguments, "--overwrite", "--clean", "--json")
    assert json.loads(done.stdout)["nodes"] == [20, 20]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", graph]
    assert "memory of 100 B is too small" in fails(*arguments[:-1], 100, "--overwrite")


def test_a_plan_writes_nothing(command, fails, graph, tmp_path):
    """It is printed even if memory does not suffice, which is an error; methods do not work."""
    arguments = ("partition", graph, "out", "--num-parts", 2, "--plan")
    shown = command(*arguments, "--method", "frequency").stdout
    lines = dict(line.split("  ", 1) for line in shown.splitlines())
    assert lines["edges 'node to node'"].strip() == "40"
    assert lines["method"].strip() == "frequency, whose time to assign nodes is not estimated"
    plan = json.loads(command(*arguments, "--json", "--memory", "1MB").stdout)
    assert (plan["memory"], plan["node_types"][0]["count"]) == (2**20, 40)
    assert plan["stage_bytes"] > 0
    done = command(*arguments, "--memory", 100)
    assert (done.returncode, done.stdout[:7]) == (2, "method ")
    assert "memory of 100 B is too small" in done.stderr
    assert "leave --clean and --quiet out" in fails(*arguments, "--clean")
    assert sorted(p.name for p in tmp_path.iterdir()) == [graph]


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


@reading_torch_files
def test_a_hostile_pickle(fails, tmp_path):
    (tmp_path / "g.pt").write_bytes(pickle.dumps(Bomb()))
    assert "khop runs no pickled code" in fails("partition", "g.pt", "out", "--num-parts", 2)
    assert [p.name for p in tmp_path.iterdir()] == ["g.pt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "out", "--num-parts", "2"], "'nowhere' does not exist"),
        (["ring", "out", "--num-parts", "0"], "--num-parts must be at least 1"),
        (["ring", "out", "--num-parts", "2", "--fanout", "5"], "--fanout needs --method freq"),
        (["ring", "out", "--num-parts", "2", "--cache-ratio", "1"], "--cache-ratio needs"),
        (["ring", "out", "--num-parts", "2", "--seed-type", "a"], "--seed-type needs"),
        (["ring", "out", "--num-parts", "2", "--tmp", "."], "give memory, too"),
        (["ring", "out", "--num-parts", "2", "--jobs", "0"], "jobs must be at least 1"),
        (
            ["large.pt", "out", "--num-parts", "2", "--memory", "500"],
            "has 768 bytes that are read as a whole, more than --memory 500",
        ),
        (
            ["ring", "out", "--num-parts", "2", "--memory", "500", "--undirected"],
            "memory of 500 B is too small: 40 nodes take",
        ),
    ],
)
def test_bad_input(fails, graph, tmp_path, arguments, message):
    (tmp_path / "large.pt").write_bytes(bytes(768))
    assert message in fails("partition", *arguments)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["large.pt", graph]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cache-ratio", "2"], "cache_ratio must be between 0 and 1"),
        (["--cache-budget", "lots"], "'lots' is not a number of bytes"),
        (["--batch-size", "0"], "batch_size must be at least 1"),
        (["--fanout", "5,x"], "integers of -1 or more with commas between"),
        (["--fanout", "5,-2"], "integers of -1 or more with commas between"),
    ],
)
def test_bad_options_of_frequency(command, graph, tmp_path, options, message):
    arguments = ["partition", graph, "out", "--num-parts", 2, "--method", "frequency"]
    done = command(*arguments, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == [graph]


def test_debug_shows_the_traceback(program):
    done = program("inspect", "nowhere", "--debug")
    assert done.returncode not in (0, 2)
    assert "Traceback" in done.stderr
    assert "FolderError" in done.stderr


def test_usage(command):
    shown = command("--help").stdout
    for name in ("partition", "inspect", "verify", "doctor"):
        assert name in shown
        assert f"usage: khop {name}" in command(name, "--help").stdout
    assert "ogb:NAME" in command("partition", "--help").stdout
    assert command("--version").stdout.startswith("khop ")
    for wrong in (["partition"], ["verify"]):
        done = command(*wrong)
        assert done.returncode == 2
        assert f"(see khop {wrong[0]} --help)" in done.stderr


def test_alone_it_prints_its_help(command):
    alone = command()
    assert (alone.returncode, alone.stderr) == (0, "")
    assert alone.stdout == command("--help").stdout


def test_as_a_module(program):
    """Where the script is not on the path."""
    done = program("--version", module="khop")
    assert done.stdout == program("--version").stdout
    assert program("fly", module="khop").returncode == 2


@pytest.mark.parametrize(
    ("words", "message", "name"),
    [
        (["verfy", "out"], "no such command 'verfy': did you mean 'verify'?", "khop"),
        (["fly"], "no such command 'fly' (", "khop"),
        (["verify", "--plot", "out"], "no such option '--plot' (", "khop verify"),
        (["verify", "a", "b"], "unrecognized arguments: b", "khop verify"),
        (
            ["partition", "ring", "out", "--num-prats", "2"],
            "no such option '--num-prats': did you mean '--num-parts'?",
            "khop partition",
        ),
        (
            ["partition", "ring", "out", "--num-parts=2", "--methd=random"],
            "no such option '--methd': did you mean '--method'?",
            "khop partition",
        ),
        (["inspect", "\x1b]0;x\x07", "b\x1b[2J"], "arguments: b\\x1b[2J", "khop inspect"),
    ],
)
def test_misspelt_option_gets_a_suggestion(command, words, message, name):
    done = command(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.endswith(f" (see {name} --help)\n")
    assert "\x1b" not in done.stderr


def test_the_beginning_of_an_option_will_do(command, graph):
    assert command("partition", graph, "out", "--num-p", 2, "--qui").returncode == 0


@pytest.mark.parametrize("name", ["verify", "inspect"])
def test_missing_folder_is_bad_input(fails, graph, name):
    """A missing folder is bad input, not a problem of a folder."""
    assert "no partition folder at" in fails(name, "nosuch")
    assert "is not a partition folder: it has no meta.json" in fails(name, graph)


def test_more_parts_than_make_sense(fails, graph, tmp_path):
    arguments = ("partition", graph, "out", "--num-parts")
    assert "is more than the graph's 40 nodes: a part is what one" in fails(*arguments, 41)
    assert "100000 is more than 4096" in fails(*arguments, 100_000)
    assert not (tmp_path / "out").exists()


def test_keys_need_a_folder(fails, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(".")
    for name in ("file", "file/below", "link"):
        assert "is no folder, or a link to one: name a folder for the keys" in fails("keygen", name)


ESCAPE = "\x1b]0;pwned\x07\x1b[2J\u202e"


def test_a_folder_does_not_steer_the_terminal(command, fails, graph, tmp_path):
    """What meta.json and names of files say, in summaries, problems and errors."""
    evil = f"edge_{ESCAPE}.npy"
    np.save(tmp_path / graph / evil, np.arange(40))
    made = command("partition", graph, "out", "--num-parts", 2, "--time-attr", evil[:-4])
    assert made.returncode == 0, made.stderr
    forge(
        tmp_path / "out",
        lambda meta: meta.update(method={"name": ESCAPE, ESCAPE: ESCAPE}, khop_version=ESCAPE),
    )
    told = [made, command("inspect", "out"), command("inspect", "out", "--json")]
    (tmp_path / "out" / ESCAPE).write_text("")
    told.append(command("verify", "out"))
    assert "not part of the folder" in told[-1].stdout
    for name in ("inspect", "verify"):
        forge(tmp_path / "out", lambda meta: meta.update(version=ESCAPE))
        told.append(command(name, "out"))
        told.append(command(name, "out", "--debug"))
    for done in told:
        assert all(line.isprintable() for line in (done.stdout + done.stderr).split("\n")), done


def test_a_source_does_not_steer_the_terminal(command, tmp_path):
    pytest.importorskip("pandas")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "edges.csv").write_text(f"src,dst,{ESCAPE}\n0,1,bob\n")
    for debug in ([], ["--debug"]):
        done = command("partition", "in", "out", "--num-parts", 1, *debug)
        assert done.returncode == (1 if debug else 2)
        assert "column '\\x1b]0;pwned\\x07" in done.stderr
        assert all(line.isprintable() for line in done.stderr.split("\n"))


def test_an_argument_named_like_a_command(command, tmp_path):
    done = command("inspect", "verify")
    assert done.returncode == 2
    assert "no partition folder at" in done.stderr


@pytest.mark.parametrize("name", ["partition", "verify", "inspect"])
def test_progress_is_for_terminals(terminal, graph, command, name):
    """A bar on standard error if that is a terminal, and never on standard output."""
    command("partition", graph, "parts", "--num-parts", 2, "--quiet")
    words = {
        "partition": ["partition", graph, "out", "--num-parts", 2, "--json"],
        "verify": ["verify", "parts", "--json"],
        "inspect": ["inspect", "parts", "--plot", "p.svg", "--json"],
    }[name]
    if name == "inspect":
        pytest.importorskip("matplotlib")
    code, out, shown = terminal(*words)
    assert code == 0, shown
    assert isinstance(json.loads(out), dict)
    step = {"partition": "checksums", "verify": "edges of type", "inspect": "drawing p.svg"}[name]
    assert step in shown
