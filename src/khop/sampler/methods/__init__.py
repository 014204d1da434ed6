"""Sampling methods, which loaders take as `num_neighbors`.

`base` has the registry, the specification that is sent to other processes, and the base classes.
The kernels draw some methods hop by hop. The others are *programs*: they request neighbours
themselves by `access`, with arithmetic in `entries`. `step` is the simplest base of users'
programs. `modules` imports users' methods in other processes. Imports no torch.
"""

from khop.sampler.methods.access import GraphAccess
from khop.sampler.methods.base import METHODS, MethodSpec, ProgramMethod, SamplingMethod, register
from khop.sampler.methods.fastgcn import FastGcn
from khop.sampler.methods.hgt import Hgt
from khop.sampler.methods.labor import Labor
from khop.sampler.methods.ladies import Ladies, PoissonLadies
from khop.sampler.methods.neighbor import NEIGHBOR, NeighborSampling, as_method
from khop.sampler.methods.pinsage import PinSage
from khop.sampler.methods.ppr import Ppr
from khop.sampler.methods.ripple import RippleWalk
from khop.sampler.methods.saint import SaintEdges, SaintNodes, SaintWalks
from khop.sampler.methods.step import StepMethod
from khop.sampler.methods.transits import Sample, Transits

__all__ = [
    "METHODS",
    "NEIGHBOR",
    "FastGcn",
    "GraphAccess",
    "Hgt",
    "Labor",
    "Ladies",
    "MethodSpec",
    "NeighborSampling",
    "PinSage",
    "PoissonLadies",
    "Ppr",
    "ProgramMethod",
    "RippleWalk",
    "SaintEdges",
    "SaintNodes",
    "SaintWalks",
    "Sample",
    "SamplingMethod",
    "StepMethod",
    "Transits",
    "as_method",
    "register",
]
