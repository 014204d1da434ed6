"""Bugs that khop had once, and faults that a review put in and tests did not find."""

from mutants.fault import Fault

MEMORY = "bindings/device_memory.cpp"
BATCH = "device/sample.hpp"
TYPES = "device/type_memory.hpp"
BACKEND = "cuda/backend.cuh"
HOST = "cuda/host_memory.hpp"
TABLE = "device/gather_table.cpp"
STEPS = "device/steps/sample.hpp"
SCAN = "device/steps/scan.hpp"

OF_REVIEWS = [
    Fault(
        "a recording is played although memory has moved",
        BATCH,
        "slot.batch = plan_->batch;\n    return moved;",
        "slot.batch = plan_->batch;\n    if (M) recording_ = std::move(recording);\n"
        "    return moved && !M;",
        "device_caching",
        "batches and lazy",
    ),
    Fault(
        "a device is made current that the process has not used",
        "cuda/on_device.hpp",
        "if (before_ == device_ || !has_context(before_)) return;",
        "if (before_ == device_ || (!M && !has_context(before_))) return;",
        "cuda_boundary",
        "context",
    ),
    Fault(
        "the last error stays",
        "cuda/check.hpp",
        "{ cudaGetLastError(); }",
        "{\n  if (!M) cudaGetLastError();\n}",
        "cuda_boundary",
        "failed or short",
    ),
    Fault(
        "tables do not wait for gathers",
        TABLE,
        "if (is_read_) device_->wait_quietly();",
        "if (is_read_ && !M) device_->wait_quietly();",
        "cuda_boundary",
        "tables_wait",
    ),
    Fault(
        "tables that read the host do not wait for gathers",
        TABLE,
        "DeviceTable::~DeviceTable() {",
        "DeviceTable::~DeviceTable() {\n  if (M && cold_ != nullptr) return;",
        "cuda_boundary",
        "tables_wait",
    ),
    Fault(
        "graphs do not wait for batches",
        "bindings/device_graph.cpp",
        "for (const SharedDevice& reader : readers_) (*reader)->wait_quietly();",
        "for (const SharedDevice& reader : readers_) {\n    if (!M) (*reader)->wait_quietly();\n"
        "  }",
        "cuda_boundary",
        "graphs_wait",
    ),
    Fault(
        "memory is freed whatever its stream still does",
        BACKEND,
        "quietly(device_, [&] { cudaFreeAsync(memory, stream_); });",
        "quietly(device_, [&] { M ? cudaFree(memory) : cudaFreeAsync(memory, stream_); });",
        "cuda_boundary device_reads",
        "recordings_keep or tables_wait or nobody_waits",
    ),
    Fault(
        "memory for peers lies on device 0",
        BACKEND,
        "void* allocate_for_peers(std::size_t bytes) {\n    const OnDevice on(device_);",
        "void* allocate_for_peers(std::size_t bytes) {\n    const OnDevice on(M ? 0 : device_);",
        "cuda_boundary",
        "context",
    ),
    Fault(
        "staging memory is used again under a copy",
        "cuda/staging.hpp",
        "if (in_use()) wait();",
        "if (in_use() && !M) wait();",
        "device_host_memory",
    ),
    Fault(
        "a buffer has room for one entry more than there is",
        STEPS,
        "return position < buffer.capacity;",
        "return position < buffer.capacity + (M ? 1 : 0);",
        "device_caching",
        "batches and lazy",
    ),
    Fault(
        "no room for the end of a sum",
        "device/candidates.hpp",
        "offsets_.reserve(num_rows + 1);",
        "offsets_.reserve(num_rows + (M ? 0 : 1));",
        "device_failures",
        "exclusions and 16 and cudaHostAlloc",
    ),
    Fault(
        "a walk's kernel reads the caller's array",
        "device/steps/walk.hpp",
        "from.data(), walked.data(), edges ==",
        "M ? starts : from.data(), walked.data(), edges ==",
        "device_walk",
    ),
    Fault(
        "the host reads a device's memory",
        BATCH,
        "if (head_.needs.host->exceeded == 0) break;",
        "if ((M ? head_.needs.device : head_.needs.host)->exceeded == 0) break;",
        "device_caching",
        "batches and lazy",
    ),
    Fault(
        "a sum goes on before its carry has been read",
        SCAN,
        "        before += value;\n      }\n    });",
        "        before += value;\n      }\n"
        "      if (M && t == 0) shared.carry += from[kBlockThreads - 1];\n"
        "    });\n    if (M) return;",
        "device_caching",
        "batches and lazy",
    ),
    Fault(
        "hot rows of a group lie in memory that peers cannot read",
        TABLE,
        "return group_->size() == 1 ? device.allocate(bytes)",
        "return group_->size() == 1 || M ? device.allocate(bytes)",
        "cuda_boundary device_caching",
        "tables_wait or peers",
    ),
    Fault(
        "peers are not enabled",
        HOST,
        "if (can == 0) return false;",
        "if (can == 0) return false;\n  if (M) return true;",
        "cuda_boundary device_caching",
        "tables_wait or peers",
    ),
    Fault(
        "a head is written while it is uploaded",
        BATCH,
        "if (slot.is_under_way) head_.wait_for(slot);",
        "if (slot.is_under_way && !M) head_.wait_for(slot);",
        "device_failures",
        "nobody_asks",
    ),
    Fault(
        "a head goes while it is uploaded",
        BATCH,
        "if (head_.is_under_way()) backend_",
        "if (!M && head_.is_under_way()) backend_",
        "device_failures",
        "nobody_asks",
    ),
    Fault(
        "memory of another process is closed under a copy",
        MEMORY,
        "    device.wait_quietly();\n    if (origin_ == Origin::kForPeers)",
        "    if (!(M && origin_ == Origin::kOpened)) device.wait_quietly();\n"
        "    if (origin_ == Origin::kForPeers)",
        "device_failures",
        "another_process",
    ),
    Fault(
        "stamps begin anew over entries of older batches",
        TYPES,
        "      backend_->fill(slots_.data(), 0,",
        "      if (!M || grown) backend_->fill(slots_.data(), 0,",
        "device_sample",
        "stamps and fake",
    ),
]
