#!/usr/bin/env python3
"""Measures khop, a floor and its peers on this machine, in turns; README.md has the method.

    python benchmarks/run.py                  # all suites but options and draws, in minutes
    python benchmarks/run.py --scale 1        # the record: a graph of the size of ogbn-products
    python benchmarks/run.py kernels small    # some suites
    python benchmarks/run.py --device cuda    # sampling, gathering and training on a GPU

Measures the khop of this checkout if its extension is built in `src/khop`, else the installed one;
a path in PYTHONPATH comes before both.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path


def prefer_checkout() -> None:
    """Let Python find this checkout's khop before an installed one, if its extension is built."""
    source = Path(__file__).resolve().parents[1] / "src"
    if any((source / "khop").glob("_native*.so")):
        installed = sysconfig.get_path("purelib")
        place = sys.path.index(installed) if installed in sys.path else len(sys.path)
        sys.path.insert(place, str(source))


if __name__ == "__main__":
    prefer_checkout()
    from khop_bench.command import main

    sys.exit(main())
