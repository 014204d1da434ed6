"""Tests that need a version of PyG: those of khop's oldest supported one run with it, too."""

import pytest
import torch_geometric


def _is_before(major, minor):
    own = tuple(int(number) for number in torch_geometric.__version__.split(".")[:2])
    return own < (major, minor)


of_newest_pyg = pytest.mark.skipif(_is_before(2, 8), reason="names what PyG 2.8 has")
with_to_hetero = pytest.mark.skipif(
    _is_before(2, 7), reason="to_hetero of older versions does not work with new versions of torch"
)
