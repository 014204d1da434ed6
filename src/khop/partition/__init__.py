"""Cutting a graph into parts, and the folder that holds them."""

from khop._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "FrequencyPartitioner": "frequency",
        "GraphSource": "source",
        "PartitionFolder": "folder",
        "PartitionerBase": "base",
        "RandomPartitioner": "random",
        "RangeBook": "book",
        "FolderSummary": "summary",
        "frequency_partition": "seeded",
        "verify_folder": "verify",
    },
)
