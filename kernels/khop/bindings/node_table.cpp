#include "khop/cpu/node_table.hpp"

#include <algorithm>
#include <mutex>

#include "khop/bindings/checks.hpp"
#include "khop/bindings/module.hpp"

namespace khop::bindings {
namespace {

// A node table for Python, with a lock: kernels run while other Python threads do.
class NodeNumbers {
 public:
  explicit NodeNumbers(int64_t num_nodes) : set_(num_nodes, false) {}

  NumpyArray<int64_t> number(const In<int64_t>& ids) {
    const auto count = static_cast<int64_t>(ids.shape(0));
    cpu::Buffer<int64_t> numbers(count);
    {
      nb::gil_scoped_release release;
      const std::lock_guard<std::mutex> lock(mutex_);
      set_.check_ids(ids.data(), count);
      // In pieces: the table grows by the distinct ids, which are fewer than all.
      set_.reserve(count / kRepeats);
      int32_t piece[kPiece];
      for (int64_t i = 0; i < count; i += kPiece) {
        const int64_t size = std::min(kPiece, count - i);
        set_.insert(ids.data() + i, size, piece);
        std::copy_n(piece, size, numbers.data() + i);
      }
    }
    return to_numpy(std::move(numbers));
  }

  NumpyArray<int64_t> find(const In<int64_t>& ids) {
    const auto count = static_cast<int64_t>(ids.shape(0));
    cpu::Buffer<int64_t> numbers(count);
    {
      nb::gil_scoped_release release;
      const std::lock_guard<std::mutex> lock(mutex_);
      for (int64_t i = 0; i < count; ++i) {
        numbers[i] = set_.holds(ids.data()[i]) ? set_.find(ids.data()[i]) : -1;
      }
    }
    return to_numpy(std::move(numbers));
  }

  NumpyArray<int64_t> ids(int64_t first) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (first < 0 || first > set_.size()) throw nb::index_error("no such number");
    cpu::Buffer<int64_t> found(set_.size() - first);
    std::copy_n(set_.keys() + first, found.size(), found.data());
    return to_numpy(std::move(found));
  }

  int64_t size() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return set_.size();
  }

 private:
  static constexpr int64_t kPiece = 4096;
  static constexpr int64_t kRepeats = 4;  // of an id among whole rows, about

  cpu::NodeSet set_;
  std::mutex mutex_;
};

}  // namespace

void bind_node_table(nb::module_& m) {
  nb::class_<NodeNumbers>(m, "NodeNumbers", "Numbers ids in the order of first appearance.")
      .def(nb::init<int64_t>(), nb::arg("num_nodes"), "Ids are from 0 to num_nodes - 1.")
      .def("__len__", &NodeNumbers::size)
      .def("number", &NodeNumbers::number, nb::arg("ids").noconvert(),
           "Number of each id, [n] int64. New ids get the next numbers.")
      .def("find", &NodeNumbers::find, nb::arg("ids").noconvert(),
           "Number of each id, [n] int64. -1 for others.")
      .def("ids", &NodeNumbers::ids, nb::arg("first") = 0,
           "The ids from number `first` on, int64, in the order of their numbers.");
}

}  // namespace khop::bindings
