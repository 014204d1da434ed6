// Kernels: run thread by thread, block after block in an order that the launch determines.
#include <chrono>
#include <numeric>
#include <random>

#include "streams.hpp"

namespace fake_cuda {
namespace {

void run_block(const Kernel& kernel, unsigned start, bool backwards) {
  const unsigned threads = blockDim.x;
  for (unsigned i = 0; i < threads; ++i) {
    const unsigned turn = backwards ? threads - 1 - i : i;
    threadIdx = {(turn + start) % threads, 0, 0};
    kernel.run_thread();
  }
}

// All blocks once, with steps that have no divisor in common with their number.
void run_grid(const Kernel& kernel, dim3 blocks, dim3 threads, uint64_t seed) {
  std::mt19937_64 random(seed);
  const uint64_t count = blocks.x;
  uint64_t step = random() % count + 1;
  while (std::gcd(step, count) != 1) ++step;
  uint64_t block = random() % count;
  blockDim = threads;
  gridDim = blocks;
  for (uint64_t i = 0; i < count; ++i) {
    blockIdx = {static_cast<unsigned>(block), 0, 0};
    const uint64_t order = random();
    run_block(kernel, static_cast<unsigned>(order >> 32) % threads.x, order % 2 != 0);
    block = (block + step) % count;
  }
}

template <class F>
void timed(F f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  const auto took = std::chrono::steady_clock::now() - begin;
  count("nanoseconds_in_kernels", std::chrono::nanoseconds(took).count());
  count("kernels_run");
}

uint64_t next_seed() {
  const int64_t seed = option("seed");
  const std::lock_guard<std::mutex> lock(state().mutex);
  return static_cast<uint64_t>(seed) * 0x9E37'79B9'7F4A'7C15u +
         static_cast<uint64_t>(state().counters["kernels_asked"]++);
}

cudaError_t submit(cudaStream_t handle, Work work) {
  std::shared_ptr<Stream> stream;
  const cudaError_t error = open_for_work(handle, stream);
  if (error != cudaSuccess) return error;
  // Kernels are launched in streams of the current device.
  if (stream->device() != this_thread().device) return cudaErrorInvalidResourceHandle;
  if (stream->capture == nullptr) count("launches");
  stream->submit(std::move(work));
  return cudaSuccess;
}

}  // namespace

cudaError_t launch(const cudaLaunchConfig_t& config, std::shared_ptr<const Kernel> kernel) {
  return call("cudaLaunchKernelExC", kContext, [&] {
    const dim3 blocks = config.gridDim, threads = config.blockDim;
    const bool flat = blocks.y == 1 && blocks.z == 1 && threads.y == 1 && threads.z == 1;
    if (!flat || blocks.x == 0 || blocks.x > 0x7FFFFFFFu || threads.x == 0 || threads.x > 1024 ||
        config.dynamicSmemBytes > 48 << 10) {
      return cudaErrorInvalidConfiguration;
    }
    return submit(config.stream, [=, seed = next_seed()] {
      timed([&] { run_grid(*kernel, blocks, threads, seed); });
    });
  });
}

// As CUB does, which looks at the thread's last error after each of its kernels.
cudaError_t launch_algorithm(const char* name, cudaStream_t stream,
                             std::shared_ptr<const Kernel> work) {
  return call(name, kContext, [&] {
    if (this_thread().last_error != cudaSuccess) return this_thread().last_error;
    return submit(stream, [work] { timed([&] { work->run_thread(); }); });
  });
}

}  // namespace fake_cuda
