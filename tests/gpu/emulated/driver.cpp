// A libcuda.so.1 without a GPU: memory is the host's, a launch runs at once by fibers, streams are done by the time
// they are asked. It has the kernels of decoding over caches alone.
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "../../../src/cuda/attention_cached.cu"
#include "../../../src/cuda/attention_combine.cu"
#include "../../../src/cuda/attention_decode.cu"
#include "../../../src/cuda/cache_append.cu"

namespace {

struct Kernel {
  void (*body)(const void*);
};
#define ATTEND_EMULATED(NAME, ARGS)                                                 \
  {                                                                                 \
    #NAME, {                                                                        \
      [](const void* args) { NAME(*static_cast<const attend::cuda::ARGS*>(args)); } \
    }                                                                               \
  }
#define ATTEND_EMULATED_WIDTHS(BEGIN, END, ARGS) \
  ATTEND_EMULATED(BEGIN##64##END, ARGS), ATTEND_EMULATED(BEGIN##128##END, ARGS), ATTEND_EMULATED(BEGIN##256##END, ARGS)

std::map<std::string, Kernel>& kernels() {
  static std::map<std::string, Kernel> all = {ATTEND_EMULATED_WIDTHS(decode_, _bf16, DecodeArgs),
                                              ATTEND_EMULATED_WIDTHS(decode_, _f16, DecodeArgs),
                                              ATTEND_EMULATED_WIDTHS(cached_, _bf16, CacheArgs),
                                              ATTEND_EMULATED_WIDTHS(cached_, _f16, CacheArgs),
                                              ATTEND_EMULATED_WIDTHS(cached_, _int8, CacheArgs),
                                              ATTEND_EMULATED_WIDTHS(cached_, _fp8, CacheArgs),
                                              ATTEND_EMULATED_WIDTHS(attention_combine_, , KeyParts),
                                              ATTEND_EMULATED_WIDTHS(cache_combine_, , CacheParts),
                                              ATTEND_EMULATED(cache_append, AppendArgs)};
  return all;
}

template <class T>
T* handle(std::uintptr_t n) {
  return reinterpret_cast<T*>(n);
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default"))) CUresult

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
  const char* const blocks = std::getenv("EMULATED_BLOCKS");
  *value = which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9
           : which == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT   ? (blocks != nullptr ? std::atoi(blocks) : 7)
           : which == CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE          ? 1 << 20
                                                                 : 0;
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
EXPORT cuGetErrorString(CUresult, const char** text) {
  return *text = "emulated", CUDA_SUCCESS;
}
EXPORT cuLibraryLoadData(CUlibrary* library, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*, void**,
                         unsigned) {
  return *library = handle<CUlib_st>(1), CUDA_SUCCESS;
}
EXPORT cuLibraryGetKernel(CUkernel* kernel, CUlibrary, const char* name) {
  const auto found = kernels().find(name);
  if (found == kernels().end()) return CUDA_ERROR_NOT_FOUND;
  return *kernel = reinterpret_cast<CUkernel>(&found->second), CUDA_SUCCESS;
}
EXPORT cuKernelSetAttribute(CUfunction_attribute, int, CUkernel, CUdevice) {
  return CUDA_SUCCESS;
}
EXPORT cuLaunchKernel(CUfunction function, unsigned grid, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                      unsigned shared, CUstream, void** parameters, void**) {
  if (shared > emulated::kSharedBytes) return CUDA_ERROR_INVALID_VALUE;
  emulated::run(grid, threads, reinterpret_cast<Kernel*>(function)->body, parameters[0]);
  return CUDA_SUCCESS;
}
EXPORT cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra) {
  return cuLaunchKernel(function, config->gridDimX, 1, 1, config->blockDimX, 1, 1, config->sharedMemBytes,
                        config->hStream, parameters, extra);
}
EXPORT cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data,
                              const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                              const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                              CUtensorMapFloatOOBfill) {
  if (rank != 4) return CUDA_ERROR_NOT_SUPPORTED;
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
extern "C" __attribute__((visibility("default"))) int emulated_allocations() {
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
extern "C" __attribute__((visibility("default"))) void emulated_capture(bool on) {
  capturing = on;
}
extern "C" __attribute__((visibility("default"))) void emulated_drop_graph() {
  for (const HandedObject* const object : std::exchange(handed, {})) {
    object->done(object->data);
    delete object;
  }
}
EXPORT cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
  return *status = capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE, CUDA_SUCCESS;
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
