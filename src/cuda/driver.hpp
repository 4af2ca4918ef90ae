// The CUDA driver, found when it is first asked for: the library itself needs none.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <shared_mutex>
#include <string>

#include "attend/cuda.hpp"

namespace attend::cuda {

// What is called of libcuda.so.1.
struct Driver {
  std::string missing;  // why there is none; empty where all below are set

  decltype(&::cuInit) init = nullptr;
  decltype(&::cuDeviceGetCount) device_count = nullptr;
  decltype(&::cuDeviceGet) device = nullptr;
  decltype(&::cuDeviceGetAttribute) device_attribute = nullptr;
  decltype(&::cuDevicePrimaryCtxRetain) retain_context = nullptr;
  decltype(&::cuCtxGetCurrent) current_context = nullptr;
  decltype(&::cuCtxSetCurrent) set_context = nullptr;
  decltype(&::cuCtxGetDevice) context_device = nullptr;
  decltype(&::cuCtxSynchronize) synchronize = nullptr;
  decltype(&::cuGetErrorString) error_string = nullptr;
  decltype(&::cuLibraryLoadData) load_library = nullptr;
  decltype(&::cuLibraryGetKernel) library_kernel = nullptr;
  decltype(&::cuKernelSetAttribute) kernel_attribute = nullptr;
  decltype(&::cuLaunchKernel) launch = nullptr;
  decltype(&::cuLaunchKernelEx) launch_with = nullptr;
  decltype(&::cuTensorMapEncodeTiled) encode_map = nullptr;
  decltype(&::cuMemPoolCreate) create_pool = nullptr;
  decltype(&::cuMemPoolSetAttribute) pool_attribute = nullptr;
  decltype(&::cuMemAllocFromPoolAsync) allocate = nullptr;
  decltype(&::cuMemFreeAsync) free = nullptr;
  decltype(&::cuMemAlloc) allocate_now = nullptr;
  decltype(&::cuMemsetD8) fill_now = nullptr;
  decltype(&::cuMemsetD8Async) fill = nullptr;
  decltype(&::cuMemcpyHtoDAsync) copy_in = nullptr;
  decltype(&::cuStreamIsCapturing) is_capturing = nullptr;
  decltype(&::cuStreamGetId) stream_id = nullptr;
  decltype(&::cuPointerGetAttribute) pointer_attribute = nullptr;
  // The second version, by its own name: headers of CUDA 12 and 13 mean different ones by the plain one.
  CUresult (*capture_info)(CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*, const CUgraphNode**,
                           std::size_t*) = nullptr;
  decltype(&::cuUserObjectCreate) create_object = nullptr;
  decltype(&::cuUserObjectRelease) release_object = nullptr;
  decltype(&::cuGraphRetainUserObject) keep_object = nullptr;
};
const Driver& driver();

void check(CUresult result, const char* what);  // throws std::runtime_error

// The kernels that a device runs: Hopper's own (compute capability 9.0), or the plain ones (8.0 and later).
enum class KernelSet { hopper, plain };

// The device of the current context, made current where there was none.
struct DeviceState {
  int number = 0;
  KernelSet kernels = KernelSet::plain;
  int multiprocessors = 0;
  std::int64_t l2_bytes = 0;
  CUmemoryPool pool = nullptr;
  int* counters = nullptr;  // zero whenever no kernel that was given one is running
};
DeviceState& device_state();

// A counter for one launch: its stream's. A graph's launch has its own as long as the graph, or what was made of it,
// lives. Hold the lease until the launch is made, and take no second one meanwhile: a thread that waits for all leases
// to end lets no new one begin.
struct CounterLease {
  int* counter;
  std::shared_lock<std::shared_mutex> held;
};
CounterLease take_counter(DeviceState& device, CUstream stream);

// A kernel of one of the images, with as much shared memory as it asks for.
CUfunction kernel(const char* image, const std::string& name, int shared_bytes);
void launch(CUfunction function, int blocks, int threads, int shared_bytes, CUstream stream, const void* args);
// The same for a kernel that itself waits (wait_for_kernel) until the one before it is done: it is made ready
// meanwhile, where the device does that.
void launch_behind(KernelSet kernels, CUfunction function, int blocks, int threads, int shared_bytes, CUstream stream,
                   const void* args);

// Memory of one call on a stream.
class Workspace {
 public:
  // From the caller's allocator; null: from the device's pool.
  Workspace(DeviceState& device, std::int64_t bytes, CUstream stream, Allocator* allocator);
  // The caller's own memory; null: `bytes` from the device's pool.
  Workspace(DeviceState& device, std::int64_t bytes, CUstream stream, void* given);
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace();
  // The next part of it, for `count` elements.
  template <class T>
  T* part(std::int64_t count) {
    const std::int64_t at = used_;
    used_ += round(count * std::int64_t{sizeof(T)});
    return reinterpret_cast<T*>(memory_ + static_cast<CUdeviceptr>(at));
  }
  static std::int64_t round(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }

 private:
  CUdeviceptr memory_ = 0;
  CUstream stream_;
  Allocator* allocator_ = nullptr;
  bool own_ = false;
  std::int64_t used_ = 0;
};

// The compiled kernels, as CMake embeds them: one image for each .cu file.
struct Image {
  const char* name;
  const void* data;
};
extern const Image kImages[];
extern const int kImageCount;

}  // namespace attend::cuda
