"""Content of `meta.json`: format version, flags, description and list of files, checked when read.

Used by any process.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from khop._version import __version__
from khop.codec import AtMost, Between, from_json, to_json
from khop.data.arrays import MAX_COUNT
from khop.errors import ProtocolError
from khop.log import shown
from khop.storage.folder.checksums import Sha256, Written
from khop.storage.folder.meta import FolderMeta

FORMAT = "khop-partition"
META_FILE = "meta.json"

VERSION_ORIGINAL_ORDER = 1
"""Version of earlier folders whose rows are in the order of original ids."""
VERSION_OTHER_ORDER = 2
"""Version of earlier folders whose rows are in another order."""
VERSION_RANGES = 3
"""Version that is written: checksums are by ranges, attributes say how they are stored."""
VERSIONS = (VERSION_ORIGINAL_ORDER, VERSION_OTHER_ORDER, VERSION_RANGES)
"""Versions that are read."""

RESERVED_FLAGS = {
    "encodings": "attributes that are decoded when rows are read",
    "keys": "nodes with keys of their own in place of numbers",
    "segments": "parts of several segments",
}
"""{flag that only a later khop reads: feature of a folder that has the flag}."""

# Paths made of names from `safe_name`. Names have no dots, so no path leads out of the folder.
_PATH = re.compile(r"(?:[A-Za-z0-9_~%-]+/)*[A-Za-z0-9_~%-]+\.npy")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class UnreadableError(ValueError):
    """Error for a folder of another version of khop, which is not damaged. It states the reason."""


@dataclass(frozen=True)
class FileMeta:
    """Entry of meta.json for a file: its length in bytes, and its SHA-256 in hexadecimal."""

    bytes: Annotated[int, Between(1, MAX_COUNT)]
    sha256: Sha256

    def __post_init__(self) -> None:
        if _DIGEST.fullmatch(self.sha256) is None:
            raise ValueError(f"has checksum {shown(self.sha256)}, which is no SHA-256")


@dataclass(frozen=True)
class Listing:
    """Content of meta.json besides the description (`FolderMeta`).

    Attributes:
        files: path -> length and checksum of every file but meta.json and `RANGES_FILE`.
        flags: names of features that only some folders have. A reader refuses unknown ones.
        segments: for each part the folders that its rows lie in, oldest first. Today one per part.
        identity: fingerprint of the folder that this one was converted from. If None, the
            fingerprint is computed from meta.json.
    """

    files: Annotated[dict[str, FileMeta], AtMost(1 << 24)]
    flags: list[str] = field(default_factory=list)
    segments: list[list[str]] = field(default_factory=list)
    identity: Annotated[str, AtMost(16)] | None = None

    def __post_init__(self) -> None:
        for path in self.files:
            if _PATH.fullmatch(path) is None:
                raise ValueError(f"lists file {shown(path)}, which no folder has")


def content_of(
    meta: FolderMeta, files: Mapping[str, Written], identity: str | None = None
) -> dict[str, Any]:
    """Return the content of meta.json as values for JSON, without its own checksum.

    Args:
        meta: the description of the graph.
        files: path -> size and checksums of each file.
        identity: fingerprint of the folder that this one was converted from, or None.
    """
    listed = {path: FileMeta(known.bytes, known.sha256) for path, known in files.items()}
    listing = Listing(listed, [], _segments(meta.num_parts), identity)
    return {"format": FORMAT, "version": VERSION_RANGES, **to_json(meta), **to_json(listing)}


def sealed(content: Mapping[str, Any]) -> bytes:
    """Return the bytes of a meta.json: the content as JSON, and its checksum."""
    seal = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return json.dumps({**content, "seal": seal}, indent=1).encode()


def parse_content(content: dict[str, Any]) -> tuple[int, FolderMeta, Listing]:
    """Parse the content of meta.json, of any version: the inverse of `content_of`.

    Args:
        content: parsed JSON, which this function changes.

    Returns:
        Format version, description of the graph, and list of files.

    Raises:
        UnreadableError: the version, or a flag, is unknown to this khop.
        ProtocolError: the content is malformed.
    """
    version = content.pop("version", None)
    wrote = shown(content.get("khop_version"))
    if type(version) is not int or version not in VERSIONS:
        raise UnreadableError(
            f"has format version {shown(version)}, but this khop ({__version__}) reads versions "
            f"{VERSIONS[0]} to {VERSIONS[-1]}: install the khop that wrote it ({wrote}), or "
            "partition the graph again"
        )
    for flag in from_json(list[str], content.get("flags", []), "'flags'"):
        meaning = RESERVED_FLAGS.get(flag, "unknown to this khop")
        raise UnreadableError(
            f"has flag {shown(flag)} ({meaning}), which this khop ({__version__}) does not read: "
            f"install the khop that wrote it ({wrote}), or a later one"
        )
    names = [f.name for f in fields(Listing) if f.name in content]
    listing = from_json(Listing, {name: content.pop(name) for name in names}, "the files")
    if version < VERSION_RANGES:
        _add_row_formats(content)
    content.pop("format", None)
    meta = from_json(FolderMeta, content, "the description")
    known = [] if version < VERSION_RANGES else _segments(meta.num_parts)
    for part, segments in enumerate(listing.segments):
        if known[part : part + 1] != [segments]:
            raise ProtocolError(
                f"part {part} has segments {shown(segments)}, which only a folder with flag "
                f"'segments' may have: this khop ({__version__}) reads parts of one segment"
            )
    if len(listing.segments) != len(known):
        raise ProtocolError(f"it has segments of {len(listing.segments)} parts of {len(known)}")
    return version, meta, listing


def _segments(num_parts: int) -> list[list[str]]:
    return [[f"part-{part}"] for part in range(num_parts)]


def _add_row_formats(content: Mapping[str, Any]) -> None:
    """Rewrite attributes' descriptions of a meta.json of version 1 or 2 as version 3 has them."""
    for key in ("node_types", "edge_types"):
        for described in content[key] if isinstance(content.get(key), list) else ():
            attrs: Any = described.get("attrs") if isinstance(described, dict) else None
            for name, attr in attrs.items() if isinstance(attrs, dict) else ():
                if isinstance(attr, dict) and attr.keys() == {"dtype", "shape"}:
                    row = [attr["dtype"], attr["shape"]]
                    attrs[name] = {"stored": row, "delivered": row}
