"""Checks of a pack against the loader that reads it. Runs in trainers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from khop.distributed.dataset import DistDataset
from khop.distributed.graph import PartitionedGraph
from khop.loader.iteration.resume import LoaderFingerprint, differences
from khop.log import EventLogger
from khop.storage.pack import Pack

_log = EventLogger(__name__)


def checked_pack(
    path: str | os.PathLike[str], data: PartitionedGraph, identities: Sequence[LoaderFingerprint]
) -> Pack:
    """Open a pack, which must be of this loader.

    Args:
        path: path of the pack.
        data: the graph of the loader.
        identities: fingerprint of the loader.

    Raises:
        FolderError: there is no pack, or it is damaged.
        ValueError: the pack is of another loader or folder. The message has the differences.
    """
    dataset, own = packable(data, identities)
    pack = Pack(path)
    if pack.meta.folder != dataset.opened.fingerprint:
        raise ValueError(
            f"the pack '{pack.root}' is of another partition folder than {dataset.where}, or the "
            "folder has changed since: pack again"
        )
    wrong = [name for name in own if pack.meta.loader.get(name) != own[name]]
    if wrong:
        raise ValueError(
            f"the pack '{pack.root}' is of another loader, which had "
            f"{differences(pack.meta.loader, own, wrong)}. Make the loader as it was, pack again, "
            "or leave packed out"
        )
    return pack


def packable(
    data: PartitionedGraph, identities: Sequence[LoaderFingerprint]
) -> tuple[DistDataset, dict[str, Any]]:
    """Return a loader's graph and its fingerprint as a dictionary, if its epochs can be packed.

    Raises:
        ValueError: epochs are not known in advance, or rows are read by graph servers.
    """
    if not isinstance(data, DistDataset):
        raise ValueError("rows of graph servers are not packed: leave packed out")
    if len(identities) != 1 or identities[0].seed is None:
        raise ValueError(
            "only epochs that are known in advance are packed: make the loader with seed=, and "
            "without num_virtual_ranks"
        )
    return data, dict(vars(identities[0]))


def report_unpacked(pack: Pack, run_key: int) -> None:
    """Log a warning if an epoch is not in the pack."""
    meta = pack.meta
    if run_key not in meta.run_keys:
        first, end = meta.first_epoch, meta.first_epoch + len(meta.run_keys)
        _log.warning(
            "epoch-not-packed",
            f"the pack '{pack.root}' has epochs {first} to {end - 1}: this epoch's rows are read "
            "from the partition folder",
            pack=str(pack.root),
            epochs=[first, end],
        )
