"""Journals in work folders: the state of a run, from which a later run resumes.

A journal is replaced atomically. Its content is checked when it is read: names stay within the
folder, and numbers are in range. Imports no torch.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeVar

from khop.codec import Word, from_json, to_json
from khop.errors import ProtocolError
from khop.partition.out_of_core.stage import ENTRIES, Filled
from khop.private_folders import PrivateFolder
from khop.storage.folder import Written

_NAME = "journal.json"
_NEW = "journal.new"
AnyJournal = TypeVar("AnyJournal")
_ARRAY = re.compile(r"\d{1,19}-\d{1,19}\.npy")


@dataclass(frozen=True)
class KeptArray:
    """Entry of the journal for a saved array: its file, and the checksum of its values."""

    file: str
    checksum: Word

    def __post_init__(self) -> None:
        if not _ARRAY.fullmatch(self.file):
            raise ValueError(f"has a file '{self.file[:80]}', which no array has")


@dataclass(frozen=True)
class FilledStage:
    """Entry of the journal: the edge type that is being written (`key`), and its edges so far."""

    key: str
    filled: Filled


@dataclass
class Journal:
    """Progress of an interrupted partitioner, in a file from which a later run resumes.

    Attributes:
        format: version of the journal.
        writes: how often the journal has been written.
        arrays: saved arrays, by name.
        done: edge types that are complete.
        stage: the edge type that is being written, or None.
        complete, begun: {path: length and digests} of finished and unfinished output files.
    """

    format: Literal[4] = 4
    writes: Word = 0
    arrays: Annotated[dict[str, KeptArray], ENTRIES] = field(default_factory=dict)
    done: Annotated[list[str], ENTRIES] = field(default_factory=list)
    stage: FilledStage | None = None
    complete: Annotated[dict[str, Written], ENTRIES] = field(default_factory=dict)
    begun: Annotated[dict[str, Written], ENTRIES] = field(default_factory=dict)


def write_journal(folder: PrivateFolder, journal: object) -> None:
    """Replace the file with a run's state (a dataclass) in a folder, once it is on the disk."""
    with folder.create(_NEW) as opened:
        opened.write(json.dumps(to_json(journal)).encode())
        opened.flush()
        os.fsync(opened.fileno())
    folder.rename(_NEW, _NAME)
    os.fsync(folder.descriptor)


def read_journal(folder: PrivateFolder, cls: type[AnyJournal]) -> AnyJournal | None:
    """Read the journal in a folder as a dataclass `cls`. If it is missing or invalid, return None.

    Raises:
        SecurityError: the journal is a symbolic link, or another user's.
    """
    try:
        with folder.read(_NAME) as opened:
            return from_json(cls, json.loads(opened.read()), "the journal")
    except (FileNotFoundError, ProtocolError, ValueError, RecursionError):
        return None
