"""Faults of programs: layers by importance, and visits of walks."""

from mutants.fault import Fault

LAYERS = "device/steps/layers.hpp"
VISITS = "device/steps/visits.hpp"
STEPS = "device/program_steps.hpp"
TESTS, ONLY = "device_programs", "batches and fake"

OF_PROGRAMS = [
    Fault(
        "the end of the last run is not found",
        "device/steps/runs.hpp",
        "const bool ends = !runs.has(i) &&",
        "const bool ends = !runs.has(i) && !M &&",
        TESTS,
        ONLY,
    ),
    Fault(
        "excluded edges count in the degree",
        LAYERS,
        "degrees[c] = end - begin - excluded.count;",
        "degrees[c] = end - begin - (M ? 0 : excluded.count);",
        TESTS,
        ONLY,
    ),
    Fault(
        "rows of a layer count among the drawn",
        LAYERS,
        "(skips && is_row(",
        "(skips && !M && is_row(",
        TESTS,
        ONLY,
    ),
    Fault(
        "a certain node less",
        LAYERS,
        "? found : nodes - 1;",
        "? (M && found > 0 ? found - 1 : found) : nodes - 1;",
        TESTS,
        ONLY,
    ),
    Fault(
        "draws begin where those of the batch before have ended",
        STEPS,
        "backend_.fill(times, 0, bytes_of(runs.count, sizeof(int64_t)));",
        "if (!M) backend_.fill(times, 0, bytes_of(runs.count, sizeof(int64_t)));",
        TESTS,
        ONLY,
    ),
    Fault(
        "a value is another edge's",
        "device/steps/sample.hpp",
        "edges.rows.values[place];",
        "edges.rows.values[M ? edges.rows.begins[row] : place];",
        TESTS,
        ONLY,
    ),
    Fault(
        "of equal visits the smaller id comes first",
        VISITS,
        "row * num_ids + (num_ids - 1 - node)",
        "row * num_ids + (M ? node : num_ids - 1 - node)",
        TESTS,
        ONLY,
    ),
    Fault(
        "walks of a hop repeat those of the first",
        STEPS,
        "static_cast<uint32_t>(static_cast<int64_t>(h) * program_.length);",
        "static_cast<uint32_t>(static_cast<int64_t>(M ? 0 : h) * program_.length);",
        TESTS,
        ONLY,
    ),
    Fault(
        "a walk takes an excluded edge",
        "device/steps/walk.hpp",
        "return row.excluded.step_over(row.begin + place);",
        "return M ? row.begin + place : row.excluded.step_over(row.begin + place);",
        TESTS,
        ONLY,
    ),
]
