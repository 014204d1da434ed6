// A device made of a backend: each operation is a list of steps of device/steps.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "khop/device/device.hpp"
#include "khop/device/gather_errors.hpp"
#include "khop/device/operations_on.hpp"
#include "khop/device/row_draw_on.hpp"
#include "khop/device/steps/gather.hpp"
#include "khop/device/steps/gather_split.hpp"
#include "khop/device/steps/walk.hpp"
#include "khop/device/steps/write_padded.hpp"
#include "khop/device/subgraph_on.hpp"

namespace khop::device {

template <class Backend>
class DeviceOn final : public Device {
 public:
  template <class... Args>
  explicit DeviceOn(std::string name, Args&&... args)
      : name_(std::move(name)), backend_(std::forward<Args>(args)...) {}

  std::string name() const override { return name_; }
  int64_t num_launches() const override { return backend_.num_launches(); }
  uintptr_t stream() const override { return reinterpret_cast<uintptr_t>(backend_.stream()); }

  void* allocate(std::size_t bytes) override { return backend_.allocate(bytes); }
  void release(void* on_device) override { backend_.release(on_device); }
  void upload(void* on_device, const void* from, std::size_t bytes) override {
    backend_.upload(on_device, from, bytes);
  }
  void upload_pinned(void* on_device, const void* from, std::size_t bytes) override {
    backend_.upload_pinned(on_device, from, bytes);
  }
  void fill(void* on_device, int byte, std::size_t bytes) override {
    backend_.fill(on_device, byte, bytes);
  }
  void download(void* to, const void* on_device, std::size_t bytes) override {
    backend_.download(to, on_device, bytes);
  }
  void synchronize() override { backend_.synchronize(); }
  void wait_quietly() noexcept override { backend_.wait_quietly(); }
  const void* map_host(const void* memory, std::size_t bytes, const HostOwner& owner) override {
    return backend_.map_host(memory, bytes, owner);
  }
  void unmap_host(const void* memory, std::size_t bytes) noexcept override {
    backend_.unmap_host(memory, bytes);
  }
  void* allocate_host(std::size_t bytes) override { return backend_.allocate_host(bytes); }
  void release_host(void* memory) noexcept override { backend_.release_host(memory); }

  void reach(Device& peer) override {
    auto* const other = dynamic_cast<DeviceOn*>(&peer);
    if (other != nullptr && backend_.reach(other->backend_)) return;
    throw std::runtime_error("device '" + name_ + "' cannot read the memory of device '" +
                             peer.name() +
                             "': no NVLink or PCIe path allows it. Put them in different groups");
  }
  void* allocate_for_peers(std::size_t bytes) override {
    return backend_.allocate_for_peers(bytes);
  }
  void release_for_peers(void* on_device) noexcept override {
    backend_.release_for_peers(on_device);
  }
  std::string handle_of(void* on_device) override { return backend_.handle_of(on_device); }
  void* open_handle(const std::string& handle) override { return backend_.open_handle(handle); }
  void close_handle(void* on_device) noexcept override { backend_.close_handle(on_device); }
  bool lock_pages(void* memory, std::size_t bytes) noexcept override {
    return backend_.lock_pages(memory, bytes);
  }
  void unlock_pages(void* memory) noexcept override { backend_.unlock_pages(memory); }

  int64_t gather(const void* table, int64_t num_rows, int64_t row_bytes, const void* rows,
                 int row_width, int64_t count, void* out, bool waits) override {
    if (waits) errors_.check_earlier();
    if (count == 0) return -1;
    const RowTable source{table, num_rows, row_bytes};
    visit_rows(rows, row_width, [&](auto* ids) {
      device::gather(backend_, source, ids, count, out, errors_.of_next_gather());
    });
    return waits ? errors_.take() : -1;
  }
  void split_gather(const SplitTable& table, const void* rows, int row_width, int64_t count,
                    void* out, SplitCounts* counts) override {
    visit_rows(rows, row_width, [&](auto* ids) {
      device::split_gather(backend_, table, ids, count, out, counts, sorter_);
    });
  }

  void blank_rows(void* rows, int64_t row_bytes, const uint8_t* mask, int64_t count) override {
    device::blank_rows(backend_, rows, row_bytes, mask, count);
  }

  EdgeListError coo_to_csr(const CooEdges& list, const RowsOut& out) override {
    return operations::coo_to_csr(backend_, list, out);
  }
  DeviceError accumulate_hotness(const GraphArrays& graph, const HotnessHop& hop,
                                 double* log_missed, int64_t num_nodes) override {
    return operations::accumulate_hotness(backend_, graph, hop, log_missed, num_nodes);
  }
  int64_t random_walks(const WalkRequest& request, const int64_t* starts, int64_t count,
                       int64_t* nodes, int64_t* edges) override {
    return device::random_walks(backend_, request, starts, count, nodes, edges);
  }

  std::unique_ptr<DeviceSubgraph> make_subgraph(const std::vector<int64_t>& num_nodes,
                                                std::vector<Relation> relations, bool with_edges,
                                                bool disjoint, int64_t room) override {
    return std::make_unique<SubgraphOn<Backend>>(backend_, num_nodes, std::move(relations),
                                                 with_edges, disjoint, room);
  }
  std::unique_ptr<RowDraw> make_row_draw() override {
    return std::make_unique<RowDrawOn<Backend>>(backend_);
  }

 private:
  template <class F>
  static void visit_rows(const void* rows, int width, F&& f) {
    if (width == 4) {
      f(static_cast<const int32_t*>(rows));
    } else {
      f(static_cast<const int64_t*>(rows));
    }
  }

  std::string name_;
  Backend backend_;
  GatherErrors<Backend> errors_{backend_};
  RowSorter<Backend> sorter_{backend_};
};

}  // namespace khop::device
