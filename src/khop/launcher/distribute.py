"""Distribution of a partition folder to hosts: `khop distribute`.

Each host gets meta.json, the arrays that belong to no part, and its own parts. All hosts are
checked first. Then several hosts at a time get the ranges that they lack. A host compares each
range with the checksum in the folder. One thread serves all connections. Imports no torch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from khop import errors, private_folders
from khop.codec import AtMost, Id
from khop.errors import FolderError
from khop.launcher import folder_stage
from khop.launcher.run import CheckError
from khop.launcher.session import Session, Text, receive_all
from khop.log import printable
from khop.storage.folder import META_FILE, RANGES_FILE, PartitionFolder, Written
from khop.storage.folder.checksums import RANGE_BYTES, RangeHash
from khop.typing import Progress

FOLDER_STAGE = (errors, private_folders, folder_stage)
"""Modules of the stage on each host."""

_PIECE, _MAX_UNSENT, _BEAT_SECONDS, _LEAVING_SECONDS = 1 << 20, 1 << 21, 1.0, 2.0


@dataclass(frozen=True)
class Checked:
    """Report of a host before anything is sent.

    Attributes:
        name: the host's own name.
        present: for each file, bits of the ranges that are there, in hexadecimal.
        needed: bytes that are missing.
        is_complete: True if all files are at their end.
        problems: what is wrong.
    """

    name: Text
    present: Annotated[list[Annotated[str, AtMost(1 << 18)]], AtMost(1 << 20)]
    needed: Id
    is_complete: bool
    problems: Annotated[list[Text], AtMost(16)]


@dataclass(frozen=True)
class Message:
    """Message of a stage. One of the fields is set."""

    checked: Checked | None = None
    failed: Text | None = None
    done: bool | None = None


@dataclass
class Share:
    """Parts and files of a host, and the state of their delivery.

    Attributes:
        host: name of the host.
        parts: its parts.
        files: path -> length and checksums of each of its files.
        sent: bytes that were sent to it.
        problem: why it does not have its files, or None.
        is_done: True if it has them.
    """

    host: str
    parts: list[int]
    files: dict[str, Written]
    sent: int = 0
    problem: str | None = None
    is_done: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of all of its files."""
        return sum(known.bytes for known in self.files.values())


