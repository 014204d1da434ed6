"""`khop run`, with real processes: on this machine, and by a transport that is a shell."""

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import khop
from khop.launcher import host_checks
from support import launching

SHELL = ("--rsh", launching.RSH)


@pytest.fixture
def folder(tmp_path):
    """A folder with a script that prints its words and variables as JSON."""
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT OWN KHOP_INTERFACE"
    (tmp_path / "show.py").write_text(
        "import json, os, sys\n"
        f"print(json.dumps([sys.argv[1:], {{n: os.environ.get(n) for n in {names.split()}}}]))\n"
    )
    return tmp_path


def shown(done):
    """{origin: (words, variables)} that the script has printed."""
    assert done.returncode == 0, done.stderr
    lines = (line.split(": ", 1) for line in done.stdout.splitlines())
    return {origin: json.loads(text) for origin, text in lines}


def test_words_arrive_as_they_are(folder):
    """Over a shell on the host; so do variables."""
    words = ["it's", 'a "b"', "c  d", "$HOME", "`x`", "new\nline", "", "*", "--", "-x"]
    words.append("\N{GREEK SMALL LETTER PI}")
    done = launching.run(
        *SHELL, "--hosts", "a:2,b", "--env", "OWN=$x 'y'", "--", "python", "show.py", *words,
        folder=folder,
    )  # fmt: skip
    found = shown(done)
    assert sorted(found) == ["a/0", "a/1", "b/2"]
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    places = [tuple(found[origin][1][name] for name in names) for origin in sorted(found)]
    assert places == [("0", "3", "0", "2"), ("1", "3", "1", "2"), ("2", "3", "0", "1")]
    assert all(entry[0] == words and entry[1]["OWN"] == "$x 'y'" for entry in found.values())
    assert len({(e[1]["MASTER_ADDR"], e[1]["MASTER_PORT"]) for e in found.values()}) == 1
    assert "3 trainers on 2 hosts, python" in done.stderr and "show.py" in done.stderr


def test_local(folder):
    """Output of each, also in files; the network interface reaches all who use it."""
    words = ("--local", 2, "--interface", "lo", "--log-dir", "logs", "--", "show.py")
    done = launching.run(*words, folder=folder)
    found = shown(done)
    assert {entry[1]["KHOP_INTERFACE"] for entry in found.values()} == {"lo"}
    for rank in "01":
        log = (folder / "logs" / f"localhost-{rank}.log").read_text()
        assert json.loads(log) == found[f"localhost/{rank}"]


def test_problems_of_all_hosts_are_one_list(folder):
    """A line each, before anything starts."""
    own = folder / "own"
    own.mkdir()
    (own / "show.py").write_text("print('another')")
    for words, patterns in (
        (("--workdir", "/nowhere"), ["no working folder '/nowhere': No such file"] * 2),
        (("--python", "/nowhere/python"), ["ended with status 127: .*/nowhere/python"] * 2),
        (("--interface", "eth77"), ["'eth77' is no network interface of .*there are .*lo"] * 2),
        (("--parts", "gone"), ["cannot read 'gone/meta.json': No such file"] * 2),
        (("--rsh", "sh -c 'exit 3' {host}"), ["ended with status 3"] * 2),
    ):
        rsh = () if "--rsh" in words else SHELL
        done = launching.run(*rsh, *words, "--hosts", "a,b", "--", "show.py", folder=folder)
        assert (done.returncode, done.stdout.replace("sh: 1", "")) != (0, ""), done
        assert done.returncode == 2
        lines = [line for line in done.stderr.splitlines() if re.search(": [ab]: ", line)]
        assert len(lines) == 2, done.stderr
        for host, line, pattern in zip("ab", lines, patterns, strict=True):
            assert re.search(f"khop run: {host}: .*{pattern}", line), done.stderr
        assert "2 problems, nothing was started" in done.stderr


def test_limits_of_hosts(folder):
    """Which would end loaders later: each is named, with the option that raises it."""
    rsh = transport(folder, 'ulimit -n 512\nulimit -f 2048\nulimit -v 3000000\nexec sh -c "$2"\n')
    done = launching.run(*rsh, "--hosts", "a", "--", "show.py", folder=folder)
    assert done.returncode == 2, done
    for text in (
        "a: only 512 open files are allowed, 1024 are needed: raise ulimit -n",
        "a: only 3072000000 bytes of addresses are allowed, 4294967296 are needed: raise",
        "a: only 1048576 bytes of a file or of shared memory are allowed, 1073741824 are needed",
    ):
        assert text in done.stderr


def test_parts_of_servers(folder):
    """A host without a part that its server has to serve. Trainers choose parts by themselves."""
    launching.partitioned(folder)
    shutil.rmtree(folder / "parts" / "part-1")
    words = (*SHELL, "--parts", "parts", "--servers", "a,b", "--clients", "a", "--", "show.py")
    done = launching.run(*words, folder=folder)
    assert done.returncode == 2, done
    assert "1 problems, nothing was started" in done.stderr
    assert re.search("b: server 1: .* 2 partitions, but part-1 is not on this machine", done.stderr)


