"""GLT's worker options: its order, and what khop does not need."""

from dataclasses import replace

import pytest

from khop import glt
from khop.distributed import MpDistSamplingWorkerOptions

OPTIONS = {
    "Collocated": ("localhost", 11111, 4, 60),
    "Mp": (2, None, 40, "localhost", 11111, 4, 60, "1GB", True),
    "Remote": (0, 2, None, 40, "localhost", 11112, None, 60, "1GB", 4, "train", None, None),
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_options_in_glts_order(kind):
    made = getattr(glt.distributed, f"{kind}DistSamplingWorkerOptions")
    options = made(*OPTIONS[kind])
    assert options.timeout == 60
    if kind != "Collocated":
        assert (options.num_workers, options.worker_concurrency) == (2, 32)
        assert options.buffer_size == 1 << 30
    if kind == "Remote":
        assert replace(options, server_rank=[1, 0]).timeout == 60
    else:
        assert (options.master_addr, options.master_port) == ("localhost", 11111)
    if kind == "Collocated":
        assert made(use_all2all=True).use_all2all
    else:
        with pytest.warns(UserWarning, match="use_all2all=True: .* by messages"):
            assert not getattr(made(use_all2all=True), "use_all2all", False)
    if kind == "Mp":
        assert made(0, use_all2all=True).use_all2all


def test_khops_old_names_warn():
    with pytest.warns(DeprecationWarning, match="channel_size= is called buffer_size="):
        assert MpDistSamplingWorkerOptions(channel_size=1 << 20).buffer_size == 1 << 20
    with pytest.raises(TypeError, match="use_all2all"):
        MpDistSamplingWorkerOptions(use_all2all=False)
