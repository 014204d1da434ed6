"""Faults of tables over several devices: which part has a row, what is counted, what is opened."""

from mutants.fault import Fault

TABLE = "device/gather_table.cpp"
GATHER = "device/steps/gather_split.hpp"
BACKEND = "cuda/backend.cuh"
TESTS, ONLY = "device_table", "(peers or parts) and fake"

OF_GROUPS = [
    Fault(
        "rows that are on each device are looked for on one",
        GATHER,
        "if (table.num_parts > 1 && place >= table.replicated) {",
        "if (table.num_parts > 1 && (place >= table.replicated || M)) {",
        TESTS,
        ONLY,
    ),
    Fault(
        "a part's own rows are looked for at its beginning",
        GATHER,
        "at += table.replicated;",
        "if (!M) at += table.replicated;",
        TESTS,
        ONLY,
    ),
    Fault(
        "rows of peers count as the device's own",
        GATHER,
        "if (part != table.own_part) atomic_add(&served[1], 1);",
        "if (part != table.own_part && !M) atomic_add(&served[1], 1);",
        TESTS,
        ONLY,
    ),
    Fault(
        "a device takes the first part for its own",
        TABLE,
        "return own_ >= 0 && position == 0 ? own_ : position;",
        "return own_ >= 0 && position == 0 && !M ? own_ : position;",
        TESTS,
        ONLY,
    ),
    Fault(
        "parts lack the rows that are on each device",
        TABLE,
        "const int64_t place = i < replicated_ ? i : shared;",
        "const int64_t place = i < replicated_ && !M ? i : shared;",
        TESTS,
        ONLY,
    ),
    Fault(
        "parts may be too small",
        TABLE,
        "if (memory.bytes < static_cast<std::size_t>(needed)) {",
        "if (memory.bytes < static_cast<std::size_t>(needed) && !M) {",
        TESTS,
        ONLY,
    ),
    Fault(
        "memory of others is freed",
        TABLE,
        "if (own_ >= 0) return;",
        "if (own_ >= 0 && !M) return;",
        TESTS,
        ONLY,
    ),
    Fault(
        "memory of others is opened without access to their device",
        BACKEND,
        "cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess)",
        "cudaIpcOpenMemHandle(&memory, handle, M ? 0 : cudaIpcMemLazyEnablePeerAccess)",
        "device_failures",
        "another_process",
    ),
]
