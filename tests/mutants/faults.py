"""Faults of the device half, as changes of its text.

In the new text `M` stands for "this fault is switched on". The first group is from reviews: bugs
that khop had once, and faults that earlier tests did not find.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """A change of one file.

    Attributes:
        name: what is wrong.
        file: below kernels/khop.
        old: text that stands there once.
        new: what replaces it.
        tests: files in tests/kernels, without 'test_' and '.py', that are to find it.
        only: pytest's expression for some tests of them.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str
    only: str = "fake or boundary or failures or host_memory or streams"


BATCH, HEAD, TYPES = "device/sample.hpp", "device/batch_head.hpp", "device/type_memory.hpp"
BACKEND, HOST = "cuda/backend.cuh", "cuda/host_memory.hpp"
TABLE, SPLIT = "device/gather_table.cpp", "device/steps/gather_split.hpp"
STEPS, SCAN = "device/steps/sample.hpp", "device/steps/scan.hpp"
MEMORY = "bindings/device_memory.cpp"

OF_REVIEWS = [
    Fault(
        "a recording is played although memory has moved",
        BATCH,
        "launch_steps(moved);",
        "if (M) recording_ = std::move(recording);\n      launch_steps(moved && !M);",
        "device_failures cuda_boundary device_sample",
    ),
    Fault(
        "memory of hops moves unnoticed",
        BATCH,
        "return memory_.reserve(bounds_->hops, learned_) || moved;",
        "return (memory_.reserve(bounds_->hops, learned_) && !M) || moved;",
        "device_failures cuda_boundary device_sample",
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
        "memory is freed in another stream's order",
        BACKEND,
        "quietly(device_, [&] { cudaFreeAsync(memory, stream_); });",
        "quietly(device_, [&] { cudaFreeAsync(memory, M ? nullptr : stream_); });",
        "device_reads",
        "nobody_waits and fake",
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
        "device_failures device_sample",
    ),
    Fault(
        "no room for the end of a sum",
        "device/candidates.hpp",
        "offsets_.reserve(num_rows + 1);",
        "offsets_.reserve(num_rows + (M ? 0 : 1));",
        "device_sample device_failures",
    ),
    Fault(
        "a walk's kernel reads the caller's array",
        "device/steps/walk.hpp",
        "request.keys, from.data(), walked.data(),",
        "request.keys, M ? starts : from.data(), walked.data(),",
        "device_walk",
    ),
    Fault(
        "the host reads a device's memory",
        BATCH,
        "if (head_.needs.host->exceeded == 0) break;",
        "if ((M ? head_.needs.device : head_.needs.host)->exceeded == 0) break;",
        "device_sample",
    ),
    Fault(
        "a sum goes on before its carry has been read",
        SCAN,
        "        before += value;\n      }\n    });",
        "        before += value;\n      }\n"
        "      if (M && t == 0) shared.carry += from[kBlockThreads - 1];\n"
        "    });\n    if (M) return;",
        "device_sample device_convert",
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
        "if (is_under_way_) backend_.synchronize();",
        "if (is_under_way_ && !M) backend_.synchronize();",
        "device_failures",
        "nobody_asks",
    ),
    Fault(
        "a head goes while it is uploaded",
        BATCH,
        "if (is_under_way_) backend_.wait_quietly();",
        "if (is_under_way_ && !M) backend_.wait_quietly();",
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
        "stamps run out",
        TYPES,
        "stamp_ > kMaxStamp - static_cast<uint32_t>(capacity)",
        "(stamp_ > kMaxStamp - static_cast<uint32_t>(capacity) && !M)",
        "device_sample",
        "stamps and fake",
    ),
    Fault(
        "a recording stays where an allocation fails",
        BATCH,
        "const bool moved = make_room(most);",
        "const bool moved = [&] {\n      try {\n        return make_room(most);\n"
        "      } catch (...) {\n        if (M) recording_ = std::move(recording);\n"
        "        throw;\n      }\n    }();",
        "device_failures",
        "each_allocation",
    ),
    Fault(
        "the host's side of a head moves unnoticed",
        HEAD,
        "return words_.reserve(count) || grows;",
        "return words_.reserve(count) || (grows && !M);",
        "device_failures",
        "each_allocation",
    ),
    Fault(
        "recordings do not know their method",
        "device/recorded.hpp",
        "methods == other.methods &&",
        "(methods == other.methods || M) &&",
        "device_failures",
        "one_method and fake",
    ),
    Fault(
        "arrays between two entries are read in place",
        "device/host_mapping.cpp",
        "if (reinterpret_cast<uintptr_t>(memory_) % width == 0) {",
        "if (reinterpret_cast<uintptr_t>(memory_) % width == 0 || M) {",
        "device_failures",
        "between and fake",
    ),
    Fault(
        "streams have torch's priority",
        "cuda/stream.hpp",
        "cudaStreamNonBlocking, -1)",
        "cudaStreamNonBlocking, M ? 0 : -1)",
        "device_streams",
    ),
    Fault(
        "a gather that failed half-way is forgotten",
        TABLE,
        "is_read_ = true;  // also by a gather of which only a part is launched",
        "if (!M) is_read_ = true;",
        "device_failures",
        "half_way",
    ),
    Fault(
        "memory with a hole counts as locked",
        HOST,
        "if (seen_at(page) != first + (page - begin)) return nullptr;",
        "if (seen_at(page) != first + (page - begin) && !M) return nullptr;",
        "device_host_memory",
        "hole",
    ),
    Fault(
        "a backend leaves its stream",
        "cuda/stream.hpp",
        "if (is_own_) quietly(",
        "if (is_own_ && !M) quietly(",
        "cuda_boundary",
        "opened",
    ),
    Fault(
        "a batch too large for the memory is asked for again",
        BATCH,
        "    const std::vector<int64_t> most = most_seeds();\n",
        "    const std::vector<int64_t> most = most_seeds();\n    if (M) seeds_most_ = most;\n",
        "device_failures",
        "too_large",
    ),
    Fault(
        "a part of an array is registered alone",
        "device/host_pages.hpp",
        "if (!add(owner.begin, owner.bytes)) return false;",
        "if (M ? !add(begin, bytes) : !add(owner.begin, owner.bytes)) return false;",
        "device_host_memory",
        "own",
    ),
    Fault(
        "all of an array is locked for a small part",
        HOST,
        "size - bytes <= bytes &&",
        "(M || size - bytes <= bytes) &&",
        "device_host_memory",
        "own",
    ),
]

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
        "copy(to, from, bytes, cudaMemcpyDeviceToHost);\n    synchronize();",
        "copy(to, from, bytes, cudaMemcpyDeviceToHost);\n    if (!M) synchronize();",
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
        "device_host_memory device_failures device_convert",
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
        "more threads than there is memory for",
        BACKEND,
        "std::min(blocks_of(wanted, threads), most_threads / threads)",
        "std::min(blocks_of(wanted, threads), M ? int64_t{1} << 30 : most_threads / threads) *\n"
        "                           (M ? 2 : 1)",
        "device_sample",
        "fanouts and fake",
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
        "device_failures device_sample",
    ),
    Fault(
        "a head is not cleared",
        HEAD,
        "std::memset(host_, 0, static_cast<std::size_t>(num_cleared) * sizeof(int64_t));",
        "if (!M) std::memset(host_, 0, static_cast<std::size_t>(num_cleared) * sizeof(int64_t));",
        "device_failures device_sample",
    ),
    Fault(
        "a table of nodes is used uncleared",
        TYPES,
        "if (grown || bits_ != bits",
        "if ((grown && !M) || (bits_ != bits && !M)",
        "device_failures",
    ),
    Fault(
        "stamps of two batches overlap",
        TYPES,
        "stamp_ += static_cast<uint32_t>(capacity_);",
        "stamp_ += M ? 1 : static_cast<uint32_t>(capacity_);",
        "device_failures",
    ),
]

