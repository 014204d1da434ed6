"""Choice between mapping files and reading them past the page cache.

While files fit in memory, mapping them is the fastest way to read them. `choose_disk` decides by
sizes and free memory where a user leaves the choice to it. Imports no torch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from khop.cores import available_memory
from khop.data.direct_reads import NARROW_BYTES
from khop.data.direct_rows import DiskOptions
from khop.data.files import MOST_HELD
from khop.data.hot_rows import parse_bytes
from khop.log import EventLogger
from khop.storage.folder import PartitionFolder, edge_path
from khop.tables import human_bytes

_log = EventLogger(__name__)
_DEFAULT_MEMORY, _LEAST_MEMORY = 1 << 30, 64 << 20
_AUTO = "auto"


def choose_disk(
    folder: PartitionFolder,
    parts: Sequence[int],
    features: bool | Sequence[str] | Literal["auto"],
    structure: bool | Literal["auto"] = False,
    memory: int | str | None = None,
) -> DiskOptions | None:
    """Return what is read past the page cache. If nothing is, None.

    With 'auto', files are mapped if they fit in four fifths of the memory that is available: first
    the structure, then attributes from small to large.

    Args:
        folder: the folder.
        parts: the parts that are read on this machine.
        features: names of attributes. True: all with rows of 64 bytes or more.
        structure: whether the structure is read so.
        memory: bytes of this trainer. If None, 1 GB. With 'auto', half of the memory that mapped
            files leave, divided by the trainers of this machine ($LOCAL_WORLD_SIZE).

    Raises:
        ValueError: a name that is no attribute, or no amount of memory.
    """
    types = [t for level in ("node", "edge") for t in folder.meta.types(level)]
    widths = [(name, attr.row_bytes) for t in types for name, attr in t.attrs.items()]
    is_automatic = _AUTO in (features, structure)
    nbytes = None if memory is None else parse_bytes(memory)
    if is_automatic:
        available = available_memory()
        left = int(MOST_HELD * available) if available is not None else None
        sizes = _bytes_of_attributes(folder, parts)
        of_structure = _bytes_of_structure(folder, parts)
        if structure == _AUTO:
            structure = left is not None and of_structure > left
        mapped = 0 if structure else of_structure
        if features == _AUTO:
            features = []
            for name in sorted(sizes, key=lambda name: sizes[name]):
                if left is not None and mapped + sizes[name] > left:
                    features.append(name)
                else:
                    mapped += sizes[name]
        if nbytes is None and left is not None:
            trainers = max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
            nbytes = max((left - mapped) // (2 * trainers), _LEAST_MEMORY)
    chosen = DiskOptions.of(
        widths, features, _DEFAULT_MEMORY if nbytes is None else nbytes, bool(structure)
    )
    if is_automatic:
        _report(folder, chosen, available, sum(sizes.values()), of_structure)
    return chosen


def _report(
    folder: PartitionFolder,
    chosen: DiskOptions | None,
    available: int | None,
    of_attributes: int,
    of_structure: int,
) -> None:
    text = "all files of"
    if chosen is not None:
        names = [*chosen.names, *(["the structure"] if chosen.structure else [])]
        memory = human_bytes(chosen.cache_memory)
        text = f"{', '.join(names)} read past the page cache with {memory}, other files of"
    memory = "an unknown amount of" if available is None else human_bytes(available)
    _log.info(
        "disk-chosen",
        f"{text} '{folder.root}' mapped: attributes have {human_bytes(of_attributes)}, the "
        f"structure {human_bytes(of_structure)}, and {memory} memory is available",
        attributes=[] if chosen is None else list(chosen.names),
        structure=chosen is not None and chosen.structure,
        cache_memory=0 if chosen is None else chosen.cache_memory,
        attribute_bytes=of_attributes,
        structure_bytes=of_structure,
        available_bytes=available,
    )


def _bytes_of_attributes(folder: PartitionFolder, parts: Sequence[int]) -> dict[str, int]:
    """Return the bytes of each attribute of the folder that may be read past the page cache."""
    sizes: dict[str, int] = {}
    for level in ("node", "edge"):
        for described in folder.meta.types(level):
            rows = sum(described.bounds[part + 1] - described.bounds[part] for part in parts)
            for name, attr in described.attrs.items():
                if attr.row_bytes >= NARROW_BYTES or name in sizes:
                    sizes[name] = sizes.get(name, 0) + rows * attr.row_bytes
    return sizes


def _bytes_of_structure(folder: PartitionFolder, parts: Sequence[int]) -> int:
    return sum(
        (folder.root / edge_path(part, edge_type.name, name)).stat().st_size
        for part in parts
        for edge_type in folder.meta.edge_types
        for name in edge_type.columns
    )
