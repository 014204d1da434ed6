"""Sampling methods: what a loader takes where it takes `num_neighbors`. A method is a module here.

`base` has the registry, a method's description as it travels, and the two kinds of methods: those
that the kernels draw hop by hop, and programs, which ask the graph themselves (`access`). `step` is
the simplest way to a program, for users; `modules` takes users' classes to other processes.
Imports no torch.
"""

from khop.sampler.methods.access import GraphAccess
from khop.sampler.methods.base import (
    METHODS,
    MethodSpec,
    ProgramMethod,
    SamplingMethod,
    register,
)
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
