"""Targets of the fuzzer: partition requests, replies and folders. See `fuzz.targets`."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from khop import _native
from khop.channel.message import pack, unpack
from khop.distributed.rpc.partition_handler import RequestHandler
from khop.distributed.rpc.protocol import PROTOCOL, describe_error, rebuild_error
from khop.errors import FolderError, ProtocolError
from khop.sampler.replies import check_drawn, check_found, check_rows
from khop.sampler.requests import HopRequest, RowSet
from khop.storage.folder import AttrMeta, PartitionFolder
from khop.storage.folder.content import sealed
from khop.storage.folder.npy import parse_header
from khop.storage.part import Part
from support.fuzz.mutations import bytes_changed, json_changed, text_changed

Run = Callable[[Random], None]
_REPLY_BYTES = 4 << 20


def _requests(part: Part) -> list[tuple[dict[str, Any], list[Any]]]:
    """Return valid requests of each kind."""
    found: list[tuple[dict[str, Any], list[Any]]] = []
    common = {"protocol": PROTOCOL, "id": 5, "part": part.part}
    for relation, (_, row_type) in enumerate(part.relations):
        bounds = part.meta.node_types[row_type].bounds
        rows = np.arange(bounds[part.part], bounds[part.part + 1])[:6]
        trees, times = np.arange(len(rows), dtype=np.int32), np.zeros(len(rows), np.int64)
        base = {**common, "relation": relation, "rows": []}
        weighted = part.csrs[relation].has_weights
        hop = {"fanout": 2, "replace": False, "with_edge": True, "key": 3, "last": False}
        hop["weighted"] = weighted
        full = {**base, "op": "sample", "hop": hop}
        found.append((full, [rows]))
        narrowed = {**full, "rows": ["trees", "times", "excluded"], "hop": {**hop, "fanout": -1}}
        found.append((narrowed, [rows, trees, times, rows, rows]))
        found.append(({**base, "op": "induce", "with_edge": True}, [rows, np.arange(20)]))
        found.append(({**base, "op": "has_edges"}, [rows, np.arange(len(rows))]))
    for kind, types in (("node", part.meta.node_types), ("edge", part.meta.edge_types)):
        for index, described in enumerate(types):
            low, high = described.bounds[part.part : part.part + 2]
            names = ["id" if kind == "node" else "edge_id", *described.attrs]
            header = {**common, "op": "fetch", "element": kind, "index": index, "names": names}
            found.append((header, [np.arange(low, high)[:6]]))
    return found


_REFUSALS = {"ProtocolError", "IndexError", "ValueError", "KeyError"}


def handler(root: Path) -> Run:
    """Return a target that sends requests to a real part."""
    part = Part(PartitionFolder(root), 1)
    answer = RequestHandler(part, _REPLY_BYTES)
    requests = _requests(part)
    others = [a.tobytes() for _, arrays in requests for a in arrays]
    ids = [int(i) for _, arrays in requests for a in arrays for i in a]

    def array_changed(random: Random, array: Any) -> Any:
        kind = random.randrange(5)
        if kind == 0:
            return array.astype(random.choice(("int32", "int64", "uint8", "float64", "bool")))
        if kind == 1:
            return array.reshape(1, -1)
        if kind == 2:
            return np.array(random.choices(ids, k=random.randrange(9)), np.int64)
        changed = bytes_changed(random, array.tobytes(), others)
        return np.frombuffer(changed[: len(changed) // 8 * 8], np.int64)

    def run(random: Random) -> None:
        header, arrays = random.choice(requests)
        for _ in range(random.choice((0, 1, 1, 2, 3))):
            header = json_changed(random, header)
        arrays = list(arrays)
        for _ in range(random.choice((0, 1, 1, 2))):
            at = random.randrange(len(arrays) + 1)
            if at == len(arrays):
                arrays.append(np.array(random.choices(ids, k=4), np.int64))
            else:
                arrays[at] = array_changed(random, arrays[at])
        header = header if isinstance(header, dict) else {}
        reply, read = unpack(answer(pack(header, arrays)))
        if "error" in reply:
            assert reply["error"]["type"] in _REFUSALS, (reply, header)
            assert not read
        else:
            assert sum(a.nbytes for a in read) <= _REPLY_BYTES

    return run


def replies(root: Path) -> Run:
    """Return a target that reads another partition's replies, up to their use in kernels."""
    folder = PartitionFolder(root)
    here, there = Part(folder, 0), Part(folder, 1)
    answer = RequestHandler(there, _REPLY_BYTES)
    requests = _requests(there)
    valid = [(h, a, unpack(answer(pack(h, a)))[1]) for h, a in requests]
    others = [a.tobytes() for _, _, arrays in valid for a in arrays] + [b"\xff" * 64]
    meta = here.meta
    counts = [t.count for t in meta.node_types]
    subgraphs = {
        with_edge: _native.Subgraph(counts, here.relations, with_edge, False)
        for with_edge in (False, True)
    }

    def drawn(header: dict[str, Any], rows: Any, arrays: list[Any]) -> None:
        relation = header["relation"]
        source, destination = here.relations[relation]
        edges = meta.edge_types[relation].bounds[1:3]
        counts, neighbors, numbers = check_drawn(
            arrays, 1, len(rows), True, meta.node_types[source].count, edges
        )
        subgraph = subgraphs[True]
        subgraph.begin()
        subgraph.add_seeds(destination, np.unique(rows), None)
        if len(np.unique(rows)) == len(rows):
            owners = np.zeros(len(rows), np.int32)
            subgraph.merge(relation, owners, [(counts, neighbors, numbers)])
            subgraph.end_hop()
            ids = np.empty(subgraph.num_nodes(source), np.int64)
            subgraph.write_nodes(source, ids)
            _native.split_by_owner(ids, meta.node_types[source].bounds)

    def rows_of(header: dict[str, Any], ids: Any, arrays: list[Any]) -> None:
        described = meta.types(header["element"])[header["index"]]
        known = {**described.attrs, "id": AttrMeta.of("int64"), "edge_id": AttrMeta.of("int64")}
        attributes = {name: known[name] for name in header["names"]}
        for (array,) in check_rows(arrays, "partition 1", len(ids), attributes, described.count):
            out = np.empty((len(ids), *array.shape[1:]), array.dtype)
            _native.gather(array, None, out, np.arange(len(ids)))

    def run(random: Random) -> None:
        header, asked, arrays = random.choice(valid)
        said: Any = {"id": 5}
        if random.random() < 0.2:
            said = json_changed(random, {"id": 5, "error": describe_error(KeyError("a"))})
        frames = [bytes(f) for f in pack(said if isinstance(said, dict) else {}, arrays)]
        if random.random() < 0.2:
            frames[0] = text_changed(random, json.loads(frames[0]), others)
        for _ in range(random.choice((0, 1, 1, 2))):
            at = random.randrange(1, len(frames)) if len(frames) > 1 else 0
            size = len(frames[at])
            changed = bytes_changed(random, frames[at], others)
            frames[at] = changed[:size].ljust(size, b"\0") if at else changed
        try:
            reply, read = unpack(frames)
            if "error" in reply:
                error = rebuild_error(reply["error"], "a server")
                assert isinstance(error, Exception) and not isinstance(error, StopIteration)
                str(error)
            elif header["op"] == "has_edges":
                found = check_found(read, 1, len(asked[0]))
                assert len(asked[0][found]) == int(found.view(np.uint8).sum())
            elif header["op"] == "fetch":
                rows_of(header, asked[0], read)
            elif header["op"] == "sample":
                drawn(header, asked[0], read)
            else:
                edges = meta.edge_types[header["relation"]].bounds[1:3]
                check_drawn(read, 1, len(asked[0]), True, len(asked[1]), edges)
        except ProtocolError:
            return

    return run


