#!/usr/bin/env python3
"""Measure khop, a floor and its peers on this machine, in turns. README.md describes the method.

    python benchmarks/run.py
    python benchmarks/run.py --scale 1        # a graph of the size of ogbn-products
    python benchmarks/run.py kernels small    # some suites
    python benchmarks/run.py --device cuda    # a GPU

The program measures the khop of this checkout if its extension is built in `src/khop`. Otherwise,
it measures the installed khop. A path in PYTHONPATH comes before both.
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
        position = sys.path.index(installed) if installed in sys.path else len(sys.path)
        sys.path.insert(position, str(source))


if __name__ == "__main__":
    prefer_checkout()
    from khop_bench.command import main

    sys.exit(main())
