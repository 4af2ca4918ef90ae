// A libcuda.so.1 without a GPU: memory is the host's, a launch runs at once by fibers. It has the plain kernels alone.
#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>

#include "kernels.hpp"
#include "threads.hpp"

namespace {

std::set<std::string> used;

template <class T>
T handle() {
  return reinterpret_cast<T>(std::uintptr_t{1});
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// How many of the plain kernels have run.
EXPORT int emulated_kernels_used() {
  int count = 0;
  for (const std::string& name : used) count += name.rfind("plain_", 0) == 0 ? 1 : 0;
  return count;
}

EXPORT CUresult cuInit(unsigned) {
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetCount(int* count) {
  return *count = 1, CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGet(CUdevice* device, int) {
  return *device = 0, CUDA_SUCCESS;
}
// EMULATED_CAPABILITY: ten times the compute capability.
EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice) {
  const char* const wanted = std::getenv("EMULATED_CAPABILITY");
  const int capability = wanted != nullptr ? std::atoi(wanted) : 80;
  *value = which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? capability / 10
           : which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? capability % 10
           : which == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT     ? 108
                                                                   : 40 << 20;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  return *context = handle<CUcontext>(), CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
  return *context = handle<CUcontext>(), CUDA_SUCCESS;
}
EXPORT CUresult cuCtxSetCurrent(CUcontext) {
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
  return *device = 0, CUDA_SUCCESS;
}
EXPORT CUresult cuGetErrorString(CUresult, const char** text) {
  return *text = "emulated", CUDA_SUCCESS;
}
EXPORT CUresult cuLibraryLoadData(CUlibrary* library, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*,
                                  void**, unsigned) {
  return *library = handle<CUlibrary>(), CUDA_SUCCESS;
}
EXPORT CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary, const char* name) {
  const auto found = emulated::kernels().find(name);
  if (found == emulated::kernels().end()) return CUDA_ERROR_NOT_FOUND;
  return *kernel = reinterpret_cast<CUkernel>(const_cast<void*>(static_cast<const void*>(&*found))), CUDA_SUCCESS;
}
EXPORT CUresult cuKernelSetAttribute(CUfunction_attribute, int shared_bytes, CUkernel, CUdevice) {
  return shared_bytes <= 99 * 1024 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;  // all that some cards have
}
EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid, unsigned, unsigned, unsigned threads, unsigned,
                               unsigned, unsigned shared, CUstream, void** parameters, void**) {
  const auto& kernel = *reinterpret_cast<const std::pair<const std::string, void (*)(const void*)>*>(function);
  used.insert(kernel.first);
  emulated::run(grid, threads, static_cast<int>(shared), kernel.second, parameters[0]);
  return CUDA_SUCCESS;
}
// Hopper's own, as are tensor maps.
EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig*, CUfunction, void**, void**) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
EXPORT CUresult cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                       const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                       CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
EXPORT CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps*) {
  return *pool = handle<CUmemoryPool>(), CUDA_SUCCESS;
}
EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool, CUmemPool_attribute, void*) {
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr* memory, std::size_t bytes, CUmemoryPool, CUstream) {
  void* const made = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(made, 0xFF, bytes);
  return *memory = reinterpret_cast<CUdeviceptr>(made), CUDA_SUCCESS;
}
EXPORT CUresult cuMemFreeAsync(CUdeviceptr memory, CUstream) {
  return std::free(reinterpret_cast<void*>(memory)), CUDA_SUCCESS;
}
EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* memory, std::size_t bytes) {
  return cuMemAllocFromPoolAsync(memory, bytes, nullptr, nullptr);
}
EXPORT CUresult cuMemsetD8_v2(CUdeviceptr memory, unsigned char value, std::size_t bytes) {
  return std::memset(reinterpret_cast<void*>(memory), value, bytes), CUDA_SUCCESS;
}
EXPORT CUresult cuMemsetD8Async(CUdeviceptr memory, unsigned char value, std::size_t bytes, CUstream) {
  return cuMemsetD8_v2(memory, value, bytes);
}
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes, CUstream) {
  return std::memcpy(reinterpret_cast<void*>(to), from, bytes), CUDA_SUCCESS;
}
EXPORT CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
  return *status = CU_STREAM_CAPTURE_STATUS_NONE, CUDA_SUCCESS;
}
EXPORT CUresult cuPointerGetAttribute(void*, CUpointer_attribute, CUdeviceptr) {
  return CUDA_SUCCESS;
}
