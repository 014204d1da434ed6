"""NUMA nodes, as Linux describes them, and which of them trainers get."""

import os
from types import SimpleNamespace

import pytest

from khop import numa, placement
from khop.numa import NumaNode, format_cpus, parse_cpus
from khop.placement import Placement, Position, choose
from support import machines

GIB = 1 << 30


@pytest.fixture
def machine(tmp_path):
    """Return machine(name, cpus=all, memory_nodes=all): the topology of a recorded tree."""

    def read(name, cpus=range(300), memory_nodes=range(300), **files):
        return numa.topology(machines.write(tmp_path, name, **files), cpus, memory_nodes)

    return read


def near(topology):
    """{node: (its cores, GiB)}."""
    return {n.index: (format_cpus(n.cpus), n.memory // GIB) for n in topology.nodes}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("one socket", {0: ("0-7", 16)}),
        ("two sockets", {0: ("0-15,32-47", 96), 1: ("16-31,48-63", 94)}),
        ("four sockets", {i: (f"{4 * i}-{4 * i + 3}", 32) for i in range(4)}),
        ("sub-NUMA clusters", {i: (f"{4 * i}-{4 * i + 3}", 32) for i in range(4)}),
        ("HBM", {0: ("0-3", 64), 1: ("4-7", 64), 2: ("", 16), 3: ("", 16)}),
        ("CXL", {0: ("0-7", 64), 1: ("", 256)}),
        ("memory-less", {0: ("0-3", 0), 1: ("4-7", 32)}),
        ("holes", {0: ("0-3", 128), 8: ("8-11", 128), 252: ("", 16)}),
        ("offline", {0: ("0-2", 16), 1: ("", 16)}),
    ],
)
def test_nodes(machine, name, expected):
    found = machine(name)
    assert near(found) == expected
    assert found.is_whole
    assert [node.index for node in found.with_cpus] == [i for i, (c, _) in expected.items() if c]


def test_distances_are_of_the_nodes_that_are_online(machine):
    found = machine("holes")
    assert found.nodes[1] == NumaNode(8, (8, 9, 10, 11), 128 * GIB, {0: 40, 8: 10, 252: 80})


def test_gpus_are_by_address(machine):
    """Bridges and other makers' displays do not count. An unknown node is None."""
    expected = {"0000:3b:00.0": 1, "0000:d8:00.0": 0, "0000:e0:00.0": None}
    assert list(machine("two sockets").gpus.items()) == list(expected.items())


def test_masks_cut_nodes(machine):
    """A node without a core and without memory is left out."""
    found = machine("two sockets", cpus=[0, 1, 16, 99])
    assert near(found) == {0: ("0-1", 96), 1: ("16", 94)}
    assert not found.is_whole
    found = machine("two sockets", cpus=range(16), memory_nodes=[0])
    assert near(found) == {0: ("0-15", 96)}
    found = machine("two sockets", memory_nodes=[1])
    assert near(found) == {0: ("0-15,32-47", 0), 1: ("16-31,48-63", 94)}


def test_isolated_cores_are_no_restriction(machine):
    """Linux gives them to no process that has not asked for them."""
    assert machine("four sockets", cpus=range(1, 16), isolated="0").is_whole
    assert not machine("four sockets", cpus=range(2, 16), isolated="0").is_whole


def test_without_a_description(tmp_path):
    found = numa.topology(tmp_path / "nothing", [3, 5], [0])
    assert found.nodes == (NumaNode(0, (3, 5), 0, {0: 10}),)
    assert found.gpus == {}
    assert choose("auto", Position(0, 4), found) is None


def test_this_machine():
    """All cores of this process, each at one node."""
    cpus = [cpu for node in numa.topology().nodes for cpu in node.cpus]
    assert sorted(cpus) == sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("name", "node", "expected"),
    [("memory-less", 0, 1), ("HBM", 1, 1), ("holes", 8, 8), ("CXL", 0, 0)],
)
def test_nearest_memory(machine, name, node, expected):
    found = machine(name)
    assert found.nearest_memory(next(n for n in found.nodes if n.index == node)) == expected


