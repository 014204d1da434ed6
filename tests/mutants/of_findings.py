"""Findings of the second review of the device half."""

from mutants.fault import Fault

BATCH = "device/sample.hpp"
HEAD = "device/batch_head.hpp"
HOST = "cuda/host_memory.hpp"
TABLE = "device/gather_table.cpp"

OF_FINDINGS = [
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
