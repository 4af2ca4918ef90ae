// The part of DLPack's exchange interface (version 1) that shows a tensor in place, without a capsule.
#pragma once

#include <cstdint>

namespace attend::python::dlpack {

struct Device {
  std::int32_t type, id;
};
inline constexpr std::int32_t kCpu = 1;

struct ElementType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
inline constexpr std::uint8_t kFloat = 2, kBfloat = 4;

struct Tensor {
  void* data;
  Device device;
  std::int32_t rank;
  ElementType type;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements
  std::uint64_t byte_offset;
};

// What type(x).__dlpack_c_exchange_api__ points to, for as long as the process lives.
struct Exchange {
  std::uint32_t major, minor;
  Exchange* older;
  void (*allocate)();
  void (*managed_from_object)();
  void (*object_from_managed)();
  int (*show)(void* object, Tensor* tensor);  // may be null; not 0 with a Python error set
  void (*current_stream)();
};
inline constexpr const char* kExchangeName = "dlpack_exchange_api";
inline constexpr std::uint32_t kExchangeMajor = 1;

}  // namespace attend::python::dlpack
