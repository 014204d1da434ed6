#include "khop/cpu/direct_reads.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <vector>

#include "khop/bindings/module.hpp"

namespace khop::bindings {
namespace {

// A fork has neither the threads nor their locks in order: it leaves its parent's object alone.
struct Release {
  void operator()(cpu::DirectReads* reads) const {
    if (!reads->is_of_this_process()) return;
    nb::gil_scoped_release release;
    delete reads;
  }
};

class PyDirectReads {
 public:
  PyDirectReads(int file, int64_t begin, int64_t row_bytes, int64_t num_rows, bool use_ring,
                int depth, int64_t max_bytes, int64_t cache_bytes, int64_t pool_bytes)
      : num_rows_(num_rows), row_bytes_(row_bytes) {
    constexpr int64_t kMaxRow = int64_t{1} << 30;
    if (begin < 0 || row_bytes < 1 || row_bytes > kMaxRow || num_rows < 0) {
      throw nb::value_error("a row must have 1 to 2^30 bytes, and begin in the file");
    }
    if (depth < 1 || depth > 1024 || max_bytes < 4096 || max_bytes > kMaxRow) {
      throw nb::value_error("depth must be 1 to 1024, and max_bytes 4096 to 2^30");
    }
    if (cache_bytes < 0 || pool_bytes < 0 || pool_bytes > kMaxRow) {
      throw nb::value_error("cache_bytes must not be negative, and pool_bytes 0 to 2^30");
    }
    cpu::DirectReadOptions options;
    options.use_ring = use_ring;
    options.depth = depth;
    options.max_bytes = max_bytes;
    options.cache_bytes = cache_bytes;
    options.pool_bytes = pool_bytes;
    const int copy = dup_of(file);
    reads_.reset(new cpu::DirectReads(copy, {begin, row_bytes, num_rows}, options));
  }

  int64_t submit(const In<int64_t>& rows, const OutArray& out,
                 const std::optional<In<int64_t>>& places) {
    if (row_bytes_of(out) != row_bytes_) throw nb::value_error("out has rows of another length");
    const auto count = static_cast<int64_t>(rows.shape(0));
    if ((places ? static_cast<int64_t>(places->shape(0)) : length(out)) != count) {
      throw nb::value_error("there must be as many places as rows");
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t place = places ? places->data()[i] : i;
      if (rows.data()[i] < 0 || rows.data()[i] >= num_rows_ || place < 0 || place >= length(out)) {
        throw nb::index_error("a row or place does not exist");
      }
    }
    int64_t job;
    {
      nb::gil_scoped_release release;
      job = reads().submit(rows.data(), count, places ? places->data() : nullptr,
                           static_cast<char*>(out.data()));
    }
    outs_.emplace(job, out);
    return job;
  }

  nb::list finished() {
    nb::list out;
    for (const auto& done : reads().finished()) {
      out.append(nb::make_tuple(done.job, done.error));
      ended_.push_back(done.job);
    }
    // A job may end before `submit`, in another thread, has kept its memory.
    const auto was_kept = [this](int64_t job) { return outs_.erase(job) > 0; };
    ended_.erase(std::remove_if(ended_.begin(), ended_.end(), was_kept), ended_.end());
    return out;
  }

  nb::tuple counts() {
    const auto counts = reads().counts();
    return nb::make_tuple(counts.rows, counts.reads, counts.bytes, counts.cached);
  }

  void close() {
    if (!reads().is_of_this_process()) return;
    {
      nb::gil_scoped_release release;
      reads().close();
    }
    outs_.clear();
  }

  cpu::DirectReads& reads() { return *reads_; }

 private:
  static int dup_of(int file);

  int64_t num_rows_, row_bytes_;
  std::unordered_map<int64_t, OutArray> outs_;  // memory of the jobs: outlives the threads
  std::vector<int64_t> ended_;
  std::unique_ptr<cpu::DirectReads, Release> reads_;
};

int PyDirectReads::dup_of(int file) {
  // By its name: flags of a duplicate would be the caller's, too.
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  const int opened = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (opened < 0) {
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
  return opened;
}

}  // namespace

void bind_direct_reads(nb::module_& m) {
  nb::class_<PyDirectReads>(m, "DirectReads",
                            R"(Reads of rows of a file past the page cache, many at a time.

Threads of its own read. A fork cannot use it.)")
      .def(nb::init<int, int64_t, int64_t, int64_t, bool, int, int64_t, int64_t, int64_t>(),
           nb::arg("file"), nb::arg("begin"), nb::arg("row_bytes"), nb::arg("num_rows"),
           nb::arg("use_ring") = true, nb::arg("depth") = 128,
           nb::arg("max_bytes") = int64_t{256} << 10, nb::arg("cache_bytes") = 0,
           nb::arg("pool_bytes") = int64_t{4} << 20,
           R"(Opens the file again, and starts the threads.

Args:
    file: descriptor of the file, which stays the caller's.
    begin: offset of the first row in the file.
    row_bytes: bytes of a row.
    num_rows: number of rows.
    use_ring: use io_uring where it is allowed; otherwise threads with pread.
    depth: reads in flight of io_uring.
    max_bytes: most bytes of one read of several rows.
    cache_bytes: memory for blocks of the file that stay in memory, for rows that are far smaller
        than a block (4 kB).
    pool_bytes: memory of reads in flight of io_uring, at least for two reads of the longest.)")
      .def("submit", &PyDirectReads::submit, nb::arg("rows").noconvert(),
           nb::arg("out").noconvert(), nb::arg("places").noconvert().none() = nb::none(),
           R"(Begins to read rows to out[places[i]], or to out[i]; returns the job's number.

`out` is kept until the job is finished.)")
      .def("finished", &PyDirectReads::finished,
           R"(Jobs that have finished since the last call: (number, error).

The error is 0, an error's number (errno), or -1 if the file ends before the rows.)")
      .def("close", &PyDirectReads::close, "Ends the threads; jobs in flight are dropped.")
      .def_prop_ro(
          "event", [](PyDirectReads& self) { return self.reads().event(); },
          "Descriptor that is readable when a job has finished.")
      .def_prop_ro(
          "uses_ring", [](PyDirectReads& self) { return self.reads().uses_ring(); },
          "Whether io_uring reads.")
      .def_prop_ro(
          "is_direct", [](PyDirectReads& self) { return self.reads().is_direct(); },
          "Whether reads go past the page cache.")
      .def(
          "set_gap", [](PyDirectReads& self, int64_t bytes) { self.reads().set_gap(bytes); },
          nb::arg("bytes"), "Sets the most bytes between rows that are read to save a read.")
      .def("counts", &PyDirectReads::counts,
           "Rows asked for, reads of the file, their bytes, and rows that were in memory.");
}

}  // namespace khop::bindings
