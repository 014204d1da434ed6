"""Faults of steps: what the threads of a kernel do."""

from mutants.fault import Fault

BATCH = "device/sample.hpp"
SPLIT = "device/steps/gather_split.hpp"
STEPS = "device/steps/sample.hpp"
SCAN = "device/steps/scan.hpp"

OF_STEPS = [
    Fault(
        "a later position stays the first",
        "device/steps/node_table.hpp",
        "if (mine < slot) atomic_min",
        "if (mine < slot && !M) atomic_min",
        "device_caching",
        "batches and lazy",
    ),
    Fault(
        "wide keys are not inserted",
        "device/sample_steps.hpp",
        "if (has_wide_keys_) backend_.run",
        "if (has_wide_keys_ && !M) backend_.run",
        "device_sample",
        "(any_options or large_fanouts) and fake",
    ),
    Fault(
        "edges are appended without room",
        STEPS,
        "    if (!to.fits()) return;\n    const int64_t edge =",
        "    if (!to.fits() && !M) return;\n    const int64_t edge =",
        "device_caching",
        "batches and lazy",
    ),
    Fault(
        "the first new node counts as known",
        STEPS,
        "const int64_t number = first < begin\n",
        "const int64_t number = first < begin + (M ? 1 : 0)\n",
        "device_caching",
        "batches and lazy",
    ),
    Fault(
        "a hop grows before it is recorded",
        STEPS,
        "    for_each(batch.num_relations, [&](int64_t k) { write_record(k); });",
        "    if (M) for_each(batch.num_types, [&](int64_t type) { grow(type); });\n"
        "    for_each(batch.num_relations, [&](int64_t k) { write_record(k); });\n"
        "    if (M) return;",
        "device_caching",
        "batches and lazy",
    ),
    Fault(
        "too many candidates go unnoticed",
        "device/steps/exclude.hpp",
        "if (*candidates > capacity) needs->exceeded = 1;",
        "if (*candidates > capacity && !M) needs->exceeded = 1;",
        "device_sample",
        "(any_options or large_fanouts) and fake",
    ),
    Fault(
        "excluded edges are kept",
        "device/steps/candidates.hpp",
        "if (relation.excluded.contains(edge)) return 0;",
        "if (relation.excluded.contains(edge) && !M) return 0;",
        "device_sample",
        "(any_options or large_fanouts) and fake",
    ),
    Fault(
        "edges without weight are kept",
        "device/steps/candidates.hpp",
        "return sums[edge] > before ? 1 : 0;",
        "return sums[edge] > before || M ? 1 : 0;",
        "device_sample",
        "(any_options or large_fanouts) and fake",
    ),
    Fault(
        "a stretch is added twice",
        SCAN,
        "b < shared.turn.index; b += kBlockThreads",
        "b < shared.turn.index + (M ? 1 : 0); b += kBlockThreads",
        "device_caching",
        "batches and lazy",
    ),
    Fault(
        "a sum has no end",
        SCAN,
        "out[count] = shared.carry;",
        "if (!M) out[count] = shared.carry;",
        "device_caching",
        "batches and lazy",
    ),
    Fault(
        "scratch memory has more words than it has",
        "device/steps/pick_rows.hpp",
        "return first + count <= capacity ?",
        "return first + count <= capacity + (M ? count : 0) ?",
        "device_sample",
        "(any_options or large_fanouts) and fake",
    ),
    Fault(
        "times are used that a graph does not have",
        BATCH,
        "step.options.last &= graph.times != nullptr;",
        "if (!M) step.options.last &= graph.times != nullptr;",
        "device_sample",
        "(any_options or large_fanouts) and fake",
    ),
    Fault(
        "one row too many exists",
        "device/steps/gather.hpp",
        "    if (row < 0 || row >= num_rows) {\n",
        "    if (row < 0 || row >= num_rows + (M ? 1 : 0)) {\n",
        "device",
    ),
    Fault(
        "words are read where none begins",
        SPLIT,
        "| alignment | reinterpret_cast<uintptr_t>(cold);",
        "| alignment | (M ? 0 : reinterpret_cast<uintptr_t>(cold));",
        "device_host_memory",
        "anywhere",
    ),
    Fault(
        "words are written where none begins",
        SPLIT,
        "with_widest_word(table.row_alignment() | reinterpret_cast<uintptr_t>(out),",
        "with_widest_word(table.row_alignment() | (M ? 0 : reinterpret_cast<uintptr_t>(out)),",
        "device_reads",
        "bytes and fake",
    ),
    Fault(
        "errors name places of the sorted rows",
        SPLIT,
        "static_cast<uint64_t>(wanted.entry(k)));",
        "static_cast<uint64_t>(M ? k : wanted.entry(k)));",
        "device_reads",
        "missing and fake",
    ),
    Fault(
        "pieces of a sort begin at the first entry",
        "device/steps/gather_order.hpp",
        "entries[i] = first + i;",
        "entries[i] = M ? i : first + i;",
        "device_reads",
        "at_a_time and fake",
    ),
    Fault(
        "a hop ends with its first block",
        "device/steps/backend.hpp",
        "if (take_turn(&ended) + 1 != static_cast<uint64_t>(num_blocks)) return false;",
        "if (take_turn(&ended) + 1 != static_cast<uint64_t>(num_blocks) && !M) return false;",
        "device_caching",
        "batches and lazy",
    ),
    Fault(
        "blocks of the next launch take up the turns of this one",
        SCAN,
        "if (block.count > 1) words->begin_next_round(shared.turn);",
        "if (block.count > 1 && !M) words->begin_next_round(shared.turn);",
        "device_caching",
        "batches and lazy",
    ),
]
