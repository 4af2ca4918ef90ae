// Looks up PyTorch's stable C ABI in the libraries that `import torch` has loaded.
#include "torch_abi.hpp"

#include <dlfcn.h>

#include <optional>

namespace attend::python::torch_abi {
namespace {

// Symbols of a library that is loaded already. Never closed: PyTorch stays loaded until the process ends.
class LoadedLibrary {
 public:
  explicit LoadedLibrary(const char* name) : handle_(dlopen(name, RTLD_NOLOAD | RTLD_LAZY | RTLD_LOCAL)) {}

  template <class F>
  bool find(const char* name, F& function) const {
    function = handle_ == nullptr ? nullptr : reinterpret_cast<F>(dlsym(handle_, name));
    return function != nullptr;
  }

 private:
  void* handle_;
};

std::optional<Functions> find_functions() {
  Functions f{};
  const LoadedLibrary cpu("libtorch_cpu.so"), cuda("libtorch_cuda.so");
  const bool complete =
      cpu.find("aoti_torch_library_init_impl", f.library_init_impl) && cpu.find("torch_library_impl", f.library_impl) &&
      cpu.find("aoti_torch_check", f.check) && cpu.find("aoti_torch_get_data_ptr", f.get_data_ptr) &&
      cpu.find("aoti_torch_get_dim", f.get_dim) && cpu.find("aoti_torch_get_sizes", f.get_sizes) &&
      cpu.find("aoti_torch_get_strides", f.get_strides) && cpu.find("aoti_torch_get_dtype", f.get_dtype) &&
      cpu.find("aoti_torch_get_device_type", f.get_device_type) &&
      cpu.find("aoti_torch_get_device_index", f.get_device_index) &&
      cpu.find("aoti_torch_delete_tensor_object", f.delete_tensor) &&
      cpu.find("aoti_torch_empty_strided", f.empty_strided) && cpu.find("aoti_torch_copy_", f.copy) &&
      cpu.find("aoti_torch_zero_", f.zero) && cpu.find("aoti_torch_device_type_cuda", f.device_type_cuda) &&
      cpu.find("aoti_torch_dtype_float32", f.dtype_float32) && cpu.find("aoti_torch_dtype_float16", f.dtype_float16) &&
      cpu.find("aoti_torch_dtype_bfloat16", f.dtype_bfloat16) &&
      cpu.find("aoti_torch_dtype_float64", f.dtype_float64) && cpu.find("aoti_torch_dtype_bool", f.dtype_bool) &&
      cpu.find("aoti_torch_dtype_uint8", f.dtype_uint8) && cpu.find("aoti_torch_dtype_int32", f.dtype_int32) &&
      cpu.find("aoti_torch_dtype_int64", f.dtype_int64);
  if (!complete) return std::nullopt;
  cpu.find("torch_delete_stable_ivalue", f.delete_value);
  const bool has_cuda = cuda.find("aoti_torch_get_current_cuda_stream", f.current_cuda_stream) &&
                        cuda.find("aoti_torch_create_cuda_guard", f.create_cuda_guard) &&
                        cuda.find("aoti_torch_delete_cuda_guard", f.delete_cuda_guard);
  if (!has_cuda) f.current_cuda_stream = nullptr;
  return f;
}

}  // namespace

const Functions* functions() {
  static const std::optional<Functions> found = find_functions();
  return found ? &*found : nullptr;
}

}  // namespace attend::python::torch_abi
