// Devices, their contexts, and errors.
#include <cuda.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "memory.hpp"
#include "streams.hpp"

namespace fake_cuda {
namespace {

int whole(const char* name) { return static_cast<int>(option(name)); }

// Of the driver: whether a context exists, without making one.
CUresult primary_context_state(CUdevice device, unsigned* flags, int* active) {
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  const std::lock_guard<std::mutex> lock(state().mutex);
  *flags = 0;
  *active = state().contexts.count(device) == 1 ? 1 : 0;
  return CUDA_SUCCESS;
}

cudaError_t attribute_of(cudaDeviceAttr attribute, int& value) {
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      value = 1024;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      value = 48 << 10;
      return cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      value = 2048;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      value = whole("multiprocessors");
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      value = whole("major");
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      value = whole("minor");
      return cudaSuccess;
    case cudaDevAttrPageableMemoryAccess:
    case cudaDevAttrPageableMemoryAccessUsesHostPageTables:
      value = whole("pageable_reads_late");
      return cudaSuccess;
    case cudaDevAttrHostRegisterReadOnlySupported:
      value = whole("registers_read_only");
      return cudaSuccess;
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t enable_peer(int peer) {
  const int device = this_thread().device;
  if (!is_device(peer)) return cudaErrorInvalidDevice;
  if (option("peers") == 0) return cudaErrorPeerAccessUnsupported;
  const std::lock_guard<std::mutex> lock(state().mutex);
  auto& peers = state().peers[device];
  if (std::find(peers.begin(), peers.end(), peer) != peers.end()) {
    return cudaErrorPeerAccessAlreadyEnabled;
  }
  peers.push_back(peer);
  return cudaSuccess;
}

}  // namespace fake_cuda

using namespace fake_cuda;

const char* cudaGetErrorName(cudaError_t error) {
  static const std::map<cudaError_t, const char*> names = {
      {cudaSuccess, "cudaSuccess"},
      {cudaErrorInvalidValue, "cudaErrorInvalidValue"},
      {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation"},
      {cudaErrorInitializationError, "cudaErrorInitializationError"},
      {cudaErrorIllegalAddress, "cudaErrorIllegalAddress"},
      {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress"},
      {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration"},
      {cudaErrorNoDevice, "cudaErrorNoDevice"},
      {cudaErrorInvalidDevice, "cudaErrorInvalidDevice"},
      {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle"},
      {cudaErrorIllegalState, "cudaErrorIllegalState"},
      {cudaErrorNotReady, "cudaErrorNotReady"},
      {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled"},
      {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered"},
      {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered"},
      {cudaErrorLaunchFailure, "cudaErrorLaunchFailure"},
      {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported"},
      {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated"},
      {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit"},
  };
  const auto found = names.find(error);
  return found == names.end() ? "another cudaError" : found->second;
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    default:
      return "as the tests' CUDA runtime was told, or one of its rules";
  }
}

// What a device was lost by is never forgotten.
cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  this_thread().last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() {
  const cudaError_t lost = error_of_lost(this_thread().device);
  return lost != cudaSuccess ? lost : this_thread().last_error;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  return call("cudaGetDriverEntryPointByVersion", kPlain, [&] {
    const bool known = std::string(symbol) == "cuDevicePrimaryCtxGetState";
    *function = known ? reinterpret_cast<void*>(&primary_context_state) : nullptr;
    if (status != nullptr) {
      *status = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    }
    return known ? cudaSuccess : cudaErrorSymbolNotFound;
  });
}

cudaError_t cudaGetDeviceCount(int* count) {
  return call("cudaGetDeviceCount", kPlain, [&] {
    *count = whole("devices");
    return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return call("cudaGetDevice", kPlain, [&] {
    *device = this_thread().device;
    return cudaSuccess;
  });
}

// Since CUDA 12 it "will also immediately initialize the runtime state on the primary context".
cudaError_t cudaSetDevice(int device) {
  return call("cudaSetDevice", kPlain, [&] {
    if (!is_device(device)) return cudaErrorInvalidDevice;
    this_thread().device = device;
    create_context(device, "cudaSetDevice");
    return error_of_lost(device);
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return call("cudaDeviceGetAttribute", kPlain, [&] {
    return is_device(device) ? attribute_of(attribute, *value) : cudaErrorInvalidDevice;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return call("cudaGetDeviceProperties", kPlain, [&] {
    if (!is_device(device)) return cudaErrorInvalidDevice;
    *properties = {};
    std::snprintf(properties->name, sizeof(properties->name), "fake GPU");
    properties->totalGlobalMem = static_cast<std::size_t>(option("memory"));
    properties->major = whole("major");
    properties->minor = whole("minor");
    properties->multiProcessorCount = whole("multiprocessors");
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return call("cudaDeviceCanAccessPeer", kPlain, [&] {
    if (!is_device(device) || !is_device(peer)) return cudaErrorInvalidDevice;
    *can = device != peer && option("peers") != 0 ? 1 : 0;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  return call("cudaDeviceEnablePeerAccess", kContext | kNotInCapture, [&] {
    return peer == this_thread().device ? cudaErrorInvalidDevice : enable_peer(peer);
  });
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return call("cudaDeviceGetDefaultMemPool", kContext, [&] {
    if (!is_device(device)) return cudaErrorInvalidDevice;
    *pool = reinterpret_cast<cudaMemPool_t>(static_cast<uintptr_t>(device) + 1);
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr, void* value) {
  return call("cudaMemPoolSetAttribute", kContext, [&] {
    return pool == nullptr || value == nullptr ? cudaErrorInvalidValue : cudaSuccess;
  });
}
