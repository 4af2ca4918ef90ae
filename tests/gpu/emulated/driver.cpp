// A libcuda.so.1 without a GPU: memory is the host's, a launch runs at once by fibers, streams are done by the time
// they are asked. It has the plain kernels, and of Hopper's those of decoding.
#include <cuda.h>

#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "kernels.hpp"
#include "tensor_map.hpp"
#include "threads.hpp"

namespace {

std::set<std::string> used;

int capability() {
  const char* const wanted = std::getenv("EMULATED_CAPABILITY");
  return wanted != nullptr ? std::atoi(wanted) : 80;
}

template <class T>
T* handle(std::uintptr_t n) {
  return reinterpret_cast<T*>(n);
}

}  // namespace

#define SHOWN extern "C" __attribute__((visibility("default")))
#define EXPORT SHOWN CUresult

// How many of the plain kernels have run.
SHOWN int emulated_kernels_used() {
  int count = 0;
  for (const std::string& name : used) count += name.rfind("plain_", 0) == 0 ? 1 : 0;
  return count;
}

EXPORT cuInit(unsigned) {
  return CUDA_SUCCESS;
}
EXPORT cuDeviceGetCount(int* count) {
  return *count = 1, CUDA_SUCCESS;
}
EXPORT cuDeviceGet(CUdevice* device, int) {
  return *device = 0, CUDA_SUCCESS;
}
EXPORT cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice) {
  *value = which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? capability() / 10
           : which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? capability() % 10
           : which == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT     ? 7
                                                                   : 1 << 20;  // of the L2
  return CUDA_SUCCESS;
}
EXPORT cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  return *context = handle<CUctx_st>(1), CUDA_SUCCESS;
}
EXPORT cuCtxGetCurrent(CUcontext* context) {
  return *context = handle<CUctx_st>(1), CUDA_SUCCESS;
}
EXPORT cuCtxSetCurrent(CUcontext) {
  return CUDA_SUCCESS;
}
EXPORT cuCtxGetDevice(CUdevice* device) {
  return *device = 0, CUDA_SUCCESS;
}
static int synchronizations = 0;
SHOWN int emulated_synchronizations() {
  return synchronizations;
}
EXPORT cuCtxSynchronize() {
  return ++synchronizations, CUDA_SUCCESS;
}
EXPORT cuGetErrorString(CUresult, const char** text) {
  return *text = "emulated", CUDA_SUCCESS;
}
EXPORT cuLibraryLoadData(CUlibrary* library, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*, void**,
                         unsigned) {
  return *library = handle<CUlib_st>(1), CUDA_SUCCESS;
}
EXPORT cuLibraryGetKernel(CUkernel* kernel, CUlibrary, const char* name) {
  const auto found = emulated::kernels().find(name);
  if (found == emulated::kernels().end()) return CUDA_ERROR_NOT_FOUND;
  return *kernel = reinterpret_cast<CUkernel>(const_cast<void*>(static_cast<const void*>(&*found))), CUDA_SUCCESS;
}
EXPORT cuKernelSetAttribute(CUfunction_attribute, int shared_bytes, CUkernel, CUdevice) {
  const int most = capability() == 90 ? emulated::kSharedBytes : 99 * 1024;  // all that some cards have
  return shared_bytes <= most ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
EXPORT cuLaunchKernel(CUfunction function, unsigned grid, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                      unsigned shared, CUstream, void** parameters, void**) {
  const auto& kernel = *reinterpret_cast<const std::pair<const std::string, void (*)(const void*)>*>(function);
  used.insert(kernel.first);
  emulated::run(grid, threads, static_cast<int>(shared), kernel.second, parameters[0]);
  return CUDA_SUCCESS;
}
// Hopper's own, as are tensor maps.
EXPORT cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra) {
  if (capability() != 90) return CUDA_ERROR_NOT_SUPPORTED;
  return cuLaunchKernel(function, config->gridDimX, 1, 1, config->blockDimX, 1, 1, config->sharedMemBytes,
                        config->hStream, parameters, extra);
}
EXPORT cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data,
                              const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                              const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                              CUtensorMapFloatOOBfill) {
  if (rank != 4 || capability() != 90) return CUDA_ERROR_NOT_SUPPORTED;
  emulated::TensorMap made{};
  made.data = static_cast<const char*>(data), made.bytes = type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1 : 2;
  for (int d = 0; d < 4; ++d) {
    made.dims[d] = static_cast<std::int64_t>(dims[d]), made.box[d] = static_cast<std::int32_t>(box[d]);
    if (dims[d] == 0 || (d < 3 && (strides[d] % 16 != 0 || strides[d] == 0))) return CUDA_ERROR_INVALID_VALUE;
    if (d < 3) made.strides[d] = static_cast<std::int64_t>(strides[d]);
  }
  std::memset(map, 0, sizeof(*map));
  std::memcpy(map, &made, sizeof(made));
  return CUDA_SUCCESS;
}
EXPORT cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps*) {
  return *pool = handle<CUmemPoolHandle_st>(1), CUDA_SUCCESS;
}
EXPORT cuMemPoolSetAttribute(CUmemoryPool, CUmemPool_attribute, void*) {
  return CUDA_SUCCESS;
}
static int allocations = 0;
SHOWN int emulated_allocations() {
  return allocations;
}
EXPORT cuMemAllocFromPoolAsync(CUdeviceptr* memory, std::size_t bytes, CUmemoryPool, CUstream) {
  void* const made = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(made, 0xFF, bytes);
  ++allocations;
  return *memory = reinterpret_cast<CUdeviceptr>(made), CUDA_SUCCESS;
}
EXPORT cuMemFreeAsync(CUdeviceptr memory, CUstream) {
  return std::free(reinterpret_cast<void*>(memory)), CUDA_SUCCESS;
}
EXPORT cuMemAlloc_v2(CUdeviceptr* memory, std::size_t bytes) {
  return cuMemAllocFromPoolAsync(memory, bytes, nullptr, nullptr);
}
EXPORT cuMemsetD8_v2(CUdeviceptr memory, unsigned char value, std::size_t bytes) {
  return std::memset(reinterpret_cast<void*>(memory), value, bytes), CUDA_SUCCESS;
}
EXPORT cuMemsetD8Async(CUdeviceptr memory, unsigned char value, std::size_t bytes, CUstream) {
  return cuMemsetD8_v2(memory, value, bytes);
}
EXPORT cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes, CUstream) {
  return std::memcpy(reinterpret_cast<void*>(to), from, bytes), CUDA_SUCCESS;
}
// One graph is captured at a time; what was handed to it goes when the test says so.
static bool capturing = false;
struct HandedObject {
  CUhostFn done;
  void* data;
};
static std::vector<HandedObject*> handed;
SHOWN void emulated_capture(bool on) {
  capturing = on;
}
SHOWN void emulated_drop_graph() {
  for (const HandedObject* const object : std::exchange(handed, {})) {
    object->done(object->data);
    delete object;
  }
}
EXPORT cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
  return *status = capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE, CUDA_SUCCESS;
}
EXPORT cuStreamGetId(CUstream stream, unsigned long long* number) {
  return *number = reinterpret_cast<std::uintptr_t>(stream), CUDA_SUCCESS;
}
EXPORT cuPointerGetAttribute(void*, CUpointer_attribute, CUdeviceptr) {
  return CUDA_SUCCESS;
}
EXPORT cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t*, CUgraph* graph,
                                 const CUgraphNode**, std::size_t*) {
  *graph = handle<CUgraph_st>(1);
  return cuStreamIsCapturing(stream, status);
}
EXPORT cuUserObjectCreate(CUuserObject* object, void* data, CUhostFn done, unsigned, unsigned) {
  return *object = reinterpret_cast<CUuserObject>(new HandedObject{done, data}), CUDA_SUCCESS;
}
EXPORT cuUserObjectRelease(CUuserObject, unsigned) {
  return CUDA_SUCCESS;
}
EXPORT cuGraphRetainUserObject(CUgraph, CUuserObject object, unsigned, unsigned) {
  return handed.push_back(reinterpret_cast<HandedObject*>(object)), CUDA_SUCCESS;
}
