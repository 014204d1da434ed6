"""Cutting a graph into parts, and the folder that holds them."""

from khop._lazy import attach

__getattr__, __dir__, __all__ = attach(  # noqa: PLE0605
    __name__,
    {
        "FrequencyPartitioner": "frequency",
        "GraphSource": "source",
        "PartitionFolder": "folder",
        "PartitionerBase": "base",
        "RandomPartitioner": "random",
        "RangeBook": "book",
        "verify_folder": "verify",
    },
)
