// A device that draws and gathers: a GPU, or one emulated on the CPU. The interface.
//
// Everything happens in the order of the calls. Pointers named `on_device` are to memory that the
// device reads: its own, or the host's after `map_host`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "khop/device/graph.hpp"
#include "khop/device/host_pages.hpp"
#include "khop/device/operations.hpp"
#include "khop/device/row_draw.hpp"
#include "khop/device/subgraph.hpp"

namespace khop::device {

struct SplitTable;
struct SplitCounts;

class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  virtual std::string name() const = 0;  // "cuda:0", "emulated"
  virtual int64_t num_launches() const = 0;
  virtual uintptr_t stream() const = 0;  // of CUDA, on which everything happens; 0: none

  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* on_device) = 0;
  // `from` has been read when it returns; with `upload_pinned`, from page-locked memory, only after
  // the next wait.
  virtual void upload(void* on_device, const void* from, std::size_t bytes) = 0;
  virtual void upload_pinned(void* on_device, const void* from, std::size_t bytes) = 0;
  virtual void fill(void* on_device, int byte, std::size_t bytes) = 0;
  virtual void download(void* to, const void* on_device, std::size_t bytes) = 0;  // waits
  virtual void synchronize() = 0;
  // The same for destructors, whatever comes of it; any thread may call it.
  virtual void wait_quietly() noexcept = 0;
  // Makes host memory readable in place; returns where the device sees it, or null if the driver
  // refuses (see HostMapping, which then makes a copy).
  virtual const void* map_host(const void* memory, std::size_t bytes, const HostOwner& owner) = 0;
  virtual void unmap_host(const void* memory, std::size_t bytes) noexcept = 0;
  // Page-locked memory of the host, which the device reads in place at the same address.
  virtual void* allocate_host(std::size_t bytes) = 0;
  virtual void release_host(void* memory) noexcept = 0;

  // Makes memory that `peer` allocated for peers readable; throws std::runtime_error that names
  // both devices if there is no path.
  virtual void reach(Device& peer) = 0;
  virtual void* allocate_for_peers(std::size_t bytes) = 0;
  virtual void release_for_peers(void* on_device) noexcept = 0;

  // What another process of the machine opens memory for peers by; it must be closed there before
  // it is released here. Throws std::runtime_error where memory is not shared so (emulated devices
  // share what the host's processes share).
  virtual std::string handle_of(void* on_device) = 0;
  virtual void* open_handle(const std::string& handle) = 0;
  virtual void close_handle(void* on_device) noexcept = 0;

  // Locks pages of the host, which are copied to without a detour; returns whether the driver
  // agreed.
  virtual bool lock_pages(void* memory, std::size_t bytes) noexcept = 0;
  virtual void unlock_pages(void* memory) noexcept = 0;

  // out[i] = table[rows[i]] for rows of `row_bytes` bytes. Returns -1, or, if it waits, the first i
  // whose row does not exist; out[i] is left as it was. Throws std::out_of_range if it waits and an
  // earlier call that did not asked for such a row.
  virtual int64_t gather(const void* table, int64_t num_rows, int64_t row_bytes, const void* rows,
                         int row_width, int64_t count, void* out, bool waits) = 0;

  // Sets the rows to zero whose byte in the mask is 0; all on the device.
  virtual void blank_rows(void* rows, int64_t row_bytes, const uint8_t* mask, int64_t count) = 0;

  // Edge list to compressed rows; edges of a row keep the order of the list. Waits for the check
  // of the ids; if it finds a error, nothing is written.
  virtual EdgeListError coo_to_csr(const CooEdges& list, const RowsOut& out) = 0;

  // Adds to log_missed[u] the logarithm of the probability that no row of the frontier draws u.
  // Waits for the check of the graph; if it finds a error, nothing is added: kCorruptRow (the row)
  // or kNoSuchNeighbor (the edge's place).
  virtual DeviceError accumulate_hotness(const GraphArrays& graph, const HotnessHop& hop,
                                         double* log_missed, int64_t num_nodes) = 0;

  // Walks from starts[0 .. count), as cpu::random_walks; all three arrays are the host's, and edges
  // may be null. Waits. Returns -1, or the first walk that comes to a node that has no row or a
  // corrupt one; nothing is written then.
  virtual int64_t random_walks(const WalkRequest& request, const int64_t* starts, int64_t count,
                               int64_t* nodes, int64_t* edges) = 0;

  // `room`: entries of a batch that memory is taken for at once; for more only when batches turn
  // out to need it.
  virtual std::unique_ptr<DeviceSubgraph> make_subgraph(const std::vector<int64_t>& num_nodes,
                                                        std::vector<Relation> relations,
                                                        bool with_edges, bool disjoint,
                                                        int64_t room) = 0;
  virtual std::unique_ptr<RowDraw> make_row_draw() = 0;
  // The same from a split table, without a wait; served rows and errors are added to `counts`, on
  // the device.
  virtual void split_gather(const SplitTable& table, const void* rows, int row_width, int64_t count,
                            void* out, SplitCounts* counts) = 0;
};

// What an emulated device can do.
struct EmulatedAbilities {
  bool maps_host = true;  // register host memory that it did not allocate
  int island = 0;         // devices of one island read each other's memory
};

// One on the CPU. Steps run in orders that `seed` determines, on so many threads.
std::unique_ptr<Device> make_emulated_device(uint64_t seed, int num_threads,
                                             EmulatedAbilities abilities = {});

}  // namespace khop::device
