#include <algorithm>

#include "check.hpp"
#include "gather.hpp"

namespace khop::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = int64_t{1} << 16;
constexpr unsigned long long kNone = ~0ull;

// A thread a word: neighbouring threads copy neighbouring words of a row, so loads coalesce.
template <class Word, class Index>
__global__ void gather_words(const Word* table, int64_t num_rows, int64_t words, const Index* rows,
                             int64_t count, Word* out, unsigned long long* first_bad) {
  const int64_t total = count * words;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t j = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; j < total;
       j += stride) {
    const int64_t i = j / words;
    const int64_t row = static_cast<int64_t>(rows[i]);
    if (row < 0 || row >= num_rows) {
      atomicMin(first_bad, static_cast<unsigned long long>(i));
      continue;
    }
    out[j] = table[row * words + (j - i * words)];
  }
}

template <class Word, class Index>
void launch(const void* table, int64_t num_rows, int64_t row_bytes, const Index* rows,
            int64_t count, void* out, cudaStream_t stream, unsigned long long* first_bad) {
  const int64_t words = row_bytes / static_cast<int64_t>(sizeof(Word));
  const int64_t blocks = std::min((count * words + kThreads - 1) / kThreads, kMaxBlocks);
  gather_words<Word><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<const Word*>(table), num_rows, words, rows, count, static_cast<Word*>(out),
      first_bad);
  KHOP_CUDA_CHECK(cudaGetLastError());
}

// Device memory for one word, freed on the stream.
class DeviceWord {
 public:
  explicit DeviceWord(cudaStream_t stream) : stream_(stream) {
    KHOP_CUDA_CHECK(cudaMallocAsync(&data_, sizeof(unsigned long long), stream));
  }
  DeviceWord(const DeviceWord&) = delete;
  DeviceWord& operator=(const DeviceWord&) = delete;
  ~DeviceWord() { cudaFreeAsync(data_, stream_); }
  unsigned long long* get() { return data_; }

 private:
  cudaStream_t stream_;
  unsigned long long* data_ = nullptr;
};

}  // namespace

template <class Index>
int64_t gather_rows(const void* table, int64_t num_rows, int64_t row_bytes, const Index* rows,
                    int64_t count, void* out, void* stream) {
  if (count == 0 || row_bytes == 0) return -1;
  const auto on = static_cast<cudaStream_t>(stream);
  DeviceWord first_bad(on);
  KHOP_CUDA_CHECK(cudaMemsetAsync(first_bad.get(), 0xFF, sizeof(unsigned long long), on));
  // The widest word that divides the rows and to which both arrays are aligned.
  const auto alignment = static_cast<uint64_t>(row_bytes) | reinterpret_cast<uintptr_t>(table) |
                         reinterpret_cast<uintptr_t>(out);
  if (alignment % 16 == 0) {
    launch<uint4>(table, num_rows, row_bytes, rows, count, out, on, first_bad.get());
  } else if (alignment % 8 == 0) {
    launch<uint64_t>(table, num_rows, row_bytes, rows, count, out, on, first_bad.get());
  } else if (alignment % 4 == 0) {
    launch<uint32_t>(table, num_rows, row_bytes, rows, count, out, on, first_bad.get());
  } else if (alignment % 2 == 0) {
    launch<uint16_t>(table, num_rows, row_bytes, rows, count, out, on, first_bad.get());
  } else {
    launch<uint8_t>(table, num_rows, row_bytes, rows, count, out, on, first_bad.get());
  }
  unsigned long long bad = kNone;
  KHOP_CUDA_CHECK(cudaMemcpyAsync(&bad, first_bad.get(), sizeof(bad), cudaMemcpyDeviceToHost, on));
  KHOP_CUDA_CHECK(cudaStreamSynchronize(on));
  return bad == kNone ? -1 : static_cast<int64_t>(bad);
}

template int64_t gather_rows<int32_t>(const void*, int64_t, int64_t, const int32_t*, int64_t, void*,
                                      void*);
template int64_t gather_rows<int64_t>(const void*, int64_t, int64_t, const int64_t*, int64_t, void*,
                                      void*);

}  // namespace khop::cuda
