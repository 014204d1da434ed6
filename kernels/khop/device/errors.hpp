// Errors that a device reported, as the exceptions that the CPU throws.
#pragma once

#include <stdexcept>
#include <string>

#include "khop/device/steps/backend.hpp"

namespace khop::device {

inline void check_error(const DeviceError& error) {
  const std::string detail = std::to_string(error.detail);
  switch (error.code) {
    case DeviceError::kNone:
      return;
    case DeviceError::kNoSuchRow:
      throw std::out_of_range("node " + detail + " is not one of the graph's rows");
    case DeviceError::kCorruptRow:
      throw std::runtime_error("row pointers are corrupt: row " + detail +
                               " does not lie within the edges");
    case DeviceError::kNoSuchNeighbor:
      throw std::out_of_range("node " + detail + " does not exist, but an edge leads to it");
    default:
      throw std::runtime_error("a device reported fault " + std::to_string(error.code) + " (" +
                               detail + ")");
  }
}

}  // namespace khop::device
