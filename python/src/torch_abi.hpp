// PyTorch's stable C ABI, looked up in the running process: nothing of PyTorch is linked or included, and one build of
// this module serves every PyTorch version that exports these functions.
#pragma once

#include <cstdint>

namespace attend::python::torch_abi {

// Opaque handles; a TensorHandle is one reference to a tensor.
using TensorHandle = struct TensorObject*;
using LibraryHandle = struct LibraryObject*;
using GuardHandle = struct GuardObject*;
using Error = std::int32_t;  // 0: success

// An argument or a result of an operator (StableIValue): the bits of a bool, an integer or a double, an owned
// TensorHandle, or for an optional a null pointer or a pointer to a Value on the heap, which the kernel frees.
using Value = std::uint64_t;
using Kernel = void (*)(Value* stack, std::uint64_t arguments, std::uint64_t results);

struct Functions {
  Error (*library_init_impl)(const char* name_space, const char* dispatch_key, const char* file, std::uint32_t line,
                             LibraryHandle* made);
  Error (*library_impl)(LibraryHandle library, const char* op, Kernel kernel, std::uint64_t built_for);
  void (*check)(bool condition, const char* function, const char* file, std::uint32_t line, const char* message);

  Error (*get_data_ptr)(TensorHandle tensor, void** data);
  Error (*get_dim)(TensorHandle tensor, std::int64_t* rank);
  Error (*get_sizes)(TensorHandle tensor, std::int64_t** sizes);
  Error (*get_strides)(TensorHandle tensor, std::int64_t** strides);
  Error (*get_dtype)(TensorHandle tensor, std::int32_t* dtype);
  Error (*get_device_type)(TensorHandle tensor, std::int32_t* type);
  Error (*get_device_index)(TensorHandle tensor, std::int32_t* index);
  Error (*delete_tensor)(TensorHandle tensor);
  Error (*empty_strided)(std::int64_t rank, const std::int64_t* sizes, const std::int64_t* strides, std::int32_t dtype,
                         std::int32_t device_type, std::int32_t device_index, TensorHandle* made);
  Error (*copy)(TensorHandle to, TensorHandle from, std::int32_t non_blocking);
  Error (*zero)(TensorHandle tensor);

  std::int32_t (*device_type_cuda)();
  std::int32_t (*dtype_float32)();
  std::int32_t (*dtype_float16)();
  std::int32_t (*dtype_bfloat16)();
  std::int32_t (*dtype_float64)();
  std::int32_t (*dtype_bool)();
  std::int32_t (*dtype_uint8)();
  std::int32_t (*dtype_int32)();
  std::int32_t (*dtype_int64)();

  Error (*delete_value)(Value* value);  // null before PyTorch 2.13, where operator delete serves

  // Null in builds of PyTorch without CUDA.
  Error (*current_cuda_stream)(std::int32_t device_index, void** stream);
  Error (*create_cuda_guard)(std::int32_t device_index, GuardHandle* guard);
  Error (*delete_cuda_guard)(GuardHandle guard);
};

// Null where PyTorch is not loaded, or is older than 2.10.
const Functions* functions();

// The layout of Value and of the functions above, as PyTorch numbers its versions: 2.10.
inline constexpr std::uint64_t kBuiltFor = std::uint64_t{2} << 56 | std::uint64_t{10} << 48;

}  // namespace attend::python::torch_abi
