"""GLT's inputs and outputs of samplers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
import torch_geometric.sampler as pyg
from torch import Tensor

from khop.data.files import load_torch
from khop.glt.typing import Device, EdgeType, NodeType, NumNeighbors, Split, TensorDataType
from khop.glt.utils import CastMixin, share_memory

if TYPE_CHECKING:
    from typing_extensions import Self


class EdgeIndex(NamedTuple):
    """Edges of one layer, in the form of PyG's former `NeighborSampler`.

    Attributes:
        edge_index: [2, num_edges] positions of sources and destinations in the batch's nodes.
        e_id: [num_edges] edge ids, or None.
        size: numbers of sources and destinations.
    """

    edge_index: Tensor
    e_id: Tensor | None
    size: tuple[int, int]

    def to(self, device: Device) -> EdgeIndex:
        """Return a copy whose tensors are on another device."""
        e_id = None if self.e_id is None else self.e_id.to(device)
        return EdgeIndex(self.edge_index.to(device), e_id, self.size)


class NegativeSamplingMode(Enum):
    """Form of negative samples: pairs of nodes, or destinations for each link's source."""

    binary = "binary"
    triplet = "triplet"


class _Tensors(CastMixin):
    """Base of dataclasses whose fields hold tensors, with methods that move all of them."""

    def share_memory(self) -> Self:
        """Move all tensors to torch's shared memory. Return this object."""
        for name in self._names():
            held = getattr(self, name)
            if isinstance(held, _Tensors):
                held.share_memory()
            else:
                share_memory(held)
        return self

    def to(self, device: Device) -> Self:
        """Return a copy whose tensors are on another device."""
        held = {name: getattr(self, name) for name in self._names()}
        return type(self)(
            **{n: v.to(device) if isinstance(v, (Tensor, _Tensors)) else v for n, v in held.items()}
        )

    def _names(self) -> list[str]:
        return [field.name for field in fields(self)]  # type: ignore[arg-type]


@dataclass(init=False)
class NegativeSampling(_Tensors):
    """Options of a link loader's negatives.

    Args:
        mode: 'binary' (pairs) or 'triplet' (destinations for each source).
        amount: negatives per link, a whole number for 'triplet'.
        weight: [num_nodes] weight of each node in draws. If None, draws are uniform.

    Raises:
        ValueError: the mode is unknown, or the amount not positive, or not whole for 'triplet'.
    """

    mode: NegativeSamplingMode
    amount: int | float
    weight: Tensor | None

    def __init__(
        self,
        mode: NegativeSamplingMode | str,
        amount: int | float = 1,
        weight: Tensor | None = None,
    ) -> None:
        checked = pyg.NegativeSampling(getattr(mode, "value", mode), amount)
        self.mode = NegativeSamplingMode(checked.mode.value)
        self.amount = checked.amount
        self.weight = weight

    def is_binary(self) -> bool:
        """Return True if negative samples are pairs of nodes."""
        return self.mode is NegativeSamplingMode.binary

    def is_triplet(self) -> bool:
        """Return True if negative samples are destinations for each link's source."""
        return self.mode is NegativeSamplingMode.triplet

    def to_pyg(self) -> pyg.NegativeSampling:
        """Return PyG's `NegativeSampling` with the same mode, amount and weights."""
        return pyg.NegativeSampling(self.mode.value, self.amount, self.weight, self.weight)


Negatives: TypeAlias = NegativeSampling | str | tuple[Any, ...] | dict[str, Any] | None


def to_pyg_negatives(neg_sampling: Any) -> Any:
    """Convert `NegativeSampling` to PyG's class. Return any other value unchanged."""
    return neg_sampling.to_pyg() if isinstance(neg_sampling, NegativeSampling) else neg_sampling


@dataclass
class NodeSamplerInput(_Tensors):
    """Seed nodes for a sampler.

    Attributes:
        node: [n] int64 ids.
        input_type: node type of the seeds in a heterogeneous graph.
    """

    node: Tensor
    input_type: NodeType | None = None

    def __getitem__(self, index: TensorDataType | Sequence[int]) -> NodeSamplerInput:
        return replace(self, node=self.node[torch.as_tensor(index)])

    def __len__(self) -> int:
        return self.node.numel()


@dataclass
class EdgeSamplerInput(_Tensors):
    """Seed links (edges to predict) for a sampler.

    Attributes:
        row, col: [n] int64 ids of sources and destinations.
        label: [n] labels, or None.
        input_type: edge type of the links in a heterogeneous graph.
        neg_sampling: options of negatives, or None for no negatives.
    """

    row: Tensor
    col: Tensor
    label: Tensor | None = None
    input_type: EdgeType | None = None
    neg_sampling: NegativeSampling | None = None

    def __getitem__(self, index: TensorDataType | Sequence[int]) -> EdgeSamplerInput:
        index = torch.as_tensor(index)
        label = None if self.label is None else self.label[index]
        return replace(self, row=self.row[index], col=self.col[index], label=label)

    def __len__(self) -> int:
        return self.row.numel()