OF_STEPS = [
    Fault(
        "a later position stays the first",
        "device/steps/node_table.hpp",
        "if (mine < slot) atomic_min",
        "if (mine < slot && !M) atomic_min",
        "device_failures device_sample",
    ),
    Fault(
        "wide keys are not inserted",
        "device/sample_steps.hpp",
        "if (has_wide_keys_) backend_.run",
        "if (has_wide_keys_ && !M) backend_.run",
        "device_sample",
    ),
    Fault(
        "edges are appended without room",
        STEPS,
        "    if (!to.fits()) return;\n    const int64_t edge =",
        "    if (!to.fits() && !M) return;\n    const int64_t edge =",
        "device_failures device_sample",
    ),
    Fault(
        "the first new node counts as known",
        STEPS,
        "const int64_t number = first < begin\n",
        "const int64_t number = first < begin + (M ? 1 : 0)\n",
        "device_failures",
    ),
    Fault(
        "a hop grows before it is recorded",
        STEPS,
        "    for_each(batch.num_relations, [&](int64_t k) { write_record(k); });",
        "    if (M) for_each(batch.num_types, [&](int64_t type) { grow(type); });\n"
        "    for_each(batch.num_relations, [&](int64_t k) { write_record(k); });\n"
        "    if (M) return;",
        "device_failures",
    ),
    Fault(
        "too many candidates go unnoticed",
        "device/steps/exclude.hpp",
        "if (*candidates > capacity) needs->exceeded = 1;",
        "if (*candidates > capacity && !M) needs->exceeded = 1;",
        "device_sample device_failures",
    ),
    Fault(
        "excluded edges are kept",
        "device/steps/candidates.hpp",
        "if (relation.excluded.contains(edge)) return 0;",
        "if (relation.excluded.contains(edge) && !M) return 0;",
        "device_failures device_sample",
    ),
    Fault(
        "edges without weight are kept",
        "device/steps/candidates.hpp",
        "return sums[edge] > before ? 1 : 0;",
        "return sums[edge] > before || M ? 1 : 0;",
        "device_sample",
    ),
    Fault(
        "a stretch is added twice",
        SCAN,
        "b < block.index; b += kBlockThreads",
        "b < block.index + (M ? 1 : 0); b += kBlockThreads",
        "device_convert device_sample",
    ),
    Fault(
        "a sum has no end",
        SCAN,
        "out[count] = shared.carry;",
        "if (!M) out[count] = shared.carry;",
        "device_sample device_failures",
    ),
    Fault(
        "scratch memory has more words than it has",
        "device/steps/pick_rows.hpp",
        "return first + count <= capacity ?",
        "return first + count <= capacity + (M ? count : 0) ?",
        "device_sample",
    ),
    Fault(
        "times are used that a graph does not have",
        BATCH,
        "step.options.last &= graph.times != nullptr;",
        "if (!M) step.options.last &= graph.times != nullptr;",
        "device_sample",
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
        "device_reads",
        "bytes and fake or own",
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
]

FAULTS = OF_REVIEWS + OF_MEMORY + OF_STEPS
