"""Tables and times come from files: damaged ones give other draws, never a read out of bounds."""

import subprocess
import sys

import numpy as np
import pytest

from khop import _native
from support import processes
from support.kernels import damaged_tables, hop_calls


def run(*arguments):
    return subprocess.run(
        [sys.executable, *arguments],
        env=processes.environment(),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.process
@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_read_out_of_bounds(seed):
    """In a child, with the arrays between pages that end the process when they are touched."""
    child = run("-m", damaged_tables.__name__, str(seed), "60")
    assert child.returncode == 0, child.stderr
    assert "nothing was read out of bounds" in child.stdout


@pytest.mark.process
def test_guards_work():
    """The pages around an array do end a process that reads them."""
    code = "from support.kernels import damaged_tables as d; import numpy as np, ctypes; "
    code += "a = d.guarded(np.arange(5), {}); "
    code += "print(ctypes.c_int64.from_address(a.ctypes.data + {}).value)"
    for at_end, inside, outside in ((True, 32, 40), (False, 0, -8)):
        assert run("-c", code.format(at_end, inside)).returncode == 0
        assert run("-c", code.format(at_end, outside)).returncode < 0


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("sums", [[0] * 4, [5, 3, 2, 1], [2**64 - 1] * 4, [0, 0, 0, 2**64 - 1]])
@pytest.mark.parametrize("guide", [[0] * 4, [2**32 - 1] * 4, [3, 2, 1, 0]])
def test_tables_that_make_no_sense(sums, guide, replace):
    """Draws end, and are of the row."""
    graph = _native.Csr(
        np.array([0, 4]),
        np.arange(4),
        times=np.array([3, 2, 1, 0]),
        weight_sums=np.array(sums, np.uint64),
        weight_guide=np.array(guide, np.uint32),
    )
    node = np.zeros(1, np.int64)
    for time in (None, np.array([2])):
        for excluded in (None, (node, node + 1)):
            counts, drawn, _ = hop_calls.sample_rows(
                graph, node, 3, replace, 7, False, True, False, None, time, excluded
            )
            assert counts[0] <= 3
            assert set(drawn.tolist()) <= {0, 1, 2, 3}