@dataclass
class SamplerOutput(CastMixin):
    """A sampled subgraph: edges lead from neighbours (`row`) to the nodes that drew them (`col`).

    Attributes:
        node: [num_nodes] original ids, seeds first.
        row, col: [num_edges] positions in `node`.
        edge: [num_edges] edge ids, or None.
        batch: [n] original ids of the seeds, each once, or None.
        num_sampled_nodes, num_sampled_edges: [hops + 1] and [hops] counts, or None.
        device: where the tensors are.
        metadata: labels and positions of links, or positions of a subgraph's seeds.
    """

    node: Tensor
    row: Tensor
    col: Tensor
    edge: Tensor | None = None
    batch: Tensor | None = None
    num_sampled_nodes: Any = None
    num_sampled_edges: Any = None
    device: Any = None
    metadata: Any = None


@dataclass
class HeteroSamplerOutput(CastMixin):
    """A sampled subgraph of a heterogeneous graph: `SamplerOutput`'s fields by type.

    Attributes:
        edge_types: edge types of batches, also types without edges.
        input_type: node type of the seeds, or edge type of the links.
    """

    node: dict[NodeType, Tensor]
    row: dict[EdgeType, Tensor]
    col: dict[EdgeType, Tensor]
    edge: dict[EdgeType, Tensor] | None = None
    batch: dict[NodeType, Tensor] | None = None
    num_sampled_nodes: Any = None
    num_sampled_edges: Any = None
    edge_types: list[EdgeType] | None = None
    input_type: NodeType | EdgeType | None = None
    device: Any = None
    metadata: Any = None

    def get_edge_index(self) -> dict[EdgeType, Tensor]:
        """Return {edge type: [2, num_edges] edges}, also for types without edges."""
        ends = {t: torch.stack([row, self.col[t]]) for t, row in self.row.items()}
        for edge_type in self.edge_types or []:
            ends.setdefault(edge_type, torch.empty(2, 0, dtype=torch.int64, device=self.device))
        return ends


@dataclass
class NeighborOutput(_Tensors):
    """Neighbours of one hop, from `NeighborSampler.sample_one_hop`.

    Attributes:
        nbr: [n] int64 neighbours, seed after seed.
        nbr_num: [number of seeds] number of each seed's neighbours.
        edge: [n] edge ids, or None.
    """

    nbr: Tensor
    nbr_num: Tensor
    edge: Tensor | None = None


class SamplingType(Enum):
    """Type of sampling that `SamplingConfig` names: of nodes, links, subgraphs and so on."""

    NODE = 0
    LINK = 1
    SUBGRAPH = 2
    RANDOM_WALK = 3


@dataclass
class SamplingConfig:
    """Options of a sampler, as GLT collects them. khop's own are `khop.sampler.SamplingSpec`."""

    sampling_type: SamplingType
    num_neighbors: NumNeighbors | None
    batch_size: int
    shuffle: bool
    drop_last: bool
    with_edge: bool
    collect_features: bool
    with_neg: bool
    with_weight: bool
    edge_dir: str
    seed: int | None


class BaseSampler(ABC):
    """Interface of samplers with GLT's inputs and outputs."""

    @abstractmethod
    def sample_from_nodes(self, inputs: NodeSamplerInput, **kwargs: object) -> Output:
        """Sample the neighbourhood of seed nodes."""

    @abstractmethod
    def sample_from_edges(self, inputs: EdgeSamplerInput, **kwargs: object) -> Output:
        """Sample the neighbourhood of both ends of seed links."""

    @abstractmethod
    def subgraph(self, inputs: NodeSamplerInput) -> SamplerOutput:
        """Return the seeds, or their sampled neighbourhood, with all edges among these nodes."""


class RemoteSamplerInput(ABC):
    """Base of seeds that a client names, and that a graph server's machine looks up."""

    @abstractmethod
    def to_local_sampler_input(self, dataset: object, **kwargs: object) -> NodeSamplerInput:
        """Return the seeds, with ids, from a data set."""


@dataclass
class RemoteNodePathSamplerInput(RemoteSamplerInput):
    """Seeds in a file on a graph server's machine.

    Attributes:
        node_path: `.pt` file with a tensor of ids.
        input_type: node type of the seeds.
    """

    node_path: str
    input_type: NodeType | None = None

    def to_local_sampler_input(self, dataset: object, **kwargs: object) -> NodeSamplerInput:
        """Read the seeds' ids from the file, without running pickled code."""
        del dataset, kwargs
        return NodeSamplerInput(load_torch(self.node_path, "pass the tensor"), self.input_type)


@dataclass
class RemoteNodeSplitSamplerInput(RemoteSamplerInput):
    """Seeds that are the training, validation or test nodes of a data set.

    Attributes:
        split: which of the three.
        input_type: node type of the seeds.
    """

    split: Split
    input_type: NodeType | None = None

    def to_local_sampler_input(self, dataset: object, **kwargs: object) -> NodeSamplerInput:
        """Return the ids of the split's nodes from a data set."""
        del kwargs
        name = {Split.train: "train_idx", Split.valid: "val_idx", Split.test: "test_idx"}
        ids = getattr(dataset, name[Split(self.split)])
        ids = ids[self.input_type] if isinstance(ids, dict) else ids
        return NodeSamplerInput(ids, self.input_type)


Output: TypeAlias = SamplerOutput | HeteroSamplerOutput
