"""Comparison of the hosts of a job before it starts: which code runs there. Imports no torch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from khop.launcher.host_checks import ERROR
from khop.launcher.job import Job
from khop.launcher.session import Report
from khop.log import printable


def compare(job: Job, reports: Sequence[Report]) -> list[str]:
    """Return a line per problem of a host. Versions are compared with the first host's.

    Files are compared with this machine's, if it has them, and else with the first host's.
    """
    problems: list[str] = []
    first = reports[0]
    here = {path: digest for path in job.files() if (digest := _digest_here(job, path))}
    for host, report in zip(job.hosts, reports, strict=True):
        mine = list(report.problems)
        for package, version in report.versions.items():
            expected = first.versions.get(package)
            if version == "missing":
                mine.append(f"{package} is not installed for {report.interpreter}")
            elif version != expected:
                mine.append(f"{package} is {version}, but {expected} on {job.hosts[0]}")
        for path in job.files():
            digest = report.files.get(path, f"{ERROR}not checked")
            expected, where = here.get(path), "this machine"
            if expected is None:
                expected, where = first.files.get(path), job.hosts[0]
            if digest.startswith(ERROR):
                mine.append(f"cannot read '{path}': {digest.removeprefix(ERROR)}")
            elif digest != expected:
                mine.append(f"'{path}' is not the file of {where}: copy it there")
        if report.address is None and len(job.hosts) > 1 and not report.problems:
            mine.append(f"{report.name} has no address for others: name its --interface")
        problems += [printable(f"{host}: {problem}") for problem in mine]
    return problems


def summary(job: Job, reports: Sequence[Report]) -> str:
    """Return a line that states which code runs on which hosts."""
    report = reports[0]
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    files = "".join(
        f", {path} {digest[:12]}" for path, digest in report.files.items() if digest is not None
    )
    servers = f" and {len(job.servers)} servers" if job.servers else ""
    return printable(
        f"{len(job.trainers)} trainers{servers} on {len(job.hosts)} hosts, {versions}{files}, in "
        f"{job.options.folder}"
    )


def _digest_here(job: Job, path: str) -> str | None:
    try:
        return hashlib.sha256((Path(job.options.folder) / path).read_bytes()).hexdigest()
    except OSError:
        return None
