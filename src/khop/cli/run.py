"""`khop run`: start a job's trainers on this machine, on hosts, or inside a scheduler's step."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from khop.cli.arguments import declare

if TYPE_CHECKING:
    from khop.launcher.hosts import Host
    from khop.launcher.job import Job
    from khop.launcher.run import JobRun

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MAX_GRACE = 3600.0
_TRAINERS = """\
--local N               start N trainers on this machine
--hosts LIST            hosts by ssh, with numbers of trainers: a:4,user@b,n[01-03]:2
--hostfile FILE         a file with such a host in each line, or HOST slots=N
--clients LIST          hosts of trainers that are clients of --servers
--slurm                 the process is a task of srun (found without this option, too)
"""
_TABLE = """\
--servers LIST          hosts of graph servers: khop serve of --parts, one for each
--trainers-per-host K   for hosts without a number (default 1)
--parts DIR             the partition folder: must be the same on all hosts
--python WORDS          what starts Python on each host: a path, 'conda run -n env python' (default:
                        this Python)
--workdir DIR           working folder on each host (default: this one)
--placement WHERE       NUMA node of each trainer and its samplers: auto (default), none, node:K or
                        cpus:0-15
--env NAME[=VALUE] *    a variable for all processes, or its value of here
--rsh WORDS             what reaches a host, in launched of ssh: 'ssh -p 2222'; {host} in it stands
                        for the host, which else comes after it
--interface NAME        network interface of each host for the job's traffic
--master-addr ADDRESS   address of trainer 0's host for the others
--log-dir DIR           write the output of each process to a file there, too
--grace SECONDS         from SIGTERM to SIGKILL (default 3)
--lease SECONDS         silence after which a host counts as lost (default 30)
--dry-run               print commands and variables, and start nothing
"""


class _Stopped(BaseException):
    """Exception of a signal that ends this command. Its argument is the signal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `khop run` to its parser."""
    parser.usage = "khop run [options] -- COMMAND ..."
    declare(parser.add_mutually_exclusive_group(), _TRAINERS)
    declare(parser, _TABLE, trainers_per_host=1, rsh="ssh", grace=3.0)
    parser.add_argument("words", metavar="COMMAND", nargs=argparse.REMAINDER, help="what to run")


def run(arguments: argparse.Namespace) -> int:
    """Run the command on all hosts. Return the exit status of the first process that failed."""
    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    if not words:
        raise ValueError("name the command after --: khop run --local 2 -- python train.py")
    trainers, servers = _hosts(arguments)
    if not trainers:
        return _run_inside(arguments, words)
    job = _plan(arguments, words, trainers, servers)
    if arguments.dry_run:
        _print_plan(job, arguments)
        return 0
    return _run_job(job, arguments)


def _hosts(arguments: argparse.Namespace) -> tuple[list[Host], list[Host]]:
    """Return the hosts of trainers and of graph servers. No trainers: inside a scheduler."""
    from khop.launcher.hosts import MAX_PROCESSES, Host, parse_hosts, read_host_file
    from khop.launcher.job import THIS_HOST

    if (arguments.servers is None) != (arguments.clients is None):
        raise ValueError("give both --servers and --clients, or neither")
    if not 1 <= arguments.trainers_per_host <= MAX_PROCESSES:
        raise ValueError(f"--trainers-per-host must be 1 to {MAX_PROCESSES}")
    servers = [] if arguments.servers is None else parse_hosts(arguments.servers)
    if arguments.local is not None:
        if not 1 <= arguments.local <= MAX_PROCESSES:
            raise ValueError(f"--local must be 1 to {MAX_PROCESSES} (got {arguments.local})")
        return [Host(THIS_HOST, arguments.local)], servers
    if arguments.hostfile is not None:
        return read_host_file(arguments.hostfile), servers
    hosts = arguments.hosts or arguments.clients
    return ([] if hosts is None else parse_hosts(hosts)), servers


def _run_inside(arguments: argparse.Namespace, words: list[str]) -> int:
    """Execute the command with the variables of a task or pod. Returns only after a dry run."""
    from khop.distributed.job.launch_environment import find_place
    from khop.launcher.inside import variables_of
    from khop.launcher.job import interface_variables
    from khop.placement import bound_command

    launched = find_place(cluster_environment="slurm" if arguments.slurm else None)
    if launched is None:
        raise ValueError(
            "name hosts (--local N, --hosts a:4,b, --hostfile FILE), or start khop run by srun, "
            "mpirun, torchrun or in a pod"
        )
    for name in ("log_dir", "master_addr", "parts"):
        if getattr(arguments, name) is not None:
            raise ValueError(
                f"--{name.replace('_', '-')} is for hosts that khop run reaches itself"
            )
    variables = {**variables_of(launched, os.environ), **_variables(arguments)}
    if arguments.interface is not None:
        variables |= interface_variables(arguments.interface)
    if words[0] in ("python", "python3") or words[0].endswith(".py"):
        python = shlex.split(arguments.python) if arguments.python else [sys.executable]
        words = [*python, *(words if words[0].endswith(".py") else words[1:])]
    if arguments.dry_run:
        print(shlex.join([*(f"{name}={value}" for name, value in variables.items()), *words]))
        return 0
    if arguments.workdir is not None:
        os.chdir(arguments.workdir)
    environment = {**os.environ, **variables}
    words = bound_command(words, environment)
    os.execvpe(words[0], words, environment)


def _plan(
    arguments: argparse.Namespace, words: list[str], trainers: list[Host], servers: list[Host]
) -> Job:
    from khop.distributed.job.launch_environment import find_place
    from khop.distributed.membership.leases import lease_seconds
    from khop.errors import RendezvousError
    from khop.launcher.job import Job, JobOptions

    with contextlib.suppress(RendezvousError):  # a batch script, which may name hosts
        if (launched := find_place()) is not None:
            raise ValueError(
                f"this process was started by {launched.launcher} as {launched.rank} of "
                f"{launched.world_size}: leave the hosts out, or unset its variables"
            )
    if servers and arguments.parts is None:
        raise ValueError("--servers needs --parts, the folder to serve")
    if not 0 <= arguments.grace <= _MAX_GRACE:
        raise ValueError(f"--grace must be 0 to {_MAX_GRACE:.0f} seconds")
    options = JobOptions(
        command=words,
        python=shlex.split(arguments.python) if arguments.python else [sys.executable],
        folder=arguments.workdir or str(Path.cwd()),
        environment=_variables(arguments),
        parts=arguments.parts,
        interface=arguments.interface,
        master=arguments.master_addr,
        lease=lease_seconds(arguments.lease),
        grace=arguments.grace,
    )
    if not shlex.split(arguments.rsh):
        raise ValueError("--rsh must name a command")
    return Job.plan(trainers, servers, arguments.trainers_per_host, options)


def _variables(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the variables of --env and --placement."""
    from khop.placement import VARIABLE

    variables = {} if arguments.placement is None else {VARIABLE: arguments.placement}
    for entry in arguments.env:
        name, separator, value = entry.partition("=")
        if not name or (not separator and name not in os.environ):
            raise ValueError(f"--env must be NAME=VALUE, or the NAME of a variable (got '{entry}')")
        variables[name] = value if separator else os.environ[name]
    return variables


