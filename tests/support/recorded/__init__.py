"""Recorded digests of batches of every mode, method and kind of folder.

A change that must not change batches leaves `batches.txt` as it is. `cases` makes the batches.
`python -m pytest tests/distributed/test_recorded.py --write-recorded` writes the file anew. A line
has the digest of all arrays of a case's batches, their numbers of nodes and edges, and the case's
name, which begins with its mode.
"""

import hashlib
import re
from pathlib import Path

import torch

_FILE = Path(__file__).with_name("batches.txt")
_LINE = re.compile(r"(\w{16} +\d+ +\d+)  (([\w-]+): .*)\n")


def summary(batches):
    """Return a digest of batches, and their numbers of nodes and edges.

    The digest is of names, dtypes, shapes and bytes of all arrays. `num_nodes` is left out, which
    in-memory loaders keep where the whole graph has it. The ids of the nodes are in it.
    """
    found, sizes = hashlib.sha256(), {"n_id": 0, "e_id": 0}
    for batch in batches:
        content = batch.to_dict() if hasattr(batch, "to_dict") else batch
        for name, value in _leaves("", content):
            found.update(name.encode() + _bytes(value))
            last = name.rpartition("/")[2]
            if last in sizes:
                sizes[last] += len(value)
    return f"{found.hexdigest()[:16]} {sizes['n_id']:5d} {sizes['e_id']:5d}"


def _leaves(path, value):
    """Yield (path, value) of each value that is no collection, in the order of names."""
    if isinstance(value, dict):
        for name in sorted(value, key=str):
            if name != "num_nodes":
                yield from _leaves(f"{path}/{name}", value[name])
    elif isinstance(value, (list, tuple)):
        for place, element in enumerate(value):
            yield from _leaves(f"{path}/{place}", element)
    else:
        yield path, value


def _bytes(value):
    if not isinstance(value, torch.Tensor):
        return repr(value).encode()
    about = f"{value.dtype} {tuple(value.shape)} ".encode()
    if value.dtype == torch.bfloat16:  # NumPy has none
        value = value.view(torch.int16)
    return about + value.numpy().tobytes()


def read(mode):
    """Return {name: summary} of the recorded cases of a mode."""
    return {name: m[1] for name, m in _lines().items() if m[3] == mode}


def write(mode, summaries):
    """Replace the recorded cases of a mode."""
    kept = {name: m[1] for name, m in _lines().items() if m[3] != mode}
    lines = sorted((kept | summaries).items())
    _FILE.write_text("".join(f"{summary}  {name}\n" for name, summary in lines))


def _lines():
    return {m[2]: m for m in _LINE.finditer(_FILE.read_text())}
