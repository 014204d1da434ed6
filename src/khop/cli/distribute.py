"""`khop distribute`: give each host the parts of a partition folder that it needs, by ssh."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from khop.cli.arguments import declare
from khop.cli.progress import progress_bar
from khop.cli.termination import unwound_when_terminated
from khop.log import printable

if TYPE_CHECKING:
    from khop.launcher.distribute import Share

_MAX_JOBS = 64
_HOSTS = """\
--hosts LIST            hosts by ssh, as for khop run: a,user@b,n[01-03]
--hostfile FILE         a file with such a host in each line, or HOST slots=N
"""
_TABLE = """\
folder FOLDER           a partition folder, with all its parts
--to PATH               path of the folder on the hosts (default: that of FOLDER)
--copies N              hosts that have each part (default 1)
--jobs N                hosts that are sent to at a time (default 4)
--python WORDS          what starts Python on each host (default: this Python)
--rsh WORDS             what reaches a host, as for khop run
--lease SECONDS         silence after which a host counts as lost (default 30)
--dry-run               print the parts of each host, and connect to none
--json                  print JSON
--quiet                 show no progress
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `khop distribute` to its parser."""
    declare(parser.add_mutually_exclusive_group(required=True), _HOSTS)
    declare(parser, _TABLE, copies=1, jobs=4, rsh="ssh")


def advice_when_ended(arguments: argparse.Namespace) -> str:
    """Return advice to print after an interruption."""
    del arguments
    return "what has arrived is kept, run the same again to go on"


@unwound_when_terminated()
def run(arguments: argparse.Namespace) -> int:
    """Check all hosts, and send what they lack. Return 1 if a host could not be served."""
    from khop.distributed.membership.leases import lease_seconds
    from khop.launcher.distribute import Distribution, shares_of
    from khop.launcher.hosts import parse_hosts, read_host_file
    from khop.launcher.run import BAD_INPUT, CheckError
    from khop.launcher.session import transport_command
    from khop.storage.folder import PartitionFolder

    read = read_host_file if arguments.hosts is None else parse_hosts
    hosts = [host.name for host in read(arguments.hosts or arguments.hostfile)]
    rsh, python = shlex.split(arguments.rsh), shlex.split(arguments.python or "")
    if not 1 <= arguments.jobs <= _MAX_JOBS:
        raise ValueError(f"--jobs must be 1 to {_MAX_JOBS} (got {arguments.jobs})")
    if not rsh:
        raise ValueError("--rsh must name a command")
    lease = lease_seconds(arguments.lease)
    folder = PartitionFolder(arguments.folder)
    shares = shares_of(folder, hosts, arguments.copies)
    if arguments.dry_run:
        _print(shares, arguments)
        return 0
    with progress_bar(arguments.quiet) as progress:
        distribution = Distribution(
            folder,
            shares,
            arguments.to or str(Path(arguments.folder).absolute()),
            lambda host: transport_command(host, rsh, python or [sys.executable]),
            jobs=arguments.jobs,
            lease=lease,
            note=lambda host, line: _report(f"{host}: {line}"),
            progress=progress,
        )
        try:
            distribution.send(distribution.check())
        except CheckError as error:
            _report(f"{len(error.args[0].splitlines())} problems, nothing was sent:")
            _report(str(error))
            return BAD_INPUT
        finally:
            distribution.close()
    _print(shares, arguments)
    for share in shares:
        if share.problem is not None:
            _report(f"{share.host}: {share.problem}")
    return 1 if any(share.problem for share in shares) else 0


def _print(shares: Sequence[Share], arguments: argparse.Namespace) -> None:
    from khop.tables import grid, human_bytes

    if arguments.json:
        names = ("host", "parts", "bytes", "sent", "is_done", "problem")
        hosts = [{name: getattr(share, name) for name in names} for share in shares]
        print(json.dumps({"folder": arguments.folder, "hosts": hosts}))
        return
    rows = [("host", "parts", "files", "size", "sent")]
    for share in shares:
        parts = ",".join(map(str, share.parts))
        size, sent = human_bytes(share.bytes), human_bytes(share.sent)
        rows.append((share.host, parts, str(len(share.files)), size, sent))
    print(grid(rows))


def _report(text: str) -> None:
    for line in text.splitlines():
        print(f"khop distribute: {printable(line)}", file=sys.stderr, flush=True)
