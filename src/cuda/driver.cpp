// Finds the CUDA driver, loads kernels and keeps what a device needs between calls.
#include "cuda/driver.hpp"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "attend/cuda.hpp"

namespace attend::cuda {
namespace {

constexpr int kCounters = 4096;  // more than there are launches under way at once

template <class F>
void find(void* library, const char* name, F& function, std::string& missing) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (function == nullptr && missing.empty()) missing = std::string("the CUDA driver is too old: it has no ") + name;
}

Driver find_driver() {
  Driver d;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    d.missing = "there is no CUDA driver here (libcuda.so.1)";
    return d;
  }
  find(library, "cuInit", d.init, d.missing);
  find(library, "cuDeviceGetCount", d.device_count, d.missing);
  find(library, "cuDeviceGet", d.device, d.missing);
  find(library, "cuDeviceGetAttribute", d.device_attribute, d.missing);
  find(library, "cuDevicePrimaryCtxRetain", d.retain_context, d.missing);
  find(library, "cuCtxGetCurrent", d.current_context, d.missing);
  find(library, "cuCtxSetCurrent", d.set_context, d.missing);
  find(library, "cuCtxGetDevice", d.context_device, d.missing);
  find(library, "cuGetErrorString", d.error_string, d.missing);
  find(library, "cuLibraryLoadData", d.load_library, d.missing);
  find(library, "cuLibraryGetKernel", d.library_kernel, d.missing);
  find(library, "cuKernelSetAttribute", d.kernel_attribute, d.missing);
  find(library, "cuLaunchKernel", d.launch, d.missing);
  find(library, "cuLaunchKernelEx", d.launch_with, d.missing);
  find(library, "cuTensorMapEncodeTiled", d.encode_map, d.missing);
  find(library, "cuMemPoolCreate", d.create_pool, d.missing);
  find(library, "cuMemPoolSetAttribute", d.pool_attribute, d.missing);
  find(library, "cuMemAllocFromPoolAsync", d.allocate, d.missing);
  find(library, "cuMemFreeAsync", d.free, d.missing);
  find(library, "cuMemAlloc_v2", d.allocate_now, d.missing);
  find(library, "cuMemsetD8_v2", d.fill_now, d.missing);
  find(library, "cuMemsetD8Async", d.fill, d.missing);
  find(library, "cuMemcpyHtoDAsync_v2", d.copy_in, d.missing);
  find(library, "cuStreamIsCapturing", d.is_capturing, d.missing);
  find(library, "cuPointerGetAttribute", d.pointer_attribute, d.missing);
  if (!d.missing.empty()) return d;
  if (d.init(0) != CUDA_SUCCESS) d.missing = "the CUDA driver found no device";
  return d;
}

int attribute(const Driver& d, CUdevice device, CUdevice_attribute which) {
  int value = 0;
  check(d.device_attribute(&value, which, device), "cuDeviceGetAttribute");
  return value;
}

// The lists below are filled once and read from then on; calls from several threads take turns.
std::mutex& lists() {
  static std::mutex mutex;
  return mutex;
}

CUdevice current_device(const Driver& d) {
  CUcontext context = nullptr;
  check(d.current_context(&context), "cuCtxGetCurrent");
  CUdevice device = 0;
  if (context == nullptr) {
    check(d.device(&device, 0), "cuDeviceGet");
    check(d.retain_context(&context, device), "cuDevicePrimaryCtxRetain");
    check(d.set_context(context), "cuCtxSetCurrent");
  }
  check(d.context_device(&device), "cuCtxGetDevice");
  return device;
}

struct Choice {
  KernelSet kernels = KernelSet::plain;
  std::string why_not;  // empty: they run
};
// Which kernels a device runs: decided here alone, by its compute capability, or as ATTEND_CUDA_KERNELS says.
Choice choose_kernels(const Driver& d, CUdevice device) {
  const int major = attribute(d, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  const int minor = attribute(d, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  const std::string capability = std::to_string(major) + "." + std::to_string(minor);
  if (major < 8)
    return {KernelSet::plain,
            "the GPU has compute capability " + capability + ", and there are kernels for 8.0 (Ampere) and later"};
  const bool is_hopper = major == 9 && minor == 0;
  const char* const set = std::getenv("ATTEND_CUDA_KERNELS");
  const std::string wanted = set != nullptr ? set : "";
  if (wanted == "plain") return {KernelSet::plain, ""};
  if (wanted.empty() || (wanted == "hopper" && is_hopper))
    return {is_hopper ? KernelSet::hopper : KernelSet::plain, ""};
  return {KernelSet::plain, "ATTEND_CUDA_KERNELS is \"" + wanted + "\", expected one that runs on a GPU of compute " +
                                "capability " + capability + ": " + (is_hopper ? "hopper, plain" : "plain")};
}

}  // namespace

const Driver& driver() {
  static const Driver found = find_driver();
  return found;
}

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  if (driver().error_string != nullptr) driver().error_string(result, &text);
  throw std::runtime_error(std::string("CUDA: ") + what + ": " + (text != nullptr ? text : "unknown error"));
}

