"""Partition folders with wrong contents and right checksums."""

import hashlib
import json

import numpy as np


def forge(root, change_meta=lambda meta: None, **arrays):
    """Change arrays and meta.json of a folder, and correct all checksums."""
    content = json.loads((root / "meta.json").read_text())
    content.pop("seal")
    for path, change in arrays.items():
        np.save(root / path, change(np.load(root / path)))
        data = (root / path).read_bytes()
        content["files"][path] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    change_meta(content)
    seal = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    (root / "meta.json").write_text(json.dumps({**content, "seal": seal}, indent=1))


def set_in(*keys, value):
    """Return a change of meta.json: content[keys[0]][keys[1]]... = value."""

    def change(meta):
        for key in keys[:-1]:
            meta = meta[key]
        meta[keys[-1]] = value

    return change
