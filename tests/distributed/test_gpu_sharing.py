"""Loaders whose samplers would take turns on a GPU say so, once, in the user's own line."""

import warnings
from types import SimpleNamespace

import pytest

from khop.distributed import MpDistSamplingWorkerOptions
from khop.distributed.loaders.backends import _devices
from khop.distributed.sampling.gpu_sharing import warn_of_shared_gpus

SHARED = ["cuda:0", "cuda:1", None, "cuda:0", "emulated:0", "emulated:0"]


@pytest.fixture
def pipes(monkeypatch, tmp_path):
    """Where an MPS would have its control pipe; there is none."""
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    return tmp_path


def test_several_samplers_on_a_gpu(pipes):
    """They would take turns there, unless an MPS works for them; that of a server is not seen."""
    for is_here in (True, False):
        with pytest.warns(UserWarning, match=r"2 on 'cuda:0'\).*one sampler a GPU") as said:
            warn_of_shared_gpus(SHARED, is_here, stacklevel=1)
        assert said[0].filename == __file__
    (pipes / "control").touch()
    with pytest.warns(UserWarning, match="0.5 GB"):
        warn_of_shared_gpus(SHARED, is_here=False, stacklevel=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_shared_gpus(SHARED, is_here=True, stacklevel=1)


def test_one_sampler_a_gpu(pipes):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        devices = ["cuda:0", "cuda:1", None, None, "emulated:0", "emulated:0"]
        warn_of_shared_gpus(devices, is_here=True, stacklevel=1)


@pytest.mark.parametrize(("num_partitions", "to_device", "count"), [
    (1, "cuda:0", 2),
    (1, None, 2),
    (2, "cuda:0", 2),
    (2, None, 0),
])  # fmt: skip
def test_a_loader_of_two_samplers(pipes, monkeypatch, num_partitions, to_device, count):
    """Of several partitions they work on a GPU only where it is the trainer's."""
    monkeypatch.setattr("khop.distributed.loaders.backends.check_device", lambda device, what: None)
    data = SimpleNamespace(graph_mode="CUDA", num_partitions=num_partitions)
    options = MpDistSamplingWorkerOptions(2, worker_devices=["cuda:0"])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        devices = _devices(data, options, to_device)
    assert devices.count("cuda:0") == count
    assert ["same GPU" in str(one.message) for one in said].count(True) == (count == 2)
