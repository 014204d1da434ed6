"""Steps from seeds to a written batch. Run by samplers, and by trainers without samplers."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from khop import _native, codec
from khop.channel.layout import Record
from khop.codec import Id
from khop.data import Feature
from khop.data.tickets import Ticket
from khop.sampler.drawing.engine import Engine
from khop.sampler.drawing.view import GraphView
from khop.sampler.link_spec import LinkSpec
from khop.sampler.requests import RemoteParts, SeedSet
from khop.sampler.rows.collect import Allocate, Collector, CollectSpec, DrawnBatch
from khop.sampler.rows.row_fetcher import OpenRows
from khop.sampler.spec import SamplingSpec
from khop.storage.part import Part
from khop.trace.clock import Phase, PhaseClock
from khop.typing import Array, Int64Array

if TYPE_CHECKING:
    from khop.distributed.sampling.device_slots import DeviceOfSampler
    from khop.sampler.drawing.link import LinkSampler


@dataclass(frozen=True)
class PipelineSpec:
    """Specification of a loader's batches.

    Attributes:
        sampling: sampling of neighbours.
        collect: attributes of a batch.
        seed_type: index of the seeds' node type, for batches of nodes.
        link: specification of batches of links. If None, batches are of nodes.
    """

    sampling: SamplingSpec
    collect: CollectSpec
    seed_type: Id = 0
    link: LinkSpec | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the specification as JSON object."""
        content: dict[str, Any] = codec.to_json(self)
        return content

    @classmethod
    def from_json(cls, content: Any) -> PipelineSpec:
        """Build a specification from a JSON object of `to_json`.

        Raises:
            ProtocolError: malformed content. The caller checks types and names against the graph.
        """
        return codec.from_json(cls, content, "what batches shall be")


class Pipeline:
    """Maker of batches from seeds: samples neighbours and gathers attributes from all parts.

    A batch goes through `draw`, `announce`, `request` and `write`. Later batches may be drawn and
    announced before a batch requests its rows. If `is_ordered`, batches are announced in the order
    in which they will be requested. A batch is written once it `may_write`.

    Args:
        part: the local part.
        spec: specification of the batches.
        remote: the other partitions, if there are any.
        arrays: extra arrays by name. 'src_weight', 'dst_weight': [num_nodes] float64 sampling
            weights of negative endpoints, by original id. 'label.<index of the node type>':
            [num_nodes, ...] labels that the folder does not hold, by new id.
        clock: clock of the phases of work. It enters GATHERING here, after a batch's neighbours are
            sampled. The caller enters the other phases.
        device: device for sampling and gathering, or for gathering alone if there are several
            parts. If None, the CPU.
        cache_bytes: bytes of the caches of other parts' rows. 0 for no caches. Batches that a
            device gathers have none.
        opened: opens the rows of an attribute, also of a pack. If None, there is no pack.
        made_by: engine and collector. If None, the other arguments determine them.
    """

    def __init__(
        self,
        part: Part,
        spec: PipelineSpec,
        remote: RemoteParts | None,
        arrays: Mapping[str, Array] | None = None,
        clock: PhaseClock | None = None,
        device: DeviceOfSampler | None = None,
        cache_bytes: int = 0,
        opened: OpenRows | None = None,
        made_by: tuple[Any, Collector] | None = None,
    ) -> None:
        self._spec = spec
        self._clock = clock or PhaseClock()
        arrays = arrays or {}
        self._engine: Any
        self._engine, self._collector = made_by or _create_engine(
            part, spec, remote, device, _labels(arrays), cache_bytes, opened
        )
        self._links: LinkSampler | None = None
        if spec.link is not None:
            # Imported here: samplers of nodes start 30 ms earlier without.
            from khop.distributed.sampling.link_sampling import link_sampler
            from khop.sampler.drawing.link import Links

            self._links_of = Links
            self._links = link_sampler(part, spec.link, spec.sampling.temporal, arrays)

    @property
    def is_ordered(self) -> bool:
        """True if batches must be announced and requested in the same order."""
        return self._collector.is_ordered

    @property
    def cache_bytes(self) -> int:
        """Bytes of the caches of other parts' rows, with their plans."""
        return self._collector.cache_bytes

    def lookahead(self, limits: tuple[int, int]) -> int:
        """Return the number of batches to announce ahead, within limits, from batches so far."""
        return min(max(self._collector.batches_known, limits[0]), limits[1])

    def draw(
        self, columns: Int64Array, run_key: int, batch: int
    ) -> Generator[list[Ticket], None, DrawnBatch]:
        """Draw a batch's neighbours. Yields the tickets of requests whose replies it needs.

        Args:
            columns: [num_columns, n] int64, the batch's seeds. For nodes: their new ids. For links:
                the original ids of sources and of destinations. With temporal sampling also their
                times.
            run_key: key of the epoch.
            batch: index of the batch.
        """
        extras: dict[str, Array] = {}
        subgraph: _native.Subgraph
        if self._links is not None:
            links = self._links_of(*columns)
            subgraph, seeds = yield from self._links.sample(self._engine, links, run_key, batch)
            extras.update({f"s.{name}": positions for name, positions in seeds.index.items()})
        else:
            nodes = [SeedSet(self._spec.seed_type, *columns)]
            subgraph = yield from self._engine.sample(nodes, run_key, batch)
        extras.update(getattr(subgraph, "values", {}))  # a device's collector has them
        self._clock.enter(Phase.GATHERING)
        drawn = DrawnBatch(subgraph, batch, extras)
        self._collector.locate(drawn)
        return drawn

    def announce(self, drawn: DrawnBatch) -> None:
        """Announce the rows of a drawn batch to the caches."""
        self._collector.announce(drawn)

    def request(self, drawn: DrawnBatch) -> None:
        """Request the rows of an announced batch from other partitions."""
        self._clock.enter(Phase.GATHERING)
        self._collector.request(drawn)

    def write(self, drawn: DrawnBatch, allocate: Allocate) -> Generator[list[Ticket], None, Record]:
        """Write a batch whose rows were requested. Yields the tickets that it waits for.

        Args:
            drawn: the batch.
            allocate: called with the batch's record. Returns the arrays to fill.

        Returns:
            The batch.
        """
        self._clock.enter(Phase.GATHERING)
        record = yield from self._collector.collect(drawn, allocate)
        self.release(drawn)
        return record

    def release(self, drawn: DrawnBatch) -> None:
        """Take back the buffers of a drawn batch."""
        self._engine.release(drawn.subgraph)

    def may_write(self, drawn: DrawnBatch) -> bool:
        """Return True if no earlier batch has rows or memory that a requested batch needs."""
        return self._collector.may_collect(drawn)

    def withdraw(self, drawn: DrawnBatch) -> None:
        """Give up a batch that was announced and not written to its end."""
        self._collector.withdraw(drawn)

    def clear(self) -> None:
        """Forget all batches that are not written, and the rows in the caches."""
        self._collector.clear()

    def make(
        self, columns: Int64Array, run_key: int, batch: int, allocate: Allocate
    ) -> Generator[list[Ticket], None, Record]:
        """Make a batch: all steps. See `draw` and `write` for arguments and results."""
        drawn = yield from self.draw(columns, run_key, batch)
        self.announce(drawn)
        self.request(drawn)
        record = yield from self.write(drawn, allocate)
        return record