def assign_parts(num_parts: int, num_hosts: int, copies: int = 1) -> list[list[int]]:
    """Return the parts of each host, in ascending order.

    Hosts have ranges of parts in their own order. If there are more hosts than parts, ranges of
    hosts have the same part. A further copy of a part is on the next host that lacks it.

    Args:
        num_parts: number of parts.
        num_hosts: number of hosts.
        copies: number of hosts that have each part.

    Raises:
        ValueError: there are fewer hosts than copies.

    Example:
        >>> assign_parts(4, 2), assign_parts(2, 4), assign_parts(3, 3, copies=2)
        ([[0, 1], [2, 3]], [[0], [0], [1], [1]], [[0, 2], [0, 1], [1, 2]])
    """
    if not 1 <= copies <= num_hosts:
        raise ValueError(f"copies must be 1 to {num_hosts}, the number of hosts (got {copies})")
    owners: list[list[int]] = [[] for _ in range(num_parts)]
    for host in range(num_hosts):
        first, end = (at * num_parts // num_hosts for at in (host, host + 1))
        for part in range(first, max(first + 1, end)):
            owners[part].append(host)
    for hosts in owners:
        while len(hosts) < copies:
            hosts.append((hosts[-1] + 1) % num_hosts)
    return [[p for p, hosts in enumerate(owners) if h in hosts] for h in range(num_hosts)]


def shares_of(folder: PartitionFolder, hosts: Sequence[str], copies: int) -> list[Share]:
    """Return the share of each host.

    Raises:
        FolderError: the folder has no checksums of ranges.
        ValueError: see `assign_parts`.
    """
    listed = folder.written()
    common = {path: known for path, known in listed.items() if not path.startswith("part-")}
    for name in (META_FILE, RANGES_FILE):
        if (folder.root / name).exists():
            common[name] = _written(folder, name)
    by_part: dict[str, dict[str, Written]] = {}
    for path, known in listed.items():
        by_part.setdefault(path.partition("/")[0], {})[path] = known
    shares = []
    for host, parts in zip(hosts, assign_parts(folder.num_parts, len(hosts), copies), strict=True):
        files = dict(common)
        for part in parts:
            files |= by_part.get(f"part-{part}", {})
        shares.append(Share(host, parts, files))
    return shares


def _written(folder: PartitionFolder, name: str) -> Written:
    checksums = RangeHash()
    with os.fdopen(folder.open_file(name), "rb") as file:
        while content := file.read(_PIECE):
            checksums.update(memoryview(content))
    return checksums.written()


class Distribution:
    """Delivery of shares of a folder to hosts. Close it in any case.

    Args:
        folder: the partition folder.
        shares: the share of each host.
        target: path of the folder on the hosts.
        command_of: function that returns the words that start the stage on a host.
        jobs: hosts that are sent to at a time.
        lease: seconds of silence after which a host counts as lost.
        note: called with a host and each line of its transport's standard error.
        progress: called with the step, bytes sent, and all bytes.
    """

    def __init__(
        self,
        folder: PartitionFolder,
        shares: Sequence[Share],
        target: str,
        command_of: Callable[[str], Sequence[str]],
        *,
        jobs: int,
        lease: float,
        note: Callable[[str, str], None],
        progress: Progress,
    ) -> None:
        self._folder, self._shares, self._target = folder, shares, target
        self._jobs, self._lease, self._note, self._progress = jobs, lease, note, progress
        self._beat_at = 0.0
        # Between bytes that a message has announced there are no signs of life.
        self._feeding: set[Session[Message]] = set()
        self._descriptors: dict[str, int] = {}
        self._sessions: list[Session[Message]] = []
        try:
            for share in shares:
                command = command_of(share.host)
                self._sessions.append(Session(share.host, command, Message, FOLDER_STAGE))
        except BaseException:
            self.close()
            raise

    def check(self) -> list[Checked]:
        """Return the reports of all hosts, which have room for what they lack.

        Raises:
            CheckError: some have not, or files are missing here.
            ProtocolError: a host sent what is no message.
        """
        problems = self._problems_here()
        for share, session in zip(self._shares, self._sessions, strict=True):
            files = {path: [known.bytes, known.ranges] for path, known in share.files.items()}
            request = {
                **{"target": self._target, "name": self._folder.fingerprint},
                **{"lease": self._lease, "range_bytes": RANGE_BYTES, "files": files},
            }
            session.send(check=request)
        self._progress("checking hosts", 0, 1)
        reports: dict[str, Checked] = {}

        def take(share: Share, message: Message) -> None:
            if message.checked is not None:
                reports[share.host] = report = message.checked
                if not report.problems and len(report.present) != len(share.files):
                    report.problems.append("it did not report all files")

        while any(s.host not in reports and s.problem is None for s in self._shares):
            self._round(take)
        for share in self._shares:
            mine = [share.problem] if share.problem else reports[share.host].problems
            problems += [printable(f"{share.host}: {problem}") for problem in mine]
        if problems:
            raise CheckError("\n".join(problems))
        return [reports[share.host] for share in self._shares]

    def _problems_here(self) -> list[str]:
        """Return a line per file that is missing here or has another length."""
        problems = []
        files = {path: known for share in self._shares for path, known in share.files.items()}
        for path, known in files.items():
            try:
                descriptor = self._folder.open_file(path)
            except FolderError as error:
                problems.append(printable(str(error)))
                continue
            size = os.fstat(descriptor).st_size
            os.close(descriptor)
            if size != known.bytes:
                text = f"'{self._folder.root / path}' has {size:,} bytes instead of {known.bytes:,}"
                problems.append(printable(text))
        return problems

    def send(self, reports: Sequence[Checked]) -> None:
        """Send to each host what it lacks. `problem` of a share states why a host has it not.

        Raises:
            FolderError: a file of the folder has changed meanwhile.
            ProtocolError: a host sent what is no message.
        """
        total = sum(report.needed for report in reports)
        waiting: list[tuple[Share, Session[Message], Iterator[bytes]]] = []
        for share, session, report in zip(self._shares, self._sessions, reports, strict=True):
            share.is_done = report.is_complete
            if not share.is_done:
                waiting.append((share, session, self._frames(share, session, report)))
        active: list[tuple[Share, Session[Message], Iterator[bytes]]] = []

        def take(share: Share, message: Message) -> None:
            share.is_done = share.is_done or message.done is True

        while active or waiting:
            while waiting and len(active) < self._jobs:
                active.append(waiting.pop(0))
                self._feeding.add(active[-1][1])
            for share, session, frames in active:
                while session.unsent_bytes < _MAX_UNSENT and share.problem is None:
                    if (frame := next(frames, None)) is None:
                        self._feeding.discard(session)
                        break
                    session.send_bytes(frame)
            self._round(take)
            self._progress("sending", sum(share.sent for share in self._shares), max(1, total))
            active = [e for e in active if not e[0].is_done and e[0].problem is None]

    def _frames(self, share: Share, session: Session[Message], report: Checked) -> Iterator[bytes]:
        """Yield what is sent to a host, in pieces. The messages around it are sent, too."""
        session.send(begin=True)
        for (path, known), bits in zip(share.files.items(), report.present, strict=True):
            present = int(bits, 16)
            for index in range(len(known.ranges)):
                if present >> index & 1:
                    continue
                first = index * RANGE_BYTES
                end = min(first + RANGE_BYTES, known.bytes)
                session.send(write=[path, first, end - first])
                for begin in range(first, end, _PIECE):
                    yield self._piece(path, begin, min(_PIECE, end - begin))
                    share.sent += min(_PIECE, end - begin)
        session.send(finish=True)

    def _piece(self, path: str, first: int, nbytes: int) -> bytes:
        if path not in self._descriptors:
            if len(self._descriptors) > 64:
                os.close(self._descriptors.pop(next(iter(self._descriptors))))
            self._descriptors[path] = self._folder.open_file(path)
        content = os.pread(self._descriptors[path], nbytes, first)
        if len(content) != nbytes:
            raise FolderError(f"'{self._folder.root / path}' has become shorter")
        return content

    def _round(self, take: Callable[[Share, Message], None]) -> None:
        """Serve all connections for a moment. Note hosts that fail."""
        states = [pair for pair in zip(self._shares, self._sessions, strict=True)
                  if pair[0].problem is None and not pair[0].is_done]  # fmt: skip
        is_due = time.monotonic() >= self._beat_at
        if is_due:
            self._beat_at = time.monotonic() + _BEAT_SECONDS
        by_session = {session: share for share, session in states}
        for session, message in receive_all([*by_session], self._note):
            share = by_session[session]
            if message.failed is not None:
                share.problem = message.failed
            take(share, message)
        for share, session in states:
            if is_due and session not in self._feeding:
                session.send()
            else:
                session.flush()
            silent = time.monotonic() - session.heard_at
            if share.problem is not None or share.is_done:
                continue
            if session.is_lost:
                share.problem = session.description_of_end()
            elif silent > self._lease:
                session.abandon()
                share.problem = f"has been silent for {silent:.0f} s"

    def close(self) -> None:
        """End the stages on all hosts, in bounded time."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
        for session in self._sessions:
            session.end()
        end = time.monotonic() + _LEAVING_SECONDS
        for session in self._sessions:
            session.close(max(0.0, end - time.monotonic()))