def test_memory_and_processes_of_hosts(monkeypatch):
    """For the number of processes that start there. root may have any number of threads."""
    assert list(host_checks.limits(1)) == []
    (memory,) = host_checks.limits(1 << 20)
    assert re.match(
        r"\d+ MiB of memory are available, but 1048576 processes take 268435456", memory
    )
    monkeypatch.setattr(host_checks.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(host_checks.resource, "getrlimit", lambda limit: (100, 5000))
    assert "only 100 processes and threads are allowed, 112 are needed: raise ulimit -u" in {
        *host_checks.limits(7)
    }


def transport(folder, body):
    """Return --rsh of a shell script: $1 is the host, $2 the command for it."""
    (folder / "rsh.sh").write_text(body)
    return "--rsh", f"sh {folder}/rsh.sh"


def test_code_that_differs_is_refused(folder):
    """Each host has a folder of its own, of which one is stale; and another version of khop."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("two folders of one name need root and unshare")
    for host in "ab":
        (folder / host).mkdir()
        (folder / host / "t.py").write_text("print('new')")
    (folder / "b" / "t.py").write_text("print('old')")
    other, real = folder / "b" / "khop", Path(khop.__file__).parent
    (other / "distributed" / "processes").mkdir(parents=True)
    for name in ("__init__.py", "distributed/__init__.py", "distributed/processes/__init__.py"):
        (other / name).write_text("__version__ = '0.0.1'\n")
    for name in ("distributed/processes/hosts.py", "loopback.py"):
        (other / name).write_bytes((real / name).read_bytes())
    here = folder / "here"
    here.mkdir()
    rsh = transport(
        folder,
        f"mount --bind {folder}/$1 {here}\n"
        f'PYTHONPATH={here}:$PYTHONPATH exec unshare --mount sh -c "$2"\n',
    )
    rsh = rsh[0], rsh[1].replace("sh ", "unshare --mount sh ", 1)
    done = launching.run(*rsh, "--hosts", "a,b", "--workdir", here, "--", "t.py", folder=folder)
    assert done.returncode == 2, done
    assert "b: khop is 0.0.1, but " in done.stderr
    assert "b: 't.py' is not the file of a: copy it there" in done.stderr
    assert "run: a: " not in done.stderr


def test_the_port_of_trainer_0_is_kept(folder):
    """Until its store listens, which takes seconds: no other program and no other job gets it."""
    (folder / "t.py").write_text(
        "import itertools, os, socket\n"
        "from khop.launcher import host_checks\n"
        "port = int(os.environ['MASTER_PORT'])\n"
        "try: socket.socket().bind(('', port))\n"
        "except OSError as error: print(error.strerror)\n"
        "tried = itertools.count(port)\n"
        "host_checks.random.randrange = lambda *_: next(tried)\n"
        "print(host_checks.listen().getsockname()[1] > port)\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "print(dist.get_world_size())\n"
        "dist.destroy_process_group()\n"
    )
    done = launching.run("--local", 1, "--", "t.py", folder=folder)
    lines = [line.removeprefix("localhost/0: ") for line in done.stdout.splitlines()]
    assert lines == ["Address already in use", "True", "1"], done.stderr


def test_first_failure_decides(folder):
    """Its exit status and last lines; the others, which wait, are ended. Or there is no command."""
    (folder / "t.py").write_text(
        "import os, sys, time\n"
        "if os.environ['RANK'] == '1': print('why', file=sys.stderr); sys.exit(7)\n"
        "time.sleep(1000)\n"
    )
    done = launching.run("--local", 3, "--", "t.py", folder=folder)
    assert done.returncode == 7
    cause = r"localhost/1 \(process \d+\) exited with status 7\nkhop run:   why"
    assert re.search(cause, done.stderr)
    done = launching.run("--local", 2, "--", "no-such-command", folder=folder)
    assert done.returncode == 127
    assert "cannot start no-such-command: No such file" in done.stderr


def test_login_shells_that_print(folder):
    """A little is skipped; without end it is an error, as are lines that are no messages."""
    chatty = transport(folder, 'echo Welcome\nexec sh -c "$2"\n')
    done = launching.run(*chatty, "--hosts", "a", "--", "show.py", folder=folder)
    assert list(shown(done)) == ["a/0"]
    for body, message in (
        ("exec yes", "bytes before the stage of khop run: its shell must print nothing"),
        ("echo khop-stage 1\necho no\nsleep 1", "sent a line that is no JSON"),
        ("echo khop-stage 1\necho '{\"checked\": 3}'\nsleep 1", "a message of host a"),
        ("echo khop-stage 1\nyes | tr -d '\\n'", "a message of more than 1 MiB"),
    ):
        words = transport(folder, body)
        done = launching.run(*words, "--hosts", "a", "--", "show.py", folder=folder)
        assert done.returncode == 2 and message in done.stderr, done.stderr


@pytest.mark.fault
def test_silence_for_a_lease(tmp_path):
    """A stopped stage is named, and a stopped launcher's processes end: in bounded time."""
    (tmp_path / "t.py").write_text("import time; print('begun', flush=True); time.sleep(1000)")
    words = (*SHELL, "--hosts", "a,b", "--lease", 5, "--grace", 1, "--", "t.py")
    started = [launching.start(*words, folder=tmp_path) for _ in range(2)]
    found = []
    for job in started:
        assert [job.stdout.readline() for _ in range(2)]
        found.append(launching.roles(job.pid))
    os.kill(found[0]["stage"][0], signal.SIGSTOP)
    os.kill(started[1].pid, signal.SIGSTOP)
    left = [pid for role, pids in found[1].items() if role != "launcher" for pid in pids]
    assert launching.left_of(left, 15) == []
    os.kill(started[1].pid, signal.SIGCONT)
    errors = [job.communicate(timeout=30)[1] for job in started]
    assert [job.returncode for job in started] == [1, 1], errors
    assert re.search("host [ab] has been silent for [56] s", errors[0])
    os.kill(found[0]["stage"][0], signal.SIGCONT)
    pids = [pid for pids in found[0].values() for pid in pids]
    assert launching.left_of(pids, 15) == []


def test_reader_that_goes(folder):
    """`khop run ... | head -1`: the job ends."""
    (folder / "t.py").write_text(
        "import time\nwhile True: print('line', flush=True); time.sleep(.01)\n"
    )
    job = launching.start("--local", 2, "--", "t.py", folder=folder)
    job.stdout.readline()
    pids = [pid for pids in launching.roles(job.pid).values() for pid in pids]
    job.stdout.close()
    assert launching.left_of(pids, 10) == []
    assert job.wait() == 1
    job.stderr.close()


def test_plan(folder):
    """Commands and variables, without a connection to any host; keys are in none of them."""
    done = launching.run(
        *("--hosts", "a:2,n[08-09]", "--env", "OWN=a b", "--dry-run", "--"), "show.py", "x y",
        folder=folder,
    )  # fmt: skip
    assert done.returncode == 0, done
    assert done.stdout.count("BatchMode=yes") == 3
    assert "n09/3: OWN='a b' KHOP_RUN=" in done.stdout and "<python> show.py 'x y'" in done.stdout
    assert done.stderr == "" and "key" not in done.stdout.lower()


def test_inside_a_scheduler(folder):
    """Variables are mapped, and the command replaces this process; hosts are refused there."""
    step = {
        "SLURM_JOB_ID": "1234", "SLURM_STEP_ID": "0", "SLURM_PROCID": "2", "SLURM_NTASKS": "3",
        "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "a[07-08]",
        "SLURM_LOCALID": "0", "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "2,1",
    }  # fmt: skip
    done = launching.run("--", "python", "show.py", "x y", folder=folder, **step)
    words, variables = json.loads(done.stdout)
    assert words == ["x y"]
    assert variables == {
        **{"RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
        **{"MASTER_ADDR": "a07", "MASTER_PORT": "11234", "OWN": None, "KHOP_INTERFACE": None},
    }
    for more, patterns in (
        (("--slurm", "--env", "OWN=1", "--dry-run"), "OWN=1"),
        (("--interface", "lo", "--dry-run"), "KHOP_INTERFACE=lo GLOO_SOCKET_IFNAME=lo"),
        (("--local", 2), "started by Slurm as 2 of 3: leave the hosts out"),
        (("--log-dir", "logs"), "--log-dir is for hosts that khop run reaches itself"),
    ):
        done = launching.run(*more, "--", "python", "show.py", folder=folder, **step)
        assert patterns in done.stdout + done.stderr
    mpi = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    done = launching.run("--", "python", "show.py", folder=folder, **mpi)
    assert (
        done.returncode == 2 and "does not say where trainer 0 is: set MASTER_ADDR" in done.stderr
    )


def test_mistakes(folder):
    for words, message in (
        (("--local", 2), "name the command after --"),
        (("--", "show.py"), "name hosts \\(--local N"),
        (("--local", 0, "--", "x"), "--local must be 1 to 1024"),
        (("--servers", "a", "--", "x"), "give both --servers and --clients"),
        (("--servers", "a", "--clients", "b", "--", "x"), "--servers needs --parts"),
        (("--local", 2, "--env", "NOT_THERE", "--", "x"), "--env must be NAME=VALUE"),
        (("--local", 2, "--grace", -1, "--", "x"), "--grace must be 0 to 3600"),
        (("--local", 2, "--lease", 1, "--", "x"), "lease"),
        (("--hosts", "a", "--rsh", " ", "--", "x"), "--rsh must name a command"),
        (("--slurm", "--", "x"), "has not started this process"),
    ):
        done = launching.run(*words, folder=folder)
        assert done.returncode == 2 and re.search(message, done.stderr), done
