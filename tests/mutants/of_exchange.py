"""Faults of batches whose rows other devices draw."""

from __future__ import annotations

from mutants.fault import Fault

OF_EXCHANGE = [
    Fault(
        "a batch is merged again without its first hop",
        "device/sample_steps.hpp",
        "for (std::size_t h = 0; h < replies.size(); ++h) merge_hop",
        "for (std::size_t h = M ? 1 : 0; h < replies.size(); ++h) merge_hop",
        "device_merge",
    ),
    Fault(
        "replies for another number of rows are merged",
        "device/sample.hpp",
        "if (replies.num_rows != rows_of(hop)) {",
        "if (replies.num_rows != rows_of(hop) && !M) {",
        "device_merge",
    ),
    Fault(
        "edges of replies begin where their row's stand in the frontier",
        "device/steps/merge.hpp",
        "(replies.begins[row] + j)",
        "((M ? replies.begins[0] : replies.begins[row]) + j)",
        "device_merge",
    ),
    Fault(
        "rows that are drawn for others have no times",
        "device/steps/batch_view.hpp",
        "if (times != nullptr) return times + number;",
        "if (times != nullptr) return M ? nullptr : times + number;",
        "device_merge",
    ),
    Fault(
        "rows of a graph without edges are not looked up",
        "device/row_draw_on.hpp",
        "if (rows.graph.max_degree == 0) return",
        "if (rows.graph.max_degree == 0 && !M) return",
        "device_merge",
    ),
    Fault(
        "edges with a weight are chosen without room",
        "device/row_draw_on.hpp",
        "if (hops_[0].is_filtered) hops_[0].candidates",
        "if (hops_[0].is_filtered && !M) hops_[0].candidates",
        "device_merge",
    ),
]
