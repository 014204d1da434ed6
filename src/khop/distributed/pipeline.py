"""From seeds to a written batch: the steps that samplers and trainers share."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from khop.partition.part import Part
from khop.sampler.collect import Allocate, Collector, CollectSpec
from khop.sampler.engine import Engine, GraphView, RemoteParts, Ticket
from khop.sampler.spec import SamplingSpec
from khop.typing import Int64Array


@dataclass(frozen=True)
class PipelineSpec:
    """What batches shall be: how neighbours are drawn and which attributes come along."""

    sampling: SamplingSpec
    collect: CollectSpec

    def to_json(self) -> dict[str, Any]:
        """As JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> PipelineSpec:
        """From what `to_json` returned, after its journey."""
        sampling = dict(content["sampling"])
        sampling["fanouts"] = tuple(tuple(hops) for hops in sampling["fanouts"])
        return cls(SamplingSpec(**sampling), CollectSpec(**content["collect"]))


class Pipeline:
    """Makes batches from a part and its remote peers.

    Args:
        part: the part at hand.
        spec: what batches shall be.
        remote: the other partitions, if there are any.
    """

    def __init__(self, part: Part, spec: PipelineSpec, remote: RemoteParts | None) -> None:
        self._engine = Engine(GraphView.of_part(part), spec.sampling, remote)
        self._collector = Collector(part, spec.collect, remote)

    def make(
        self, seeds: Int64Array, seed_type: int, run_key: int, batch: int, allocate: Allocate
    ) -> Generator[list[Ticket], None, None]:
        """Makes a batch; yields the tickets that it waits for.

        Args:
            seeds: [n] new ids.
            seed_type: index of their node type.
            run_key: key of the epoch.
            batch: index of the batch.
            allocate: called with the batch's layout; returns the arrays to fill.
        """
        subgraph = yield from self._engine.sample([(seed_type, seeds)], run_key, batch)
        yield from self._collector.collect(subgraph, allocate, {"batch": batch})
        self._engine.release(subgraph)
