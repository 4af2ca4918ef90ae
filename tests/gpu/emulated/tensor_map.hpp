// What the emulated driver writes into a CUtensorMap, and the emulated copy engine reads.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <cstring>

namespace emulated {

struct TensorMap {
  const char* data;
  std::int64_t dims[4];
  std::int64_t strides[3];  // in bytes, of the dimensions from the second on
  std::int32_t box[4];
  std::int32_t bytes;  // of an element
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap));

inline TensorMap read_map(const CUtensorMap& map) {
  TensorMap result;
  std::memcpy(&result, &map, sizeof(result));
  return result;
}

}  // namespace emulated