def _print_plan(job: Job, arguments: argparse.Namespace) -> None:
    """Print the transport's command of each host, and its processes. Keys are made at the start."""
    from khop.launcher.session import transport_command

    masters = job.masters(
        [f"<{host}>" for host in job.hosts], [("<port>", "<port>")] * len(job.hosts)
    )
    for index, host in enumerate(job.hosts):
        rsh = shlex.split(arguments.rsh)
        print(f"{host}: {shlex.join(transport_command(host, rsh, job.options.python))}")
        print(f"  cd {shlex.quote(job.options.folder)}")
        for process in job.processes:
            if process.host == index:
                own = {**job.options.environment, **job.environment_of(process, masters)}
                command = job.command_of(process, masters)
                shown = ["<python>" if word is None else shlex.quote(word) for word in command]
                settings = [f"{name}={shlex.quote(value)}" for name, value in own.items()]
                print(f"  {host}/{process.label}: {' '.join([*settings, *shown])}")


def _run_job(job: Job, arguments: argparse.Namespace) -> int:
    from khop.launcher.output import Output
    from khop.launcher.run import BAD_INPUT, CheckError, Failure, JobRun
    from khop.launcher.session import transport_command

    rsh = shlex.split(arguments.rsh)
    output = Output(None if arguments.log_dir is None else Path(arguments.log_dir))
    current: JobRun | None = None
    seconds: float | None = 1.0
    try:
        with _stopped_by_signals():
            current = JobRun(
                job, lambda host: transport_command(host, rsh, job.options.python), output
            )
            _check_and_start(job, current)
            current.wait()
        seconds, status = None, 0
    except CheckError as error:
        _report(f"{len(error.args[0].splitlines())} problems, nothing was started:\n{error}")
        status = BAD_INPUT
    except Failure as failure:
        assert current is not None
        _report(f"{failure}: all processes end")  # at once: their end may take the grace
        current.end()
        output.close(seconds)
        _report(failure.report(output))
        status = failure.status
    except _Stopped as stop:
        _report(f"ended by {signal.Signals(stop.args[0]).name}: all processes end")
        status = 128 + int(stop.args[0])
    finally:
        if current is not None:
            current.end()
        output.close(seconds)
    return status


def _check_and_start(job: Job, current: JobRun) -> None:
    from khop.launcher.preflight import summary

    reports = current.check()
    _report(summary(job, reports))
    current.start(job.masters([r.address for r in reports], [r.ports for r in reports]))


def _report(text: str) -> None:
    for line in text.splitlines():
        print(f"khop run: {line}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Raise `_Stopped` at the first SIGINT, SIGTERM or SIGHUP. A later one ends this process."""

    def stop(signal_number: int, _: FrameType | None) -> None:
        for ends in _ENDS:
            signal.signal(ends, signal.SIG_DFL)
        raise _Stopped(signal_number)

    before = {ends: signal.signal(ends, stop) for ends in _ENDS}
    try:
        yield
    finally:
        for ends, handler in before.items():
            signal.signal(ends, handler)
