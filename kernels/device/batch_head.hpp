// The words that host and device exchange for a batch: one block, up before it and down after it.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "khop/parallel/hop.hpp"
#include "khop/parallel/memory.hpp"

namespace khop {

// Where the parts of the block lie. Every part has its counterpart on the host, at the same place.
template <class Backend>
class BatchHead {
 public:
  using TypeState = parallel::TypeState;
  using HopRecord = parallel::HopRecord;
  using Needs = parallel::Needs;

  explicit BatchHead(Backend& backend) : words_(backend) {}

  // Lays the block out anew, with zeros. Returns whether it has moved on the device.
  bool lay_out(std::size_t num_types, std::size_t num_relations, std::size_t num_hops,
               std::size_t num_times) {
    num_types_ = num_types;
    num_relations_ = num_relations;
    std::size_t at = 0;
    const auto place = [&at](std::size_t bytes) {
      const std::size_t begin = at;
      at += (bytes + sizeof(int64_t) - 1) / sizeof(int64_t);
      return begin;
    };
    states_ = place(num_types * sizeof(TypeState));
    fault_ = place(sizeof(Fault));
    needs_ = place(sizeof(Needs));
    scratch_used_ = place(sizeof(int64_t));
    zero_ = place(sizeof(int64_t));
    hop_sizes_ = place(num_hops * num_types * sizeof(int64_t));
    records_ = place(num_hops * num_relations * sizeof(HopRecord));
    num_returned_ = at;
    keys_ = place(num_hops * num_relations * sizeof(uint64_t));
    times_ = place(num_times * sizeof(int64_t));
    host_.assign(at, 0);
    return words_.reserve(static_cast<int64_t>(at));
  }

  void upload() { words_.upload(host_.data(), static_cast<int64_t>(host_.size())); }
  void download() { words_.download(host_.data(), static_cast<int64_t>(num_returned_)); }

  // On the host.
  TypeState& state(std::size_t type) { return host<TypeState>(states_)[type]; }
  const Fault& fault() { return *host<Fault>(fault_); }
  const Needs& needs() { return *host<Needs>(needs_); }
  int64_t hop_size(std::size_t hop, std::size_t type) {
    return host<int64_t>(hop_sizes_)[hop * num_types_ + type];
  }
  const HopRecord& record(std::size_t hop, std::size_t relation) {
    return host<HopRecord>(records_)[hop * num_relations_ + relation];
  }
  uint64_t& key(std::size_t hop, std::size_t relation) {
    return host<uint64_t>(keys_)[hop * num_relations_ + relation];
  }
  int64_t* times() { return host<int64_t>(times_); }

  // On the device.
  TypeState* device_states() const { return device<TypeState>(states_); }
  TypeState* device_state(std::size_t type) const { return device_states() + type; }
  Fault* device_fault() const { return device<Fault>(fault_); }
  Needs* device_needs() const { return device<Needs>(needs_); }
  int64_t* device_scratch_used() const { return device<int64_t>(scratch_used_); }
  const int64_t* device_zero() const { return device<int64_t>(zero_); }
  int64_t* device_hop_sizes(std::size_t hop) const {
    return device<int64_t>(hop_sizes_) + hop * num_types_;
  }
  HopRecord* device_record(std::size_t hop, std::size_t relation) const {
    return device<HopRecord>(records_) + hop * num_relations_ + relation;
  }
  const uint64_t* device_key(std::size_t hop, std::size_t relation) const {
    return device<uint64_t>(keys_) + hop * num_relations_ + relation;
  }
  const int64_t* device_times() const { return device<int64_t>(times_); }

 private:
  template <class T>
  T* host(std::size_t at) {
    return reinterpret_cast<T*>(host_.data() + at);
  }
  template <class T>
  T* device(std::size_t at) const {
    return reinterpret_cast<T*>(words_.data() + at);
  }

  DeviceArray<Backend, int64_t> words_;
  std::vector<int64_t> host_;
  std::size_t num_types_ = 0;
  std::size_t num_relations_ = 0;
  std::size_t num_returned_ = 0;
  std::size_t states_ = 0, fault_ = 0, needs_ = 0, scratch_used_ = 0, zero_ = 0;
  std::size_t hop_sizes_ = 0, records_ = 0, keys_ = 0, times_ = 0;
};

}  // namespace khop
