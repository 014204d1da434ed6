"""`python -m khop.rename`: a user's code with new spellings."""

import pytest

from khop.rename import main, renamed

CASES = {
    # What is imported from khop, by whatever name, and through partial.
    "from khop.distributed import DistNeighborLoader\nDistNeighborLoader(d, [2], random_seed=3)": (
        "from khop.distributed import DistNeighborLoader\nDistNeighborLoader(d, [2], seed=3)"
    ),
    "import khop.distributed as kd\nkd.DistNeighborLoader(d, [2], s, 8, True, random_seed=3)": (
        "import khop.distributed as kd\n"
        "kd.DistNeighborLoader(d, [2], s, batch_size=8, shuffle=True, seed=3)"
    ),
    "import khop\nkhop.distributed.DistLinkNeighborLoader(d, [2], 8, links)": (
        "import khop\n"
        "khop.distributed.DistLinkNeighborLoader(d, [2], batch_size=8, edge_label_index=links)"
    ),
    "from functools import partial as p\nfrom khop.distributed import DistClusterLoader as C\n"
    "p(C, d, None, 2, to_device='cuda')": (
        "from functools import partial as p\nfrom khop.distributed import DistClusterLoader as C\n"
        "p(C, d, None, batch_size=2, device='cuda')"
    ),
    "import khop as k\nk.partition(data, 'parts', num_parts=2)": (
        "import khop as k\nk.partition_graph(data, 'parts', num_parts=2)"
    ),
    # Partitioners: values have new names; what a variable holds is not known.
    "from khop.partition import RandomPartitioner as R\n"
    "R('f', 2, 9, edges, x, edge_assign_strategy='by_src')": (
        "from khop.partition import RandomPartitioner as R\n"
        "R('f', 2, 9, edges, node_feat=x, edge_dir=\"out\")"
    ),
    "from khop.partition import RandomPartitioner as R\n"
    "R.from_data(d, 'f', 2, 'by_dst')\nR.from_data(d, 'f', 2, way)": (
        "from khop.partition import RandomPartitioner as R\n"
        "R.from_data(d, 'f', 2, edge_dir=\"in\")\n"
        "R.from_data(d, 'f', 2, edge_assign_strategy=way)"
    ),
    # Characters that end lines of texts, but none of Python's.
    "from khop.distributed import DistNeighborLoader as D\ns = 'a\u2028b'\n\f\n"
    "D(d, random_seed=3)": (
        "from khop.distributed import DistNeighborLoader as D\ns = 'a\u2028b'\n\f\nD(d, seed=3)"
    ),
    # Values, several lines, and text that is not ASCII before them.
    "from khop.distributed import DistNeighborLoader as D\nD(\n    d, 'é', with_weight=False,\n"
    "    to_device=None)": (
        "from khop.distributed import DistNeighborLoader as D\nD(\n    d, 'é', weight_attr=None,\n"
        "    device=None)"
    ),
}
"""{before: after}."""

SAME = (
    "from khop.distributed import DistLinkNeighborLoader\nDistLinkNeighborLoader(d, [2], links)",
    "from khop.glt import DistNeighborLoader\nDistNeighborLoader(d, [2], random_seed=3)",
    "from other import DistNeighborLoader\nDistNeighborLoader(d, [2], s, 8, random_seed=3)",
    "from khop.distributed import DistNeighborLoader\nDistNeighborLoader(*a, **{'random_seed': 3})",
    "def f(random_seed):\n    return 'random_seed='",
    "from khop.distributed import DistNeighborLoader as D\nf'''é\n{D(d, random_seed=3)}'''",
    "from khop.partition import RandomPartitioner as R\nR('f', 2, 9, e, edge_assign_strategy=way)",
)
"""Code that stays as it is: of others, of GLT's names, and in texts."""


@pytest.mark.parametrize("before", CASES)
def test_changes(before):
    assert renamed(before) == CASES[before]
    assert renamed(CASES[before]) == CASES[before]


@pytest.mark.parametrize("code", SAME)
def test_other_code(code):
    assert renamed(code) == code


def test_command(tmp_path, capsys):
    """A difference by default; files are written on request; what is no Python is said."""
    before = next(iter(CASES))
    (tmp_path / "job.py").write_text(before)
    assert main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "-DistNeighborLoader(d, [2], random_seed=3)" in out
    assert (tmp_path / "job.py").read_text() == before
    (tmp_path / "broken.py").write_text("def")
    assert main(["--write", str(tmp_path)]) == 1
    assert "broken.py" in capsys.readouterr().err
    assert (tmp_path / "job.py").read_text() == CASES[before]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_bytes_of_files(tmp_path, encoding):
    """Line ends, marks of byte order and declared encodings stay as they are."""
    cookie = "" if "utf" in encoding else "# coding: latin-1\r\n"
    code = f"{cookie}import khop as k\r\nk.partition('é', 'parts', num_parts=2)\r\n"
    file = tmp_path / "job.py"
    file.write_bytes(code.encode(encoding))
    assert main(["--write", str(file)]) == 0
    assert file.read_bytes() == code.replace("partition(", "partition_graph(").encode(encoding)
