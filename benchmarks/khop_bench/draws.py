"""Suite `draws`: cost of one draw, by the degree of its row.

Rows of one degree each, fan-out 10. Draws are uniform, or by log-normal weights with and without
replacement. At scale 1 (16.8 M edges) the tables are too large for the caches.
"""

from __future__ import annotations

import time

import numpy as np

from khop import _native
from khop_bench.bench import Bench
from khop_bench.measure import Case, Row, Turn

_DEGREES = tuple(2 * 10**i for i in range(1, 7))
_EDGES = 1 << 24
_FANOUT = 10
_ROWS = 20_000
# Name -> with replacement, by weight.
_KINDS = {
    "uniform": (False, False),
    "by weight": (False, True),
    "by weight, with replacement": (True, True),
}


def run(bench: Bench) -> list[Row]:
    """Measure the suite `draws`."""
    num_edges = max(1024, round(_EDGES * min(1.0, bench.settings.scale)))
    rows = []
    for degree in _DEGREES:
        if degree <= num_edges:
            cases = _cases(degree, num_edges // degree)
            group = f"degree {degree:,}"
            rows += bench.take_turns(group, cases, work_unit="draw")
    return rows


def _cases(degree: int, num_rows: int) -> list[Case]:
    rng = np.random.default_rng(degree)
    indptr = np.arange(num_rows + 1, dtype=np.int64) * degree
    sums, guide = _native.weight_table(indptr, rng.lognormal(0, 2, num_rows * degree))
    indices = rng.integers(0, num_rows, num_rows * degree).astype(np.int32)
    csr = _native.Csr(indptr, indices, weight_sums=sums, weight_guide=guide)
    ids = rng.integers(0, num_rows, _ROWS)

    def case(name: str, replace: bool, weighted: bool) -> Case:
        def turn(turn_number: int) -> Turn:
            options = _native.HopOptions(_FANOUT, replace, False, turn_number, weighted)
            begin = time.perf_counter()
            counts, _, _ = _native.sample_rows(csr, ids, options)
            return Turn(time.perf_counter() - begin, float(counts.sum()))

        return Case(name, turn)

    return [case(name, *flags) for name, flags in _KINDS.items()]