def meta(root: Path) -> Run:
    """Return a target that reads meta.json, mostly with the right checksum of itself."""
    content = json.loads((root / "meta.json").read_text())
    content.pop("seal")
    content["files"] = dict(list(content["files"].items())[:3])
    content["node_types"], content["edge_types"] = (
        content["node_types"][:2],
        content["edge_types"][:2],
    )
    others = [b'"seal"', b"../x.npy", b"1e999"]

    def run(random: Random) -> None:
        changed = content
        for _ in range(random.choice((1, 1, 2, 3))):
            changed = json_changed(random, changed)
        text = sealed(changed) if isinstance(changed, dict) else json.dumps(changed).encode()
        if random.random() < 0.3:
            text = bytes_changed(random, text, others)
        folder = PartitionFolder.__new__(PartitionFolder)
        folder.root = root
        try:
            _, meta, listing = folder._parse(text)
        except FolderError:
            return
        for path in [*listing.files, *meta.files()]:
            assert ".." not in path and not path.startswith("/"), path

    return run


def npy(root: Path) -> Run:
    """Return a target that reads headers of .npy files."""
    files = sorted(root.rglob("*.npy"))[:40]
    valid = [(file.read_bytes()[:200], file.stat().st_size) for file in files]
    others = [head for head, _ in valid] + [b"'descr': '|O'", b"True", b"__import__('os')"]

    def run(random: Random) -> None:
        head, nbytes = random.choice(valid)
        head = bytes_changed(random, head, others)
        if random.random() < 0.1:
            nbytes = random.choice((0, 1, 128, 2**40))
        try:
            dtype, shape, begin = parse_header(head, nbytes)
        except ValueError:
            return
        assert begin + dtype.itemsize * int(np.prod(shape, dtype=object)) == nbytes
        assert dtype.kind in "biuf"

    return run