def test_lists_of_cores():
    for text, cpus in (("0", (0,)), ("0-3,8", (0, 1, 2, 3, 8)), ("5,1-2", (1, 2, 5))):
        assert parse_cpus(text) == cpus
    assert format_cpus([8, 3, 2, 1, 0, 5]) == "0-3,5,8"
    assert format_cpus([]) == ""
    for text in ("", "a", "3-1", "-1", "1-", "0-65536", "1,,2", "99999999999", "0-3:2", "1 2"):
        with pytest.raises(ValueError, match=r"cores must be a list such as 0-3,8 \(got"):
            parse_cpus(text)


MAPS = """\
55d0 prefer:1 file=/usr/bin/python3.11 mapped=40 mapmax=9 N0=40 kernelpagesize_kB=4
55d1 prefer:1 heap anon=30 dirty=30 N0=10 N1=20 kernelpagesize_kB=4
7f00 prefer:1 anon=1 dirty=1 N1=1 kernelpagesize_kB=2048
7f01 prefer:1 file=/memfd:khop-ring\\040(deleted) dirty=512 N1=512 kernelpagesize_kB=4
7f02 default file=/data/parts/part-0/x.npy mapped=120 N1=40 N10=80 kernelpagesize_kB=4
7f03 prefer:1 stack
""".splitlines()


def test_shares_of_pages(monkeypatch, tmp_path):
    """By bytes: a huge page counts 512 times. Shared memory is memory. Processes may have ended."""
    monkeypatch.setattr(placement, "Path", lambda path: tmp_path / path.replace("/", "-"))
    for pid, lines in ((1, MAPS[:3]), (2, MAPS[3:]), (3, MAPS[2:3])):
        (tmp_path / f"-proc-{pid}-numa_maps").write_text("\n".join(lines))
    assert placement.local_pages(1, [1, 2, 9]) == "99 % of memory and 25 % of files on node 1"
    assert placement.local_pages(0, [1, 2]) == "1 % of memory and 25 % of files on node 0"
    assert placement.local_pages(1, [3]) == "100 % of memory on node 1"
    assert placement.local_pages(1, [9]) == ""


# Choices --------------------------------------------------------------------------------------


def nodes_of(topology, size, gpus=None, **options):
    """Nodes of all trainers by 'auto', None for trainers that stay as they are."""
    positions = [Position(r, size, gpus[r] if gpus else None) for r in range(size)]
    found = [choose("auto", position, topology, **options) for position in positions]
    return [None if one is None else one.node for one in found]


def test_trainers_take_nodes_in_turn(machine):
    assert nodes_of(machine("two sockets"), 4) == [0, 1, 0, 1]
    assert nodes_of(machine("sub-NUMA clusters"), 5) == [0, 1, 2, 3, 0]
    assert nodes_of(machine("HBM"), 2) == [0, 1]
    found = choose("auto", Position(1, 2), machine("holes"))
    assert found == Placement((8, 9, 10, 11), 8)
    assert choose("auto", Position(0, 2), machine("memory-less")) == Placement((0, 1, 2, 3), 1)


@pytest.mark.parametrize("name", ["one socket", "CXL", "offline"])
def test_one_node_with_cores_is_no_choice(machine, name):
    assert nodes_of(machine(name), 4) == [None] * 4


def test_auto_respects_a_mask(machine):
    """Of the user, or of a scheduler. It respects it even if both nodes are in it."""
    assert nodes_of(machine("two sockets", cpus=range(63)), 2) == [None, None]


def test_auto_leaves_no_node_idle(machine):
    """One trainer without a GPU may use all cores."""
    assert nodes_of(machine("two sockets"), 1) == [None]
    assert nodes_of(machine("four sockets"), 3) == [None] * 3


def test_gpus_decide(machine):
    """One trainer for each. That of a GPU whose node is unknown takes nodes in turn."""
    found = machine("two sockets")
    assert nodes_of(found, 1, ["0000:3b:00.0"]) == [1]
    assert nodes_of(found, 3, [*found.gpus]) == [1, 0, 0]


def test_samplers_need_cores(machine):
    assert nodes_of(machine("four sockets"), 4, num_samplers=4) == [0, 1, 2, 3]
    assert nodes_of(machine("four sockets"), 4, num_samplers=5) == [None] * 4


