"""Lists of hosts: what is a list, what is refused, and what the parts of a job are."""

import re

import pytest
from hypothesis import given, strategies as st

from khop.errors import RendezvousError
from khop.launcher.hosts import MAX_HOSTS, Host, parse_hosts, read_host_file
from khop.launcher.inside import tasks_per_node
from khop.launcher.job import Job, JobOptions
from khop.launcher.session import transport_command


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", [("a", None)]),
        ("a:4,user@b", [("a", 4), ("user@b", None)]),
        ("10.0.0.1:2,10.0.0.2", [("10.0.0.1", 2), ("10.0.0.2", None)]),
        ("n[01-03,7]:2,m", [("n01", 2), ("n02", 2), ("n03", 2), ("n7", 2), ("m", None)]),
        ("r[1-2]n[09-10]-ib", [(f"r{r}n{n}-ib", None) for r in "12" for n in ("09", "10")]),
    ],
)
def test_lists(text, hosts):
    assert parse_hosts(text) == [Host(*host) for host in hosts]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "hosts must be as in"),
        ("a,", "hosts must be as in"),
        ("a b", "hosts must be as in"),
        ("a:0", "trainers per host must be 1 to 1024"),
        ("a:2000", "trainers per host must be 1 to 1024"),
        ("a,a:2", "listed twice: write a:2"),
        ("-oProxyCommand=evil", "no name of a host"),
        ("$(evil)", "no name of a host"),
        ("n[3-1]", "no range of 1 to 4096 hosts"),
        ("n[1-9999999]", "no range of 1 to 4096 hosts"),
        ("n[1-99][1-99]", "no range of 1 to 4096 hosts"),
        ("n[1-4000],m[1-4000]", "at most 4096 hosts"),
        ("n[]", "hosts must be as in"),
        ("n[1-2-3]", "ranges as in"),
    ],
)
def test_refused(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_hosts(text)


@given(st.text("ab1[],-:@.$ \n", max_size=12))
def test_any_text_is_a_list_or_refused(text):
    try:
        hosts = parse_hosts(text)
    except ValueError:
        return
    assert 1 <= len(hosts) <= MAX_HOSTS
    for host in hosts:
        assert re.fullmatch(r"[\w.@-]+", host.name) and host.name[0] not in "-.@"


def test_files(tmp_path):
    """Lines as in lists, or as mpirun and DeepSpeed write them."""
    path = tmp_path / "hosts"
    path.write_text("# a comment\na slots=4\nb:2  # another\n\nn[1-2]\n")
    assert read_host_file(path) == [("a", 4), ("b", 2), ("n1", None), ("n2", None)]
    for text, message in (
        ("a slots=4 max=8", "a line that is not HOST"),
        ("a four", "a line that is not HOST"),
        ("a slots=x", "trainers per host"),
        ("a\na", "listed twice"),
        ("#" * (2 << 20), "longer than 1 MiB"),
        ("", "no host in the list"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_host_file(path)


def options(*command, **more):
    return JobOptions(command, ["python3"], "/work", **more)


def test_ranks_go_by_hosts():
    """Each host's trainers have ranks in a row; a server per host, beside trainers or apart."""
    job = Job.plan(parse_hosts("a:2,b"), parse_hosts("c,b"), 3, options("python", "t.py"))
    assert job.hosts == ["c", "b", "a"]
    ranks = [(job.hosts[p.host], p.rank, p.local_rank, p.local_size) for p in job.trainers]
    assert ranks == [
        ("a", 0, 0, 2), ("a", 1, 1, 2), ("b", 2, 0, 3), ("b", 3, 1, 3), ("b", 4, 2, 3)
    ]  # fmt: skip
    assert [(job.hosts[p.host], p.label) for p in job.servers] == [
        ("c", "server-0"),
        ("b", "server-1"),
    ]
    masters = job.masters(["c.x", "b.x", "a.x"], [(1, 2), (3, 4), (5, 6)])
    assert masters == ["a.x:5", "c.x:2"]
    variables = job.environment_of(job.trainers[3], masters)
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("a.x", "5")
    assert (variables["KHOP_SERVERS_ADDR"], variables["KHOP_SERVERS_PORT"]) == ("c.x", "2")
    assert (variables["RANK"], variables["WORLD_SIZE"], variables["GROUP_RANK"]) == ("3", "5", "1")
    served = job.command_of(job.servers[1], masters)
    assert served[:4] == [None, "-m", "khop", "serve"] and "c.x:2" in served


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("python", "t.py", "a b"), [None, "t.py", "a b"]),
        (("t.py",), [None, "t.py"]),
        (("python3", "-m", "m"), [None, "-m", "m"]),
        (("/opt/python", "t.py"), ["/opt/python", "t.py"]),
        (("conda", "run", "t.py"), ["conda", "run", "t.py"]),
    ],
)
def test_interpreter_of_the_host(command, words):
    job = Job.plan(parse_hosts("a"), [], 1, options(*command))
    assert job.command_of(job.trainers[0], ["a:1"]) == words


def test_transports():
    """Options of ssh come after the user's, which count; the host takes its own word if asked."""
    assert transport_command("localhost", ["ssh"], ["py"])[0] == "py"
    ssh = transport_command("u@a", ["/usr/bin/ssh", "-p", "22"], ["conda", "run", "py thon"])
    assert ssh[:5] == ["/usr/bin/ssh", "-p", "22", "-T", "-o"] and ssh[-2] == "u@a"
    assert ssh[-1].startswith("exec conda run 'py thon' -c 'import sys;")
    own = transport_command("a", ["kubectl", "exec", "-i", "{host}", "--", "sh", "-c"], ["py"])
    assert own[:-1] == ["kubectl", "exec", "-i", "a", "--", "sh", "-c"]


def test_tasks_per_node():
    assert tasks_per_node("2(x3),1") == [2, 2, 2, 1]
    assert tasks_per_node("") == []
    for text in ("2(x3", "x", "2,,1", "1(x999999),2(x999999),1"):
        with pytest.raises(RendezvousError, match="SLURM_STEP_TASKS_PER_NODE is malformed"):
            tasks_per_node(text)
