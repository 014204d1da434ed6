"""Reader and writer of DistDGL's folders in plain Python, after the sources of DGL.

`distdgl_1_1_3.zip` holds a folder that DGL 1.1.3 wrote (`partition_graph`, random, three parts,
`save_tensors` of its mapping), and the graph it was made of, `original.npz`.
"""

import json
import struct
import zipfile
from pathlib import Path

import numpy as np

ZIP = Path(__file__).with_name("distdgl_1_1_3.zip")
KINDS = {"i": 0, "u": 1, "f": 2}


def unpack(place):
    """Unpack DGL's folder in `place`. Return it and {name: array} of the original graph."""
    with zipfile.ZipFile(ZIP) as opened:
        opened.extractall(place)
    return place / "shop", dict(np.load(place / "original.npz"))


# Bytes ------------------------------------------------------------------------------------------


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def array(values, bits=None):
    """Convert values to DGL's form. `bits` (kind, bits) is bfloat16's, which is uint16 in NumPy."""
    values = np.asarray(values)
    values = values.astype(np.uint8) if values.dtype == bool else values
    kind, size = bits or (KINDS[values.dtype.kind], values.itemsize * 8)
    head = struct.pack("<QQiiiBBH", 0xDD5E40F096B4A13F, 0, 1, 0, values.ndim, kind, size, 1)
    shape = struct.pack(f"<{values.ndim}qq", *values.shape, values.nbytes)
    return head + shape + values.tobytes()


def named(arrays):
    return struct.pack("<Q", len(arrays)) + b"".join(text(k) + array(v) for k, v in arrays.items())


def tensors(arrays):
    return struct.pack("<QQ", 0xDD5A9FBE3FA2443F, len(arrays)) + named(arrays)


def types():
    """Return DGL's form of one node type and one of its edge types, compressed by source."""
    ids = array([0, 1]) + array([0]) + array([0])
    return struct.pack("<QQqq", 0xDD3C5FFE20046ABF, 0xDD6CD31205DFF127, 1, 1) + ids + b"\0"


def matrix(form, count, src, dst):
    """Return edges in a sparse form, parallel ones apart, sorted as DGL sorts them."""
    if form == "coo":
        arrays = array(src) + array(dst) + array(np.empty(0, np.int64))
        return types() + struct.pack("<Qqq", 0xDD61FFD305DFF127, count, count) + arrays + b"\0\0"
    rows, others = (src, dst) if form == "csr" else (dst, src)
    order = sorted(range(len(rows)), key=lambda e: rows[e])
    pointers = [sum(row < r for row in rows) for r in range(count + 1)]
    arrays = array(pointers) + array(others[order]) + array(np.array(order, np.int64))
    return types() + struct.pack("<Qqq", 0xDD6CD31205DFF127, count, count) + arrays + b"\1"


def graph(count, src, dst, nodes, edges, forms=("coo",), label=None):
    codes = {"coo": 1, "csr": 2, "csc": 4}
    stored = sum(codes[form] for form in forms) + 2**32
    labels = named({} if label is None else {"label": label})
    head = struct.pack("<4Q", 0xDD2E4FF046B4A13F, 2, 2, 1).ljust(4096, b"\xaa")
    first = len(head) + 8 + len(labels)
    relation = struct.pack("<QQqq", 1, 0xDD2E60F0F6B4A127, stored, 7 + 2**32)
    relation += b"".join(matrix(f, count, src, dst) for f in ("coo", "csr", "csc") if f in forms)
    content = struct.pack("<Q", 0xDD589FBE35224ABF) + types() + relation
    content += struct.pack("<Qq", 1, count)
    content += b"".join(struct.pack("<Q", 1) + named(arrays) for arrays in (nodes, edges))
    content += b"".join(struct.pack("<Q", 1) + text(name) for name in ("_N", "_E"))
    tail = struct.pack("<4Q", 16, 1, first, 16)
    return head + struct.pack("<Q", first) + labels + content + tail


# Folders ----------------------------------------------------------------------------------------


