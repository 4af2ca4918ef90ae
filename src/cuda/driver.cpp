// Finds the CUDA driver, loads kernels and keeps what a device needs between calls.
#include "cuda/driver.hpp"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "attend/cuda.hpp"

namespace attend::cuda {
namespace {

constexpr int kCounters = 1 << 16;       // of streams: one that comes after so many others waits for all work
constexpr int kGraphCounters = 1 << 18;  // more than launches in all the graphs that live at once

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
  find(library, "cuCtxSynchronize", d.synchronize, d.missing);
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
  find(library, "cuStreamGetId", d.stream_id, d.missing);
  find(library, "cuPointerGetAttribute", d.pointer_attribute, d.missing);
  find(library, "cuStreamGetCaptureInfo_v2", d.capture_info, d.missing);
  find(library, "cuUserObjectCreate", d.create_object, d.missing);
  find(library, "cuUserObjectRelease", d.release_object, d.missing);
  find(library, "cuGraphRetainUserObject", d.keep_object, d.missing);
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
  constexpr std::size_t kBytes = (kCounters + kGraphCounters) * sizeof(int);
  check(d.allocate_now(&counters, kBytes), "cuMemAlloc");
  check(d.fill_now(counters, 0, kBytes), "cuMemsetD8");
  made->counters = reinterpret_cast<int*>(counters);
  state = std::move(made);
  return *state;
}

namespace {

// The counters of graphs that nobody has: those that were given back, and those never taken.
struct FreeCounters {
  std::mutex mutex;
  std::vector<int*> back;
  int taken = 0;  // of the device's, from the first on
};
FreeCounters& free_counters(int device) {
  static auto* all = new std::map<int, FreeCounters>;  // graphs may outlive everything else here
  const std::lock_guard lock(lists());
  return (*all)[device];
}
struct GraphCounter {
  FreeCounters& owner;
  int* counter;
};
// Called by the driver when the last of a graph and what was made of it is gone: no launch of it is running any more,
// and kernels leave their counter at zero.
void CUDA_CB give_back(void* data) {
  const std::unique_ptr<GraphCounter> kept(static_cast<GraphCounter*>(data));
  const std::lock_guard lock(kept->owner.mutex);
  kept->owner.back.push_back(kept->counter);
}

int* take_graph_counter(DeviceState& device, CUgraph graph) {
  FreeCounters& counters = free_counters(device.number);
  auto kept = std::make_unique<GraphCounter>(GraphCounter{counters, nullptr});
  {
    const std::lock_guard lock(counters.mutex);
    if (!counters.back.empty()) {
      kept->counter = counters.back.back();
      counters.back.pop_back();
    } else if (counters.taken < kGraphCounters) {
      kept->counter = device.counters + kCounters + counters.taken++;
    } else {
      throw std::runtime_error("CUDA: the graphs that live hold more than " + std::to_string(kGraphCounters) +
                               " launches of attention; destroy some of them");
    }
  }
  int* const counter = kept->counter;
  const Driver& d = driver();
  CUuserObject object = nullptr;
  const CUresult made = d.create_object(&object, kept.get(), give_back, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
  if (made != CUDA_SUCCESS) give_back(kept.release());
  check(made, "cuUserObjectCreate");
  kept.release();  // the object's now
  const CUresult handed = d.keep_object(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
  if (handed != CUDA_SUCCESS) d.release_object(object, 1);
  check(handed, "cuGraphRetainUserObject");
  return counter;
}

// One counter for each stream, whose launches run one after another. A stream's number is no other's, ever. When all
// counters are taken, the call waits until the device is idle and no launch is being made: then all of them are free.
struct StreamCounters {
  std::shared_mutex leases;  // shared: between taking a counter and launching with it
  std::mutex mutex;          // of `places`
  std::map<unsigned long long, int> places;

  // -1: all are taken.
  int place_of(unsigned long long stream) {
    const std::lock_guard lock(mutex);
    const auto known = places.find(stream);
    if (known != places.end()) return known->second;
    if (std::ssize(places) >= kCounters) return -1;
    const int place = static_cast<int>(places.size());
    return places[stream] = place;
  }
  void free_all() {
    const std::unique_lock exclusive(leases);
    const std::lock_guard lock(mutex);
    if (std::ssize(places) < kCounters) return;  // another thread was first
    if (driver().synchronize() != CUDA_SUCCESS)
      throw std::runtime_error("CUDA: attention has run on " + std::to_string(kCounters) +
                               " streams, and the device could not be waited for to run it on another one; use fewer " +
                               "streams, or end the capture that is under way");
    places.clear();
  }
};

StreamCounters& stream_counters(int device) {
  static auto* all = new std::map<int, StreamCounters>;  // threads may launch until the process ends
  const std::lock_guard lock(lists());
  return (*all)[device];
}

CounterLease take_stream_counter(DeviceState& device, CUstream stream) {
  unsigned long long number = 0;
  check(driver().stream_id(stream, &number), "cuStreamGetId");
  StreamCounters& counters = stream_counters(device.number);
  for (;;) {
    std::shared_lock held(counters.leases);
    const int place = counters.place_of(number);
    if (place >= 0) return {device.counters + place, std::move(held)};
    held.unlock();
    counters.free_all();
  }
}

}  // namespace

CounterLease take_counter(DeviceState& device, CUstream stream) {
  CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
  CUgraph graph = nullptr;
  check(driver().capture_info(stream, &capturing, nullptr, &graph, nullptr, nullptr), "cuStreamGetCaptureInfo");
  if (capturing == CU_STREAM_CAPTURE_STATUS_ACTIVE) return {take_graph_counter(device, graph), {}};
  return take_stream_counter(device, stream);
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

void launch_behind(KernelSet kernels, CUfunction function, int blocks, int threads, int shared_bytes, CUstream stream,
                   const void* args) {
  if (kernels != KernelSet::hopper) return launch(function, blocks, threads, shared_bytes, stream, args);
  std::array<void*, 1> parameters = {const_cast<void*>(args)};
  CUlaunchAttribute early{};
  early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  early.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config{};
  config.gridDimX = static_cast<unsigned>(blocks), config.gridDimY = 1, config.gridDimZ = 1;
  config.blockDimX = static_cast<unsigned>(threads), config.blockDimY = 1, config.blockDimZ = 1;
  config.sharedMemBytes = static_cast<unsigned>(shared_bytes);
  config.hStream = stream;
  config.attrs = &early, config.numAttrs = 1;
  check(driver().launch_with(&config, function, parameters.data(), nullptr), "cuLaunchKernelEx");
}

Workspace::Workspace(DeviceState& device, std::int64_t bytes, CUstream stream, Allocator* allocator)
    : stream_(stream), allocator_(allocator), own_(bytes > 0) {
  if (own_ && allocator_ != nullptr)
    memory_ = reinterpret_cast<CUdeviceptr>(allocator_->allocate(bytes));
  else if (own_)
    check(driver().allocate(&memory_, static_cast<std::size_t>(bytes), device.pool, stream), "cuMemAllocFromPoolAsync");
}

Workspace::Workspace(DeviceState& device, std::int64_t bytes, CUstream stream, void* given)
    : memory_(reinterpret_cast<CUdeviceptr>(given)), stream_(stream), own_(given == nullptr && bytes > 0) {
  if (own_)
    check(driver().allocate(&memory_, static_cast<std::size_t>(bytes), device.pool, stream), "cuMemAllocFromPoolAsync");
}

Workspace::~Workspace() {
  if (!own_ || memory_ == 0) return;
  if (allocator_ != nullptr)
    allocator_->free(reinterpret_cast<void*>(memory_));
  else
    driver().free(memory_, stream_);
}

}  // namespace attend::cuda