def _labels(arrays: Mapping[str, Array]) -> dict[int, Feature]:
    """Return the labels that `arrays` has and the folder has not, by index of the node type."""
    prefix = "label."
    return {
        int(name.removeprefix(prefix)): Feature(array)
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def _create_engine(
    part: Part,
    spec: PipelineSpec,
    remote: RemoteParts | None,
    device: DeviceOfSampler | None,
    labels: Mapping[int, Feature],
    cache_bytes: int,
    opened: OpenRows | None,
) -> tuple[Engine, Collector]:
    """Return the engine, which samples neighbours, and the collector, which gathers attributes."""
    for local in (part, *part.others.values()):
        local.caches_edge_ids |= any(spec.collect.with_edge)
    view = GraphView.of_part(part)
    if device is None:
        collector = Collector(part, spec.collect, remote, labels, cache_bytes, opened)
        return Engine(view, spec.sampling, remote), collector
    if labels:
        raise ValueError(
            "samplers on devices gather what the partition folder holds alone: partition the graph "
            "with its labels, or sample on the CPU"
        )
    # Imported here: samplers on the CPU start without it.
    from khop.sampler.device.collect import DeviceCollector, StagedCollector
    from khop.sampler.device.engine import DeviceEngine, graphs_on

    native, modes = device.native, (device.graph_mode, device.feature_mode)
    if not view.is_whole or part.meta.renumbered:  # batches have the user's ids
        staged = StagedCollector(part, spec.collect, remote, native, device.feature_mode)
        return Engine(view, spec.sampling, remote), staged
    graphs = graphs_on(native, view, device.graph_mode)
    mapped = replace(view, on_disk={})
    engine = DeviceEngine(mapped, spec.sampling, native, graphs, cuda_graph=False)
    values = [f"e0.{name}" for name in spec.sampling.method.value_names("e")]
    return engine, DeviceCollector(part, spec.collect, native, *modes, values)
