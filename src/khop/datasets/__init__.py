"""Graphs for examples, tests and benchmarks: one real and bundled, the others synthetic.

Usable in any process that has torch and PyG.
"""

from khop.datasets.debian_hetero import DebianPackagesHetero
from khop.datasets.debian_packages import DebianPackages
from khop.datasets.powerlaw import PowerLaw
from khop.datasets.powerlaw_hetero import PowerLawHetero

__all__ = ["DebianPackages", "DebianPackagesHetero", "PowerLaw", "PowerLawHetero"]
