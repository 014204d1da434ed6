"""Reader of IGB's data sets (Illinois Graph Benchmark), homogeneous and heterogeneous.

    SIZE/processed/paper/node_feat.npy, node_label_19.npy, node_label_2K.npy
    SIZE/processed/author/node_feat.npy, and so on for each node type
    SIZE/processed/paper__cites__paper/edge_index.npy    [E, 2], and so on for each relation

SIZE is tiny, small, medium, large or full. In large and full, features and labels of papers and
authors are bare numbers without a header of NumPy. Their shape follows from the number of nodes,
and is compared with the file's size. Relations have one direction, and `--undirected` adds the
other. Masks are as in IGB's own loader: the first 60 % of labelled papers are for training, the
next 20 % for validation, the rest for tests. IGB's loader also drops and adds self loops. This
reader keeps the edges that are stored. Arrays are mapped. Imports no torch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from khop.data.files import check_regular, load_npy
from khop.partition.source import GraphSource, NodeSource
from khop.sources.base import Source
from khop.sources.columns import attribute, edges_by_folder, label_attribute, mask_between
from khop.sources.scratch import Scratch
from khop.typing import EDGE, NODE, Array

_PAPER, _CITES = "paper", "paper__cites__paper"
_WIDTH = 1024
_BARE = np.dtype(np.float32)

# Numbers of nodes where files have no header, as IGB's loader has them.
COUNTS = {
    "large": {"paper": 100_000_000, "author": 116_959_896},
    "full": {"paper": 269_346_174, "author": 277_220_883},
}
# Number of papers with one of the 19 labels, where other papers have none.
LABELLED = {"full": 227_130_858}
_LABELS = {"node_label_19": "y", "node_label_2K": "y_2K"}


class Igb(Source):
    """Reader of IGB's data sets, by name or as folders."""

    names = ("igb:SIZE", "igbh:SIZE")
    paths = "a folder with `processed/`"
    about = (
        "IGB's papers alone, or all its types (`igbh`), in `--root`; *large* and *full* have "
        "arrays without a header, whose shape is known"
    )
    unpacked = "labels, masks"

    def matches(self, spec: str) -> bool:
        """Return True if `spec` is 'igb:SIZE', 'igbh:SIZE', or the folder of a data set."""
        return spec.startswith(("igb:", "igbh:")) or _is_igb(Path(spec))

    def read(self, spec: str, scratch: Scratch, root: Path) -> GraphSource:
        """Read papers and their citations (`igb:`), or all types (`igbh:`, or a path).

        The name of the folder is taken as SIZE.
        """
        prefix, _, size = spec.partition(":")
        folder = root / size if prefix in ("igb", "igbh") else Path(spec)
        processed = folder / "processed"
        if not _is_igb(folder):
            raise FileNotFoundError(
                f"'{folder}' is no data set of IGB: it has no processed/{_CITES}"
            )
        pattern = _CITES if prefix == "igb" else "*__*__*"
        edges = edges_by_folder(processed, pattern, "__", by_rows=True)
        if prefix == "igb" or (prefix != "igbh" and len(edges) == 1):
            papers = _nodes(processed, _PAPER, folder.name, scratch)
            return GraphSource({NODE: papers}, {EDGE: edges[_PAPER, "cites", _PAPER]})
        names = dict.fromkeys(name for edge_type in edges for name in edge_type[::2])
        nodes = {name: _nodes(processed, name, folder.name, scratch) for name in names}
        return GraphSource(nodes, edges, heterogeneous=True)


def _is_igb(folder: Path) -> bool:
    return (folder / "processed" / _CITES).is_dir()


def _nodes(processed: Path, name: str, size: str, scratch: Scratch) -> NodeSource:
    file = processed / name / "node_feat.npy"
    known = COUNTS.get(size, {}).get(name)
    node = NodeSource(0, {"x": attribute(_array(file, known, (_WIDTH,)), f"'{file}'")})
    node.count = node.attrs["x"].num_rows
    for stem, attr in _LABELS.items():
        labels = processed / name / f"{stem}.npy"
        if labels.exists():
            values = _array(labels, node.count, ())
            node.attrs[attr] = label_attribute(values, labels, scratch)
    if name == _PAPER:
        labelled = min(LABELLED.get(size, node.count), node.count)
        train, val = int(labelled * 0.6), int(labelled * 0.2)
        bounds = {"train": (0, train), "val": (train, train + val), "test": (train + val, labelled)}
        for split, (first, last) in bounds.items():
            mask = mask_between(first, last, node.count, scratch)
            node.attrs[f"{split}_mask"] = attribute(mask, f"mask of '{processed}'")
    return node


def _array(file: Path, count: int | None, row_shape: tuple[int, ...]) -> Array:
    """Map an .npy file, or a file of bare float32 numbers, as `count` rows of shape `row_shape`.

    If `count` is None, all rows of the file.
    """
    with check_regular(file).open("rb") as opened:
        if opened.read(6) == b"\x93NUMPY":
            return load_npy(file, "r")
    row = _BARE.itemsize * int(np.prod(row_shape, dtype=np.int64))
    size = file.stat().st_size
    rows = size // row if count is None else count
    if size == 0 or size != rows * row:
        raise ValueError(
            f"'{file}' has no header of NumPy, and {size:,} bytes: {rows:,} rows of {row} bytes "
            f"are {rows * row:,}"
        )
    return np.memmap(file, _BARE, "r", shape=(rows, *row_shape)).view(np.ndarray)
