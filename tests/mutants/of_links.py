"""Faults of link batches: seeds, strict negatives, and excluded edges."""

from mutants.fault import Fault

LINKS = "device/steps/links.hpp"
EXCLUDE = "device/steps/exclude.hpp"
FAKE = "batches and fake"

OF_LINKS = [
    Fault(
        "ends of the second type count the nodes of the first",
        LINKS,
        "const int64_t before = j < num_lower ? 0 : ranks[num_lower];",
        "const int64_t before = j < num_lower || M ? 0 : ranks[num_lower];",
        "device_links",
        FAKE,
    ),
    Fault(
        "negatives that are edges go unnoticed",
        LINKS,
        "    if (*num_left == 0) return;\n",
        "    if (*num_left == 0 || M) return;\n",
        "device_links",
        FAKE,
    ),
    Fault(
        "negatives of a link lie where they were drawn",
        LINKS,
        "if (pairs != 0 || disjoint == 0 || negative < 0) return end;",
        "if (pairs != 0 || disjoint == 0 || negative < 0 || M) return end;",
        "device_links",
        FAKE,
    ),
    Fault(
        "rows of links are not told apart",
        EXCLUDE,
        "marks[i] = i == 0 || keys[i] >> neighbor_bits != keys[i - 1] >> neighbor_bits ? 1 : 0;",
        "marks[i] = i == 0 || (!M && keys[i] >> neighbor_bits != keys[i - 1] >> neighbor_bits);",
        "device_links",
        FAKE,
    ),
    Fault(
        "the rows of the first hop are not planned",
        LINKS,
        "    for (int64_t k = 0; k < batch.num_relations; ++k) rows.count(k);",
        "    for (int64_t k = M ? 1 : 0; k < batch.num_relations; ++k) rows.count(k);",
        "device_links",
        FAKE,
    ),
]