def test_named_nodes_and_cores(machine):
    """They hold whatever the number of trainers, within the mask."""
    found = machine("two sockets", cpus=range(40))
    assert choose("none", Position(0, 2), found) is None
    assert choose("node:1", Position(0, 1), found) == Placement(tuple(range(16, 32)), 1)
    assert choose("cpus:1-2,33", Position(0, 1), found) == Placement((1, 2, 33), 0)
    # Cores of both: memory comes from the node of the core that asks for it.
    assert choose("cpus:15-16", Position(0, 1), found) == Placement((15, 16), None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'auto'"),
        ("both", "must be 'auto', 'none', 'node:K' or 'cpus:0-15' .got 'both'"),
        ("node:", "must be"),
        ("node:x", "nodes with cores of this process are 0, 8 .got 'node:x'"),
        ("node:1", "are 0, 8 .got"),
        ("node:252", "are 0, 8 .got"),
        ("cpus:0-9", "may not use the cores 4-7 .got 'cpus:0-9'.: it has 0-3,8-11"),
        ("cpus:x", "must be a list such as 0-3,8 .got 'x'"),
        ("auto:1", "must be"),
    ],
)
def test_mistakes(machine, monkeypatch, text, words):
    """In the option, and in the variable, where an empty one counts as none."""
    found = machine("holes")
    with pytest.raises(ValueError, match=words):
        choose(text, Position(0, 1), found)
    monkeypatch.setenv("KHOP_PLACEMENT", text)
    if text:
        with pytest.raises(ValueError, match=words):
            choose(None, Position(0, 1), found)
    assert choose("none", Position(0, 1), found) is None


def test_the_variable_is_the_default(machine, monkeypatch):
    monkeypatch.setenv("KHOP_PLACEMENT", "node:1")
    assert choose(None, Position(0, 2), machine("two sockets")).node == 1
    monkeypatch.setenv("KHOP_PLACEMENT", "none")
    assert choose(None, Position(0, 2), machine("two sockets")) is None
    monkeypatch.delenv("KHOP_PLACEMENT")
    assert choose(None, Position(0, 2), machine("two sockets")).node == 0


def test_positions():
    for variables, expected in (
        ({}, (0, 1)),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}, (1, 4)),
        ({"LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "4"}, (5, 6)),
        ({"LOCAL_RANK": "x", "LOCAL_WORLD_SIZE": "4"}, (0, 1)),
        ({"LOCAL_RANK": "1"}, (0, 1)),
    ):
        assert Position.of(variables) == (*expected, None)


def test_threads_of_trainers(machine, monkeypatch):
    """Their share of the node's cores, less one for a sampler, unless the user has set it."""
    found = machine("two sockets")
    monkeypatch.setattr(placement, "topology", lambda: found)
    local = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3"}
    for variables, threads in (
        ({"CUDA_VISIBLE_DEVICES": ""}, "31"),  # nodes 0, 1, 0
        ({}, "15"),  # of the GPUs: 1, 0, and 0 for the unknown one
        ({"CUDA_VISIBLE_DEVICES": "1,0,1"}, "31"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8d2c"}, "31"),  # its address is unknown
        ({"KHOP_PLACEMENT": "cpus:0"}, "1"),
        ({"OMP_NUM_THREADS": "7"}, "7"),
    ):
        environment = {**local, **variables}
        words = placement.bound_command(["a", "b"], environment)
        assert environment["OMP_NUM_THREADS"] == threads, variables
        assert words[-2:] == ["a", "b"]
    environment = {**local, "KHOP_PLACEMENT": "none"}
    assert placement.bound_command(["a"], environment) == ["a"]
    assert "OMP_NUM_THREADS" not in environment


def test_servers_get_all_cores_again(monkeypatch):
    """Those of before `khop run` bound the trainer, unless the user has bound it since."""
    monkeypatch.setattr(placement, "os", SimpleNamespace(
        environ={"KHOP_BOUND": "0-3/0-7"}, sched_getaffinity=lambda pid: {0, 1, 2, 3}
    ))  # fmt: skip
    assert placement.unbound() == (tuple(range(8)), placement.ANY_NODE)
    placement.os.sched_getaffinity = lambda pid: {0, 1}
    assert placement.unbound() is None
    for text in ("", "0-3", "0-3/", "x/y", "0/1/2"):
        placement.os.environ["KHOP_BOUND"] = text
        assert placement.unbound() is None
