"""GPU sampling of other libraries, called as users call it, if they can be imported.

Times are by the host's clock, since both have their own CUDA streams.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from khop.typing import Int64Array
from khop_bench.bench import Bench

DeviceDraw = Callable[[Int64Array, int], int]
"""Function of seeds and index of a batch, which returns the number of edges drawn."""

GRAPHBOLT = "GraphBolt"
CUGRAPH = "cuGraph"


def gpu_peers(
    bench: Bench,
    columns: tuple[Tensor, Tensor],
    fanouts: Sequence[int],
    device: torch.device,
) -> Iterator[tuple[str, DeviceDraw]]:
    """Yield name and function of each library that draws a first batch on a GPU.

    Args:
        bench: notes the libraries that are left out, with the reason.
        columns: colptr and row, int64.
        fanouts: fan-out of each hop.
        device: a GPU.
    """
    makers = {GRAPHBOLT: graphbolt_draw, CUGRAPH: cugraph_draw}
    for name, make in makers.items():
        try:
            draw = make(columns, fanouts, device)
            draw(np.arange(16), 0)
        except Exception as error:  # a library that does not fit this torch may raise anything
            text = (str(error).splitlines() or [""])[0]
            bench.leave_out(f"{name} on GPUs is left out: {type(error).__name__}: {text[:160]}")
            continue
        yield name, draw


def graphbolt_draw(
    columns: tuple[Tensor, Tensor], fanouts: Sequence[int], device: torch.device
) -> DeviceDraw:
    """Return a function that draws by GraphBolt's data pipe, the graph in device memory.

    In each hop the pipe also draws for the nodes of earlier hops. So costs are compared per edge.
    """
    gb: Any = importlib.import_module("dgl.graphbolt")
    graph = gb.fused_csc_sampling_graph(*columns).to(device)
    named = "seeds" if "seeds" in gb.MiniBatch.__dataclass_fields__ else "seed_nodes"
    outwards = list(reversed(fanouts))  # the last one is that of the seeds

    def draw(seeds: Int64Array, _: int) -> int:
        items = gb.ItemSet(torch.from_numpy(seeds), names=named)
        pipe = gb.ItemSampler(items, batch_size=len(seeds)).copy_to(device)
        (batch,) = gb.DataLoader(pipe.sample_neighbor(graph, outwards), num_workers=0)
        return sum(len(hop.sampled_csc.indices) for hop in batch.sampled_subgraphs)

    return draw


def cugraph_draw(
    columns: tuple[Tensor, Tensor], fanouts: Sequence[int], device: torch.device
) -> DeviceDraw:
    """Return a function that draws by pylibcugraph with renumbering, the graph in device memory."""
    cupy: Any = importlib.import_module("cupy")
    library: Any = importlib.import_module("pylibcugraph")
    colptr, row = (part.to(device) for part in columns)
    drawing = torch.repeat_interleave(colptr.diff())  # out-edges there are in-edges here
    handle = library.ResourceHandle()
    graph = library.SGGraph(
        handle,
        library.GraphProperties(is_symmetric=False, is_multigraph=True),
        cupy.asarray(drawing),
        cupy.asarray(row),
        store_transposed=False,
        renumber=False,
        do_expensive_check=False,
    )
    del colptr, row, drawing
    fanout_array = np.array(fanouts, np.int32)

    def draw(seeds: Int64Array, batch_number: int) -> int:
        result = library.homogeneous_uniform_neighbor_sample(
            handle,
            graph,
            cupy.asarray(seeds),
            cupy.asarray([0, len(seeds)]),
            fanout_array,
            with_replacement=False,
            do_expensive_check=False,
            prior_sources_behavior="exclude",
            deduplicate_sources=True,
            renumber=True,
            compression="COO",
            random_state=batch_number,
        )
        return len(result["minors"])

    return draw
