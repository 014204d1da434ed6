// Errors of a device's gathers: one word in its memory for all of them.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "khop/device/steps/memory.hpp"

namespace khop::device {

template <class Backend>
class GatherErrors {
 public:
  explicit GatherErrors(Backend& backend) : backend_(&backend), first_bad_(backend) {}

  // The word that a gather lowers to the first entry whose row does not exist.
  uint64_t* of_next_gather() {
    if (first_bad_.data() == nullptr) {
      DeviceArray<Backend, uint64_t> first_bad(*backend_, 1);
      clear(first_bad);
      first_bad_ = std::move(first_bad);
    }
    is_checked_ = false;
    return first_bad_.data();
  }

  // Of gathers that have not been waited for, if there are any: waits and throws std::out_of_range
  // if one of them asked for a row that does not exist.
  void check_earlier() {
    if (is_checked_) return;
    const int64_t bad = take();
    if (bad < 0) return;
    throw std::out_of_range("entry " + std::to_string(bad) +
                            " of rows that were gathered without waiting does not exist");
  }

  // -1, or the first entry whose row does not exist. Waits.
  int64_t take() {
    uint64_t bad;
    first_bad_.download(&bad, 1);
    is_checked_ = true;
    if (bad == kNone) return -1;
    clear(first_bad_);
    return static_cast<int64_t>(bad);
  }

 private:
  static constexpr uint64_t kNone = ~uint64_t{0};

  void clear(const DeviceArray<Backend, uint64_t>& word) {
    backend_->fill(word.data(), 0xFF, sizeof(kNone));
  }

  Backend* backend_;
  DeviceArray<Backend, uint64_t> first_bad_;
  bool is_checked_ = true;
};

}  // namespace khop::device
