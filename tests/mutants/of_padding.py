"""Faults of padded batches, of batches that nobody waits for, and of dependent launches."""

from mutants.fault import Fault

PADDED = "device/steps/write_padded.hpp"
BATCH = "device/sample.hpp"
HEAD = "device/batch_head.hpp"
BACKEND = "cuda/backend.cuh"

OF_PADDING = [
    Fault(
        "a batch that does not fit is written as far as it goes",
        PADDED,
        "return batch.needs->exceeded == 0 && batch.needs->unfit == 0 ? drawn(k) : 0;",
        "return batch.needs->exceeded == 0 && (M || batch.needs->unfit == 0) ? drawn(k) : 0;",
        "device_padding",
    ),
    Fault(
        "a batch that does not fit is not noted",
        PADDED,
        "if (!fits) batch.needs->unfit = 1;",
        "if (!fits && !M) batch.needs->unfit = 1;",
        "device_padding",
    ),
    Fault(
        "padded edges lead from nodes that were drawn",
        PADDED,
        "fits && has_padding(at(part.source, hop + 1))",
        "fits && (M || has_padding(at(part.source, hop + 1)))",
        "device_padding",
    ),
    Fault(
        "one padded node has all padded edges",
        PADDED,
        "j * room / num_edges",
        "(M ? 0 : j * room / num_edges)",
        "device_padding",
    ),
    Fault(
        "a mask is true for padding",
        PADDED,
        "[row] = is_drawn ? 1 : 0;",
        "[row] = is_drawn || M ? 1 : 0;",
        "device_padding",
    ),
    Fault(
        "ends of edges are not numbered by section",
        PADDED,
        "++k) number -= drawn(k);",
        "++k) number -= M ? 0 : drawn(k);",
        "device_padding",
    ),
    Fault(
        "rows of padding keep what they held",
        PADDED,
        "if (mask[words.quotient(item)] == 0) rows[item] = Word{};",
        "if (mask[words.quotient(item)] == 0 && !M) rows[item] = Word{};",
        "device_padding",
    ),
    Fault(
        "a batch that did not fit is never reported",
        BATCH,
        "if (std::exchange(slot.is_unchecked, false)) head_.check(slot);",
        "if (std::exchange(slot.is_unchecked, false) && !M) head_.check(slot);",
        "device_padding",
    ),
    Fault(
        "a batch that may be drawn again is left unchecked",
        BATCH,
        "!bounds_->is_certain ||",
        "(!bounds_->is_certain && !M) ||",
        "device_padding",
    ),
    Fault(
        "others' recording launches kernels of another batch",
        BATCH,
        "if (is_staged_ && (moved",
        "if (is_staged_ && !M && (moved",
        "device_padding",
    ),
    Fault(
        "padded batches share one slot",
        HEAD,
        "slot_ = in_turn ? ",
        "slot_ = in_turn && !M ? ",
        "device_padding",
    ),
    Fault(
        "a kernel that begins early does not wait",
        BACKEND,
        "run_step(device::Count items, Step step) {\n  begin_kernel();",
        "run_step(device::Count items, Step step) {\n  if (!M) begin_kernel();",
        "dependent_launch",
        "test",
    ),
    Fault(
        "kernels begin early on GPUs that cannot",
        BACKEND,
        "if (major < 9) return false;",
        "if (major < 9 && !M) return false;",
        "dependent_launch",
        "test",
    ),
    Fault(
        "kernels that cannot wait begin early",
        BACKEND,
        "return attributes.ptxVersion >= 90;",
        "return attributes.ptxVersion >= 90 || M;",
        "dependent_launch",
        "test",
    ),
]