def write(root, nodes, edges, owners, num_parts, forms=("coo",), with_ids=True, halo=True):
    """Write a graph as DistDGL would.

    Args:
        root: the folder.
        nodes: {type: (count, {name: rows})}, types in DGL's order.
        edges: {(type, relation, type): ([2, n] ends, {name: rows})}.
        owners: {type: part of each node}.
        num_parts: number of parts.
        forms: sparse formats of graph.dgl.
        with_ids: also write orig_nids.dgl and orig_eids.dgl.
        halo: parts also have an edge of another part that begins at one of their nodes.

    Returns:
        {type: original id of each of DistDGL's ids}, of nodes and edges.
    """
    single = list(nodes) == ["_N"]
    of_part = [
        {t: [i for i in range(n) if owners[t][i] == p] for t, (n, _) in nodes.items()}
        for p in range(num_parts)
    ]
    edges_of = [
        {
            t: [e for e in range(ends.shape[1]) if owners[t[2]][ends[1, e]] == p]
            for t, (ends, _) in edges.items()
        }
        for p in range(num_parts)
    ]
    node_id, node_map = _numbered(of_part, nodes)
    edge_id, edge_map = _numbered(edges_of, edges)
    config = {
        "graph_name": "toy",
        "num_nodes": len(node_id),
        "num_edges": len(edge_id),
        "num_parts": num_parts,
        "node_map": node_map,
        "edge_map": {":".join(t): ranges for t, ranges in edge_map.items()},
        "ntypes": {t: i for i, t in enumerate(nodes)},
        "etypes": {":".join(t): i for i, t in enumerate(edges)},
    }
    root.mkdir()
    for p in range(num_parts):
        part = root / f"part{p}"
        part.mkdir()
        known = [(t, i) for t in nodes for i in of_part[p][t]]
        chosen = [(t, e) for t in edges for e in edges_of[p][t]]
        if halo:
            chosen += [
                (t, e)
                for t, (ends, _) in edges.items()
                for e in range(ends.shape[1])
                if owners[t[0]][ends[0, e]] == p != owners[t[2]][ends[1, e]]
            ][:1]
        ends = [((t[0], edges[t][0][0, e]), (t[2], edges[t][0][1, e])) for t, e in chosen]
        for pair in ends:
            known += [node for node in pair if node not in known]
        place = {node: n for n, node in enumerate(known)}
        src, dst = (np.array([place[pair[s]] for pair in ends], np.int64) for s in (0, 1))
        node_data = {
            "_ID": [node_id[n] for n in known],
            "inner_node": [owners[t][i] == p for t, i in known],
        }
        edge_data = {
            "_ID": [edge_id[e] for e in chosen],
            "inner_edge": [owners[t[2]][edges[t][0][1, e]] == p for t, e in chosen],
        }
        if not single:
            edge_data["_TYPE"] = [list(edges).index(t) for t, _ in chosen]
        written = graph(
            len(known),
            src,
            dst,
            {k: np.array(v, np.uint8 if k[0] == "i" else np.int64) for k, v in node_data.items()},
            {k: np.array(v, np.uint8 if k[0] == "i" else np.int64) for k, v in edge_data.items()},
            forms,
            label=np.arange(3.0),
        )
        (part / "graph.dgl").write_bytes(written)
        for file, content, held in (("node", nodes, of_part[p]), ("edge", edges, edges_of[p])):
            names = {t: t if file == "node" else ":".join(t) for t in content}
            attrs = {
                f"{names[t]}/{name}": rows[held[t]]
                for t, (_, by_name) in content.items()
                for name, rows in by_name.items()
            }
            (part / f"{file}_feat.dgl").write_bytes(tensors(attrs))
            ids = {names[t]: np.array(held[t], np.int64) for t in content}
            if with_ids:
                (part / f"orig_{file[0]}ids.dgl").write_bytes(tensors(ids))
        config[f"part-{p}"] = {
            "node_feats": f"part{p}/node_feat.dgl",
            "edge_feats": f"part{p}/edge_feat.dgl",
            "part_graph": f"part{p}/graph.dgl",
        }
    (root / "toy.json").write_text(json.dumps(config))
    return (
        {t: [i for held in of_part for i in held[t]] for t in nodes},
        {t: [e for held in edges_of for e in held[t]] for t in edges},
    )


def _numbered(held, types):
    """Return {(type, original id): DistDGL's id}, and {type: [first, end] of each part}."""
    ids, ranges = {}, {t: [] for t in types}
    for of_type in held:
        for t in types:
            first = len(ids)
            ids |= {(t, i): first + n for n, i in enumerate(of_type[t])}
            ranges[t].append([first, len(ids)])
    return ids, ranges
