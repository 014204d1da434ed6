"""From seeds to a written batch: the steps that samplers and trainers share."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from khop.partition.part import Part
from khop.sampler.collect import Allocate, Collector, CollectSpec
from khop.sampler.engine import Engine, GraphView, RemoteParts, SeedSet, Ticket
from khop.sampler.spec import SamplingSpec
from khop.typing import Int64Array


@dataclass(frozen=True)
class PipelineSpec:
    """What batches shall be.

    Attributes:
        sampling: how neighbours are drawn.
        collect: which attributes come along.
        seed_type: index of the seeds' node type.
    """

    sampling: SamplingSpec
    collect: CollectSpec
    seed_type: int

    def to_json(self) -> dict[str, Any]:
        """As JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> PipelineSpec:
        """From what `to_json` returned, after its journey."""
        return cls(
            SamplingSpec.from_json(content["sampling"]),
            CollectSpec(**content["collect"]),
            content["seed_type"],
        )


class Pipeline:
    """Makes batches from a part and its remote peers.

    Args:
        part: the part at hand.
        spec: what batches shall be.
        remote: the other partitions, if there are any.
    """

    def __init__(self, part: Part, spec: PipelineSpec, remote: RemoteParts | None) -> None:
        self._spec = spec
        self._engine = Engine(GraphView.of_part(part), spec.sampling, remote)
        self._collector = Collector(part, spec.collect, remote)

    def make(
        self, columns: Int64Array, run_key: int, batch: int, allocate: Allocate
    ) -> Generator[list[Ticket], None, None]:
        """Makes a batch; yields the tickets that it waits for.

        Args:
            columns: [num_columns, n] the batch's seeds: their new ids and, with temporal sampling,
                their times.
            run_key: key of the epoch.
            batch: index of the batch.
            allocate: called with the batch's layout; returns the arrays to fill.
        """
        seeds = [SeedSet(self._spec.seed_type, *columns)]
        subgraph = yield from self._engine.sample(seeds, run_key, batch)
        yield from self._collector.collect(subgraph, allocate, {"batch": batch})
        self._engine.release(subgraph)
