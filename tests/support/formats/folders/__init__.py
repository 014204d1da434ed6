"""Folders of earlier format versions, as khop 0.2 wrote them (`versions-1-and-2.tar.gz`)."""

import tarfile
from pathlib import Path


def earlier_folders(to: Path) -> dict[int, Path]:
    """Unpack the folders of earlier versions into `to`. Return {format version: path}.

    Version 1: 40 nodes with x, y and train_mask, 120 edges with edge_attr and weights edge_weight.
    Version 2: papers (x in bfloat16, times year) and authors, order 'degree', original ids of
    neighbours. Both have two parts by `RandomPartitioner` with seed 3.
    """
    with tarfile.open(Path(__file__).with_name("versions-1-and-2.tar.gz")) as archive:
        archive.extractall(to, filter="data")
    return {version: to / f"version-{version}" for version in (1, 2)}
