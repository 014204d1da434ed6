"""Kernels of a batch and the model's steps: told by the order in which they run."""

from __future__ import annotations

import pytest

from khop_bench.device_model import Counts, Hop, predict
from khop_bench.gpu.kernel_times import compare, launches_in, lines, named_steps, totals

KERNEL = "void khop::cuda::run_step<khop::device::{0}>(khop::device::Count, khop::device::{0})"
SUM = "void khop::cuda::run_block_step<khop::device::{0}<khop::device::{1}> >(...)"
HOP = [
    SUM.format("SumBefore", "PickRows<khop::device::KeyedByRow>"),
    KERNEL.format("AppendEdges"),
    SUM.format("SumBefore", "FirstOfNode"),
    "void khop::cuda::run_block_step<khop::device::EndHop>(khop::device::EndHop)",
]
BATCH = [KERNEL.format("PlaceSeeds"), *HOP, *HOP, KERNEL.format("WritePieces")]


def trace_of(names, us=10, gap=2):
    """A trace of kernels one after the other, in no order, between events of the host."""
    events = [
        {"cat": "kernel", "name": name, "ts": number * (us + gap), "dur": us}
        for number, name in enumerate(names)
    ]
    host = {"cat": "cuda_runtime", "name": "cudaLaunchKernelExC", "ts": 0, "dur": 3}
    return {"traceEvents": [host, *reversed(events), {"ph": "M", "name": "process_name"}]}


def test_steps_of_two_batches():
    found = [step for step, _ in named_steps(launches_in(trace_of(BATCH * 2)))]
    hops = [
        f"hop {hop}, {step}"
        for hop in (1, 2)
        for step in ("pick", "append", "scan of edges", "number")
    ]
    assert found == ["seeds", *hops, "write"] * 2


def test_what_the_model_does_not_know_has_its_own_name():
    copy = {"cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "ts": 500, "dur": 1}
    trace = trace_of([KERNEL.format("CheckRows<int>"), "void at::native::vectorized<4>(int)"])
    trace["traceEvents"].append(copy)
    found = [step for step, _ in named_steps(launches_in(trace))]
    assert found == ["CheckRows", "void at::native::vectorized<4>(int)", "copies and fills"]


@pytest.fixture
def prediction():
    hop = Hop(rows=100, edges=10_000, nodes=500, pointer_sectors=90, column_sectors=400)
    return predict(Counts(100, [hop, hop], 1 << 20))


def test_measured_beside_the_model(prediction):
    """Per batch; the model's times are without the gaps between kernels, as the measured ones."""
    steps = compare(launches_in(trace_of(BATCH * 2)), 2, [prediction] * 3)
    assert [step.step for step in steps] == [
        work.step for work in (*prediction.drawn, *prediction.written)
    ]
    assert all(step.launches == step.model_launches for step in steps)
    by_name = {step.step: step for step in steps}
    assert by_name["hop 1, scan of edges"].us == 10
    seeds = prediction.drawn[0].seconds(prediction.gpu) - prediction.gpu.gap
    assert by_name["seeds"].model_us == pytest.approx(1e6 * seeds)
    table = lines(steps)
    assert len(table) == 2 + len(steps)
    assert f"{10 / (1e6 * seeds):.2f}" in table[2]


def test_totals(prediction):
    found = totals(launches_in(trace_of(BATCH * 2)), 2, [prediction])
    count = len(BATCH)
    assert found == {
        "busy": 10.0 * count,
        "span": (2 * count * 12 - 2) / 2,
        "gap": 2.0,
        "model": pytest.approx(1e6 * prediction.seconds),
    }


def test_without_a_gpu_there_is_the_model_alone(prediction):
    assert compare([], 2, [prediction])[0].launches == 0
    assert totals([], 2, [prediction])["busy"] is None
    assert "| seeds " in lines(compare([], 2, [prediction]))[2]
