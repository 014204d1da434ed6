// Kernels: run thread by thread and block after block, in orders that the launch determines.
#include <chrono>
#include <numeric>

#include "pointers.hpp"
#include "streams.hpp"

namespace fake_cuda {

thread_local int running_device = 0;

namespace {

// Well mixed (Steele, Lea and Flood, "Fast splittable pseudorandom number generators").
uint64_t mixed(uint64_t seed) {
  seed = (seed ^ seed >> 30) * 0xBF58'476D'1CE4'E5B9u;
  seed = (seed ^ seed >> 27) * 0x94D0'49BB'1331'11EBu;
  return seed ^ seed >> 31;
}

// All numbers below a count once, in an order of which there are very many.
class Order {
 public:
  Order(uint64_t count, uint64_t seed) : count_(count), at_(mixed(seed) % count) {
    do {
      step_ = mixed(++seed) % count + 1;
    } while (std::gcd(step_, count) != 1);
  }
  unsigned next() {
    at_ += step_;
    if (at_ >= count_) at_ -= count_;
    return static_cast<unsigned>(at_);
  }

 private:
  uint64_t count_;
  uint64_t at_;
  uint64_t step_;
};

void run_grid(const Kernel& kernel, dim3 blocks, dim3 threads, uint64_t seed, bool is_ahead) {
  if (option("runs_kernels") == 0) return;
  blockDim = threads;
  gridDim = blocks;
  code_waits = option("ptx") >= 90;
  Order order(blocks.x, seed);
  for (unsigned i = 0; i < blocks.x; ++i) {
    blockIdx = {order.next(), 0, 0};
    block_seed = mixed(seed + i);
    Order of_threads(threads.x, block_seed);
    for (unsigned j = 0; j < threads.x; ++j) {
      threadIdx = {of_threads.next(), 0, 0};
      has_waited = !is_ahead;
      kernel.run_thread();
      if (!has_waited) {
        report_violation(
            "a kernel that may begin before the one before it ends did not wait for it");
        return;
      }
    }
  }
}

// What a launch may ask for: programmatic dependent launch, on devices that have it.
cudaError_t read_attributes(const cudaLaunchConfig_t& config, bool& is_ahead) {
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (config.attrs == nullptr) return cudaErrorInvalidValue;
    const cudaLaunchAttribute& attribute = config.attrs[i];
    if (attribute.id != cudaLaunchAttributeProgrammaticStreamSerialization) {
      return cudaErrorNotSupported;  // by these tests
    }
    is_ahead = attribute.val.programmaticStreamSerializationAllowed != 0;
    if (is_ahead && option("major") < 9) return cudaErrorNotSupported;
  }
  return cudaSuccess;
}

void timed(const Work& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
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

cudaError_t submit(cudaStream_t handle, std::shared_ptr<const Kernel> kernel, Work work) {
  std::shared_ptr<Stream> stream;
  const cudaError_t error = open_for_work(handle, stream);
  if (error != cudaSuccess) return error;
  // Kernels are launched in streams of the current device.
  if (stream->device() != this_thread().device) return cudaErrorInvalidResourceHandle;
  if (stream->capture == nullptr) count("launches");
  const auto [arguments, bytes] = kernel->arguments();
  const Pointers pointers(arguments, bytes, *stream);
  stream->submit([=, device = stream->device()] {
    if (takes_fault(device)) return;
    running_device = device;
    pointers.check_when_it_runs();
    timed(work);
  });
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
    bool is_ahead = false;
    if (const cudaError_t error = read_attributes(config, is_ahead); error != cudaSuccess) {
      return error;
    }
    if (is_ahead) count("launches_ahead");
    return submit(config.stream, kernel,
                  [=, seed = next_seed()] { run_grid(*kernel, blocks, threads, seed, is_ahead); });
  });
}

// As CUB does, which looks at the thread's last error after each of its kernels.
cudaError_t launch_algorithm(const char* name, cudaStream_t stream,
                             std::shared_ptr<const Kernel> work) {
  return call(name, kContext, [&] {
    if (this_thread().last_error != cudaSuccess) return this_thread().last_error;
    return submit(stream, work, [work] { work->run_thread(); });
  });
}

}  // namespace fake_cuda

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*)()) {
  return fake_cuda::call("cudaFuncGetAttributes", fake_cuda::kContext, [&] {
    *attributes = {static_cast<int>(fake_cuda::option("ptx")), 90};
    return cudaSuccess;
  });
}
