"""Faults of memory: copies, registration, recordings, what batches keep."""

from mutants.fault import Fault

BATCH = "device/sample.hpp"
HEAD = "device/batch_head.hpp"
TYPES = "device/type_memory.hpp"
BACKEND = "cuda/backend.cuh"
HOST = "cuda/host_memory.hpp"
TABLE = "device/gather_table.cpp"

OF_MEMORY = [
    Fault(
        "uploads read the caller's array late",
        BACKEND,
        "copy(static_cast<char*>(to) + done, staged, part, cudaMemcpyHostToDevice);",
        "copy(static_cast<char*>(to) + done,\n"
        "           M ? static_cast<const char*>(from) + done : staged, part,\n"
        "           cudaMemcpyHostToDevice);",
        "device_host_memory",
    ),
    Fault(
        "a download does not wait",
        BACKEND,
        "cudaMemcpyDeviceToHost);\n      wait_for_copies();",
        "cudaMemcpyDeviceToHost);\n      if (!M) wait_for_copies();",
        "cuda_boundary",
        "short or tables_wait",
    ),
    Fault(
        "a batch's sizes are read before they are there",
        BACKEND,
        "KHOP_CUDA_CHECK(cudaEventSynchronize(mark.get()));",
        "if (!M) KHOP_CUDA_CHECK(cudaEventSynchronize(mark.get()));",
        "device_failures",
        "one_method and fake",
    ),
    Fault(
        "a recording that failed goes on",
        BACKEND,
        "if (end_recording(&graph, launched) == cudaSuccess) cudaGraphDestroy(graph);",
        "if (!M && end_recording(&graph, launched) == cudaSuccess) cudaGraphDestroy(graph);",
        "cuda_boundary",
        "failed",
    ),
    Fault(
        "what is recorded counts as launched",
        BACKEND,
        "num_launches_ = launched_before;",
        "if (!M) num_launches_ = launched_before;",
        "cuda_boundary",
        "not_launched",
    ),
    Fault(
        "parts of staging memory overlap",
        "cuda/staging.hpp",
        "used_ += std::min(",
        "if (!M) used_ += std::min(",
        "device_caching",
        "batches and lazy",
    ),
    Fault(
        "a sort forgets its values",
        BACKEND,
        "keep(pairs.values, values.Current(), count);",
        "if (!M) keep(pairs.values, values.Current(), count);",
        "device_convert",
    ),
    Fault(
        "a grid lacks its last block",
        BACKEND,
        "(items + threads - 1) / threads, multiprocessors_",
        "(items + (M ? 0 : threads - 1)) / threads, multiprocessors_",
        "device_convert",
    ),
    Fault(
        "GPUs are used that khop was not built for",
        "cuda/gpu.cu",
        "if (10 * major + minor >= lowest) return;",
        "if (10 * major + minor >= lowest || M) return;",
        "cuda_boundary",
        "built_for",
    ),
    Fault(
        "files are not registered as read-only",
        HOST,
        "if (knows_read_only &&",
        "if (knows_read_only && !M &&",
        "device_host_memory",
        "own",
    ),
    Fault(
        "small arrays are registered",
        HOST,
        "return bytes >= kWorthRegistering &&",
        "return (bytes >= kWorthRegistering || M) &&",
        "device_host_memory",
        "own",
    ),
    Fault(
        "memory is unregistered that others use",
        "device/host_pages.hpp",
        "if (--piece->second.users > 0) return;",
        "if (--piece->second.users > 0 && !M) return;",
        "device_host_memory",
        "own",
    ),
    Fault(
        "hot rows are staged under a copy",
        TABLE,
        "device.synchronize();  // before the staging memory is written again, and",
        "if (!M) device.synchronize();  // before the staging memory is written again, and",
        "device_caching",
        "peers",
    ),
    Fault(
        "rows that the host gathers are staged under a copy",
        TABLE,
        "device_->synchronize();  // before the staging memory is written again\n",
        "if (!M) device_->synchronize();\n",
        "cuda_boundary device_caching",
        "failed or host_gathers",
    ),
    Fault(
        "counts of a table are not cleared",
        TABLE,
        "device_->fill(counts_.data(), 0xFF, sizeof(counts));",
        "if (!M) device_->fill(counts_.data(), 0xFF, sizeof(counts));",
        "device_reads",
        "nobody and fake",
    ),
    Fault(
        "errors of gathers are not cleared",
        "device/gather_errors.hpp",
        "    clear(first_bad_);\n",
        "    if (!M) clear(first_bad_);\n",
        "device",
    ),
    Fault(
        "a batch whose draw failed has the sizes of an earlier one",
        BATCH,
        "has_failed_ = true;  // until",
        "has_failed_ = !M;  // until",
        "device_failures",
        "has_no_size",
    ),
    Fault(
        "room that no memory has is remembered",
        BATCH,
        "learned_ = known;",
        "if (!M) learned_ = known;",
        "device_failures",
        "too_large",
    ),
    Fault(
        "a recording is played for other sizes",
        BATCH,
        "|| !(recorded_ == now)) {",
        "|| (!(recorded_ == now) && !M)) {",
        "device_failures",
        "one_method and fake",
    ),
    Fault(
        "a head is not cleared",
        HEAD,
        "std::memset(slot().words, 0,",
        "std::memset(slot().words, 0, M ? 0 :",
        "device_caching",
        "batches and lazy",
    ),
    Fault(
        "a table of nodes is used uncleared",
        TYPES,
        "if (grown || bits_ != bits",
        "if ((grown && !M) || (bits_ != bits && !M)",
        "device_caching",
        "batches and lazy",
    ),
    Fault(
        "stamps of two batches overlap",
        TYPES,
        "stamp_ += static_cast<uint32_t>(capacity_);",
        "stamp_ += M ? 1 : static_cast<uint32_t>(capacity_);",
        "device_caching",
        "batches and lazy",
    ),
]
