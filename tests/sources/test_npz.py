"""Arrays of .npz files: equal to NumPy's, mapped or unpacked, and hostile ones refused."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays_of

from khop.data import Feature
from khop.data.files import mapped_file
from khop.sources import Scratch, read_source
from khop.sources.npz import Npz
from khop.typing import EDGE, NODE
from support.formats.sources import edges_of

SAVES = {"stored": np.savez, "deflated": np.savez_compressed}
ARRAYS = {
    "odd": np.arange(7, dtype=np.int8),
    "x": np.arange(600.0, dtype=np.float32).reshape(100, 6),
    "columns": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "none": np.empty((0, 3)),
    "one": np.array(5),
    "big": np.arange(9, dtype=">i8"),
    "mask": np.arange(1000) % 3 == 0,
}


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("folder", [None, "unpacked"])
def test_as_numpy_reads_it(tmp_path, save, folder):
    file = tmp_path / "a.npz"
    SAVES[save](file, **ARRAYS)
    for _ in range(2):  # what is unpacked is found again
        found = Npz(file, Scratch(folder and tmp_path / folder, memory=1 << 15))
        assert set(found) == set(ARRAYS)
        for name, array in ARRAYS.items():
            assert found[name].dtype == array.dtype.newbyteorder("=")
            assert found[name].shape == array.shape
            assert found[name].tolist() == array.tolist()
    is_mapped = {name for name in ARRAYS if mapped_file(found[name]) is not None}
    assert is_mapped == (set() if save == "deflated" and not folder else {*ARRAYS} - {"none"}) - (
        set() if folder else {"big"}
    )


@settings(max_examples=30, deadline=None)
@given(
    arrays_of.arrays(
        st.sampled_from(["int8", "int16", "int64", "float16", "float64", "bool"]),
        arrays_of.array_shapes(min_dims=1, max_dims=3, max_side=5),
    ),
    st.integers(0, 3),
    st.sampled_from(["stored", "deflated"]),
)
def test_rows_at_any_address(tmp_path_factory, values, before, save):
    """Members begin at any byte: kernels get copies at whole addresses, or bytes."""
    file = tmp_path_factory.mktemp("npz") / "a.npz"
    SAVES[save](file, **{"b" * (before + 1): np.zeros(before, np.int8), "x": values})
    feature = Feature(Npz(file, Scratch())["x"])
    rows = np.random.default_rng(before).integers(len(values), size=9)
    assert feature.gather(rows).tobytes() == values[rows].tobytes()


def test_a_graph_in_one_file(tmp_path):
    edges = np.random.default_rng(0).integers(20, size=(2, 90))
    content = {"edge_index": edges, "x": np.eye(20), "edge_w": np.arange(90), "num_nodes": 20}
    np.savez_compressed(tmp_path / "g.npz", **content)
    source = read_source(str(tmp_path / "g.npz"), scratch=Scratch(tmp_path / "unpacked", 1 << 15))
    assert edges_of(source) == edges.tolist()
    assert source.nodes[NODE].attrs["x"].array.tolist() == np.eye(20).tolist()
    assert source.edges[EDGE].attrs["edge_w"].array.tolist() == [*range(90)]
    del content["edge_index"]
    np.savez(tmp_path / "g.npz", **content)
    with pytest.raises(ValueError, match="holds no array 'edge_index'"):
        read_source(str(tmp_path / "g.npz"))


def test_rows_stored_by_columns_are_refused(tmp_path):
    """They would have to be read as a whole."""
    np.savez(tmp_path / "g.npz", edge_index=[[0], [1]], x=np.asfortranarray(np.ones((2, 3))))
    with pytest.raises(ValueError, match=r"'x' of .* is stored by columns"):
        read_source(str(tmp_path / "g.npz"))


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def npy(shape, descr="<f4", content=b""):
    """The bytes of an .npy file with a header of any content."""
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}}}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


HOSTILE = {
    "no zip": b"PK\x03\x04 no archive",
    "objects": np.array([Bomb()]),
    "a pickle": pickle.dumps(Bomb()),
    "texts": np.array(["a", "b"]),
    "records": np.zeros(3, [("a", "i4"), ("b", "f8")]),
    "more rows than bytes": npy("(1000,)", content=bytes(40)),
    "fewer rows than bytes": npy("(3,)", content=bytes(40)),
    "2^70 rows": npy(f"({2**70},)", content=bytes(40)),
    "negative": npy("(-1, -10)", content=bytes(40)),
    "code": npy("__import__('os').mkdir('exploded')", content=bytes(40)),
    "a long header": b"\x93NUMPY\x02\x00" + (20_000).to_bytes(4, "little") + b" " * 20_000,
    "no header": bytes(40),
    "nothing": b"",
}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_arrays(tmp_path, monkeypatch, case, method):
    monkeypatch.chdir(tmp_path)
    content = HOSTILE[case]
    if isinstance(content, np.ndarray):
        saved = io.BytesIO()
        np.save(saved, content, allow_pickle=True)
        content = saved.getvalue()
    if case == "no zip":
        Path("a.npz").write_bytes(content)
    else:
        with zipfile.ZipFile("a.npz", "w", method) as archive:
            archive.writestr("x.npy", content)
    with pytest.raises(ValueError, match=r"a\.npz' is damaged, or no \.npz file") as raised:
        Npz(Path("a.npz"), Scratch("unpacked"))["x"]
    assert not any(word in str(raised.value) for word in ("pickle", "trust", "unsafe"))
    assert not Path("exploded").exists()


@pytest.mark.parametrize("names", [["../x.npy", "../x.npy"], ["x.npy", "x.npy"], ["run.sh"]])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_hostile_names(tmp_path, names):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for name in names:
            archive.writestr(name, npy("(1,)", content=bytes(4)))
    with pytest.raises(ValueError, match="is no array, or is twice"):
        Npz(tmp_path / "a.npz", Scratch())


def test_names_become_no_paths(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../x.npy", npy("(1,)", content=bytes(4)))
    found = Npz(tmp_path / "a.npz", Scratch(tmp_path / "in" / "unpacked"))
    assert found["../../x"].tolist() == [0]
    assert not (tmp_path / "x.npy").exists()


@pytest.mark.parametrize("save", SAVES)
def test_a_flipped_bit_is_found(tmp_path, save):
    """Stored arrays are read once for it, deflated ones as they are unpacked."""
    file = tmp_path / "a.npz"
    SAVES[save](file, x=np.arange(5000))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match="array 'x' cannot be read"):
        Npz(file, Scratch(tmp_path / "unpacked"))["x"]
    assert not [*(tmp_path / "unpacked").iterdir()]


@pytest.mark.parametrize("field", ["packed", "unpacked"])
def test_sizes_that_lie(tmp_path, field):
    """10 GB in a few bytes: refused before room is looked for."""
    content = npy(f"({10 * 2**28},)")
    packed = zlib.compressobj(wbits=-15)
    body = packed.compress(content) + packed.flush()
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content)
    whole = (tmp_path / "a.npz").read_bytes()
    size = struct.pack("<LL", len(body), len(content))
    lie = struct.pack("<LL", *((2**31, len(content)) if field == "packed" else (len(body), 2**31)))
    assert whole.count(size) == 2
    (tmp_path / "a.npz").write_bytes(whole.replace(size, lie))
    with pytest.raises(ValueError, match=r"longer than the file|cannot hold"):
        Npz(tmp_path / "a.npz", Scratch(tmp_path / "unpacked"))["x"]
