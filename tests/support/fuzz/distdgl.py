"""Target of the fuzzer: a DistDGL folder with a damaged file. `fuzz.targets` describes targets."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np

from khop.errors import FolderError
from khop.partition import to_distdgl
from khop.partition.formats.distdgl.config import read_config
from khop.partition.formats.distdgl.importer import read_distdgl
from support.fuzz.mutations import bytes_changed, text_changed


def folder(root: Path) -> Callable[[Random], None]:
    """Return a target: a DistDGL folder with a damaged file, of which attributes are read, too."""
    copy = Path(tempfile.mkdtemp(prefix="khop-fuzz-")) / "dgl"
    to_distdgl(root, copy, graph_name="graph")
    config = json.loads((copy / "graph.json").read_text())
    originals = {path: path.read_bytes() for path in sorted(copy.rglob("*")) if path.is_file()}
    others = list(originals.values())[:20]

    def run(random: Random) -> None:
        path, data = random.choice(list(originals.items()))
        is_config = path.suffix == ".json"
        damaged = (
            text_changed(random, config, others)
            if is_config
            else bytes_changed(random, data, others)
        )
        path.write_bytes(damaged)
        try:
            source, owners = read_distdgl(read_config(copy), lambda what, done, total: None)
        except (FolderError, ValueError):
            return
        finally:
            path.unlink()  # the damaged one may still be mapped
            path.write_bytes(data)
        for edge_type, edges in source.edges.items():
            for node_type, ends in ((edge_type[0], edges.src), (edge_type[2], edges.dst)):
                assert (
                    not len(ends) or 0 <= ends.min() <= ends.max() < source.nodes[node_type].count
                )
        for node_type, node in source.nodes.items():
            assert len(owners[node_type]) == node.count
            for feature in node.attrs.values():
                feature.gather(np.arange(min(3, node.count)))

    return run
