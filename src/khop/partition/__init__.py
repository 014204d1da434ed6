"""Partitioners: tools that cut a graph, once, into the folders of `khop.storage`.

`khop partition` or a user's script runs them before training. Imports no torch.
"""

from khop._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "FrequencyPartitioner": "frequency",
        "GraphSource": "source",
        "PartitionFolder": ".storage.folder",
        "PartitionerBase": "base",
        "RandomPartitioner": "random",
        "RangeBook": ".storage.book",
        "FolderSummary": "summary",
        "frequency_partition": "seeded",
        "verify_folder": "verify",
    },
)
