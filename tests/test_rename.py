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
