"""Skips of tests that need a version of PyG or torch. The oldest supported ones run all others."""

import pytest
import torch_geometric

from khop.errors import SecurityError
from khop.safe_versions import reads_torch_files


def _is_before(major, minor):
    own = tuple(int(number) for number in torch_geometric.__version__.split(".")[:2])
    return own < (major, minor)


of_newest_pyg = pytest.mark.skipif(_is_before(2, 8), reason="names what PyG 2.8 has")
with_to_hetero = pytest.mark.skipif(
    _is_before(2, 7), reason="to_hetero of older versions does not work with new versions of torch"
)

reading_torch_files = pytest.mark.skipif(
    not reads_torch_files(), reason="files of torch.save are not read with a torch this old"
)


def refused_for_its_version(error):
    """Return True if an error is of a reader that refuses torch's version."""
    return (
        not reads_torch_files()
        and isinstance(error, SecurityError)
        and "is not read with torch" in str(error)
    )
