// What a device reported, as the exceptions that the CPU throws.
#pragma once

#include <stdexcept>
#include <string>

#include "khop/device/steps/backend.hpp"

namespace khop {

inline void check_fault(const Fault& fault) {
  const std::string detail = std::to_string(fault.detail);
  switch (fault.code) {
    case Fault::kNone:
      return;
    case Fault::kNoSuchRow:
      throw std::out_of_range("node " + detail + " is not one of the graph's rows");
    case Fault::kCorruptRow:
      throw std::runtime_error("row pointers are corrupt: row " + detail +
                               " does not lie within the edges");
    case Fault::kNoSuchNeighbor:
      throw std::out_of_range("node " + detail + " does not exist, but an edge leads to it");
    default:
      throw std::runtime_error("a device reported fault " + std::to_string(fault.code) + " (" +
                               detail + ")");
  }
}

}  // namespace khop
