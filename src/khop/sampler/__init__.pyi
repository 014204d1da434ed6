from khop.sampler.drawing.hotness import (
    Seeds as Seeds,
    TypedRows as TypedRows,
    sample_prob as sample_prob,
)
from khop.sampler.link_spec import ExcludeSeedEdges as ExcludeSeedEdges
from khop.sampler.methods import (
    METHODS as METHODS,
    FastGcn as FastGcn,
    GraphAccess as GraphAccess,
    Hgt as Hgt,
    Labor as Labor,
    Ladies as Ladies,
    MethodSpec as MethodSpec,
    NeighborSampling as NeighborSampling,
    PinSage as PinSage,
    PoissonLadies as PoissonLadies,
    Ppr as Ppr,
    ProgramMethod as ProgramMethod,
    RippleWalk as RippleWalk,
    SaintEdges as SaintEdges,
    SaintNodes as SaintNodes,
    SaintWalks as SaintWalks,
    Sample as Sample,
    SamplingMethod as SamplingMethod,
    StepMethod as StepMethod,
    Transits as Transits,
    register as register,
)
from khop.sampler.methods.access import Rows as Rows, Waiting as Waiting
from khop.sampler.methods.ladies import NodesPerLayer as NodesPerLayer
from khop.sampler.methods.step import StepPicks as StepPicks
from khop.sampler.plan import EpochPlan as EpochPlan
from khop.sampler.pyg.draw_scope import BatchKey as BatchKey
from khop.sampler.pyg.neighbor import NeighborSampler as NeighborSampler
from khop.sampler.pyg.random_walks import WalkedGraph as WalkedGraph, random_walk as random_walk
from khop.sampler.spec import SamplingSpec as SamplingSpec