def folder(root: Path) -> Run:
    """Return a target: a folder with damaged files and right checksums is opened and read."""
    copy = Path(tempfile.mkdtemp(prefix="khop-fuzz-")) / "parts"
    shutil.copytree(root, copy)
    content = json.loads((copy / "meta.json").read_text())
    content.pop("seal")
    files = sorted(path for path in content["files"] if path.startswith(("part-1", "time", "map")))
    originals = {path: (copy / path).read_bytes() for path in files}
    others = list(originals.values())[:20]

    def use(opened: PartitionFolder) -> None:
        part = Part(opened, 1)
        for index, (source, row_type) in enumerate(part.relations):
            bounds = part.meta.node_types[row_type].bounds
            rows = np.arange(bounds[1], bounds[2])[:20]
            csr, count = part.csrs[index], part.meta.node_types[source].count
            times = np.full(len(rows), 2**62)
            trees = np.arange(len(rows), dtype=np.int32)
            for set_of_rows in (RowSet(rows), RowSet(rows, trees, times)):
                set_of_rows.draw(csr, HopRequest(3, False, True, 7, csr.has_weights, False))
                set_of_rows.draw(csr, HopRequest(-1, False, True, 7))
            RowSet(rows).induce(csr, np.arange(min(count, 30)), count, True)
            for name in ("edge_id", *part.meta.edge_types[index].attrs):
                part.edge_feature(index, name).gather(np.arange(3))
        for index, described in enumerate(part.meta.node_types):
            for name in ("id", *described.attrs):
                part.node_feature(index, name).gather(np.arange(2))
            opened.id_map(described.name)
            part.node_times(index)

    def run(random: Random) -> None:
        path = random.choice(files)
        data = originals[path]
        if random.random() < 0.8:  # values alone
            head = len(data) - len(data[128:])
            size = len(data)
            data = data[:head] + bytes_changed(random, data[head:], others)
            data = data[:size].ljust(size, b"\xff")
        else:
            data = bytes_changed(random, data, others)
        known = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        text = sealed({**content, "files": {**content["files"], path: known}})
        (copy / path).write_bytes(data)
        (copy / "meta.json").write_bytes(text)
        try:
            use(PartitionFolder(copy))
        except (FolderError, ValueError, IndexError):
            return
        except RuntimeError as error:
            assert "row pointers are corrupt" in str(error)
        finally:
            (copy / path).write_bytes(originals[path])

    return run
