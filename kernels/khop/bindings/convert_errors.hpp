// Errors for edge lists with ids that no node has.
#pragma once

#include <cstdint>
#include <string>

#include "khop/bindings/arrays.hpp"

namespace khop::bindings {

[[noreturn]] inline void throw_bad_map(const char* name, int64_t id, int64_t to, int64_t limit) {
  throw nb::index_error((std::string(name) + " maps id " + std::to_string(id) + " to " +
                         std::to_string(to) + ", but there are " + std::to_string(limit) + " nodes")
                            .c_str());
}

[[noreturn]] inline void throw_bad_edge(int64_t edge, int64_t key, int64_t neighbor,
                                        int64_t num_keys, int64_t num_neighbors) {
  throw nb::index_error(("edge " + std::to_string(edge) + " joins node " +
                         std::to_string(neighbor) + " (of " + std::to_string(num_neighbors) +
                         ") and node " + std::to_string(key) + " (of " + std::to_string(num_keys) +
                         "): an id is negative or not below the number of nodes")
                            .c_str());
}

}  // namespace khop::bindings