std::string why_not() {
  const Driver& d = driver();
  if (!d.missing.empty()) return d.missing;
  int count = 0;
  if (d.device_count(&count) != CUDA_SUCCESS || count == 0) return "there is no CUDA device";
  try {
    return choose_kernels(d, current_device(d)).why_not;
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

bool available() {
  return why_not().empty();
}

DeviceState& device_state() {
  const Driver& d = driver();
  const CUdevice device = current_device(d);
  static std::map<CUdevice, std::unique_ptr<DeviceState>> states;
  const std::lock_guard lock(lists());
  auto& state = states[device];
  if (state) return *state;
  auto made = std::make_unique<DeviceState>();
  made->number = device;
  made->kernels = choose_kernels(d, device).kernels;
  made->multiprocessors = attribute(d, device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  made->l2_bytes = attribute(d, device, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  check(d.create_pool(&made->pool, &properties), "cuMemPoolCreate");
  cuuint64_t keep = ~cuuint64_t{0};  // what was freed serves the next call
  check(d.pool_attribute(made->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep), "cuMemPoolSetAttribute");
  CUdeviceptr counters = 0;
  check(d.allocate_now(&counters, kCounters * sizeof(int)), "cuMemAlloc");
  check(d.fill_now(counters, 0, kCounters * sizeof(int)), "cuMemsetD8");
  made->counters = reinterpret_cast<int*>(counters);
  state = std::move(made);
  return *state;
}

int* take_counter(DeviceState& device, CUstream stream) {
  const Driver& d = driver();
  CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
  check(d.is_capturing(stream, &capturing), "cuStreamIsCapturing");
  static std::atomic<unsigned> next{0};
  static std::atomic<int> kept{0};
  constexpr int kForGraphs = kCounters / 2;
  if (capturing != CU_STREAM_CAPTURE_STATUS_NONE) {
    const int at = kept.fetch_add(1);
    if (at >= kForGraphs) throw std::runtime_error("CUDA: more than 2,048 launches of attention captured in graphs");
    return device.counters + kForGraphs + at;
  }
  return device.counters + next.fetch_add(1) % kForGraphs;
}

CUfunction kernel(const char* image, const std::string& name, int shared_bytes) {
  const Driver& d = driver();
  static std::map<std::string, CUlibrary> libraries;
  static std::map<std::pair<int, std::string>, CUfunction> kernels;
  const int device = device_state().number;
  const std::lock_guard lock(lists());
  const auto known = kernels.find({device, name});
  if (known != kernels.end()) return known->second;
  CUlibrary& library = libraries[image];
  for (int i = 0; library == nullptr && i < kImageCount; ++i)
    if (std::string(kImages[i].name) == image)
      check(d.load_library(&library, kImages[i].data, nullptr, nullptr, 0, nullptr, nullptr, 0), "cuLibraryLoadData");
  if (library == nullptr) throw std::runtime_error("CUDA: no image " + std::string(image));
  CUkernel found = nullptr;
  check(d.library_kernel(&found, library, name.c_str()), name.c_str());
  check(d.kernel_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes, found, device),
        "cuKernelSetAttribute");
  return kernels[{device, name}] = reinterpret_cast<CUfunction>(found);
}

void launch(CUfunction function, int blocks, int threads, int shared_bytes, CUstream stream, const void* args) {
  std::array<void*, 1> parameters = {const_cast<void*>(args)};
  check(driver().launch(function, static_cast<unsigned>(blocks), 1, 1, static_cast<unsigned>(threads), 1, 1,
                        static_cast<unsigned>(shared_bytes), stream, parameters.data(), nullptr),
        "cuLaunchKernel");
}

void launch_behind(CUfunction function, int blocks, int threads, CUstream stream, const void* args) {
  std::array<void*, 1> parameters = {const_cast<void*>(args)};
  CUlaunchAttribute early{};
  early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  early.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config{};
  config.gridDimX = static_cast<unsigned>(blocks), config.gridDimY = 1, config.gridDimZ = 1;
  config.blockDimX = static_cast<unsigned>(threads), config.blockDimY = 1, config.blockDimZ = 1;
  config.hStream = stream;
  config.attrs = &early, config.numAttrs = 1;
  check(driver().launch_with(&config, function, parameters.data(), nullptr), "cuLaunchKernelEx");
}

Workspace::Workspace(DeviceState& device, std::int64_t bytes, CUstream stream) : stream_(stream) {
  if (bytes > 0)
    check(driver().allocate(&memory_, static_cast<std::size_t>(bytes), device.pool, stream), "cuMemAllocFromPoolAsync");
}

Workspace::~Workspace() {
  if (memory_ != 0) driver().free(memory_, stream_);
}

}  // namespace attend::cuda
