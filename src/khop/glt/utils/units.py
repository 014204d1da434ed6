"""Sizes as GLT writes them."""

from khop.data.hot_rows import parse_bytes as parse_size

UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
"""Bytes of each unit: powers of two, as in GLT."""

__all__ = ["UNITS", "parse_size"]
