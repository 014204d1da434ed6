"""Program that cuts a graph by METIS, in a process of its own. Imports no torch.

`khop.partition.methods.metis` starts it. Arguments: a folder with the graph's arrays, the number of
parts, the imbalance in thousandths, a seed, and 1 for recursive bisection, else 0.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np


def main() -> None:
    """Read the graph from the folder, cut it by METIS, and write the parts to labels.npy there."""
    import pymetis

    folder, (num_parts, ufactor, seed, recursive) = sys.argv[1], map(int, sys.argv[2:])

    def load(name: str) -> Any:
        # METIS is built for 64-bit integers, which are used in place.
        return np.load(Path(folder, f"{name}.npy"), allow_pickle=False).astype(np.int64)

    options = pymetis.Options(ufactor=ufactor, seed=seed, niter=20, ncuts=3)
    indptr, indices = load("indptr"), load("indices")
    graph: dict[str, Any] = {"xadj": indptr, "adjncy": indices}
    if hasattr(pymetis, "CSRAdjacency"):  # since 2025
        graph = {"adjacency": pymetis.CSRAdjacency(adj_starts=indptr, adjacent=indices)}
    _, labels = pymetis.part_graph(
        num_parts,
        **graph,
        vweights=load("nodes"),
        eweights=load("edges"),
        recursive=bool(recursive),
        options=options,
    )
    np.save(Path(folder, "labels.npy"), np.asarray(labels, np.int32))
