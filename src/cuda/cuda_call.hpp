// What forward and backward on the GPU share: a checked call as the plain data of kernels.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "cuda/driver.hpp"
#include "cuda/forward_args.hpp"
#include "cuda/mask_bits.hpp"
#include "ops/attention_call.hpp"

namespace attend::cuda {

// Throws InvalidArgument where a GPU cannot do it, and where there is none.
void check_supported(const char* op, const AttentionCall& call);

// Whether a kernel without terms may take the scale into the exponents of 2. Only a positive one keeps the order of
// scores. What weights are against is then a product of the largest q.k, rounded by up to 2^-24 of itself: one factor
// of all weights of the row. They may be 2^8 besides, so f16 holds them up to a factor of 2^7: an exponent of 2^26. Up
// to this scale that is a q.k of 2^19, 256 dims of numbers of 45. Beyond, kernels with terms take the difference of two
// logits before they make it an exponent.
constexpr float kLargestScale = 64;
inline bool scale_fits_exponents(float scale) {
  return scale > 0 && scale <= kLargestScale;
}

// Throws where the device runs the plain kernels, which do not have `what`.
void check_hopper(const char* op, const DeviceState& device, const char* what);

// The host's own memory would stop the GPU with an error that names nothing.
void check_on_device(const char* op, const char* what, const void* data);

DeviceOperand device_operand(const Operand& operand);
DeviceOperand device_operand(const std::optional<View>& view);

// Where the dims of an operand lie for the copy engine: [dim, packed head, token, head, batch], boxes of 64 dims by
// `packed` heads by `rows` tokens. Without `packed` heads the second of them is left out.
struct MapBox {
  int packed;  // 0: keys and values
  int rows;
};
// What the copy engine reads: elements of two bytes, or of one.
struct MapSource {
  MapSource(const View& view);  // of bf16 or f16
  MapSource(const void* bytes_at, const Shape& of_shape, const Strides& at_strides)
      : data(bytes_at), shape(of_shape), strides(at_strides), type(CU_TENSOR_MAP_DATA_TYPE_UINT8), bytes(1) {}

  const void* data;
  Shape shape;
  Strides strides;  // in elements
  CUtensorMapDataType type;
  std::int64_t bytes;  // of an element
};
// Throws where the copy engine, or a kernel that reads pairs of elements, cannot take it.
void check_strides(const char* what, const MapSource& source);
CUtensorMap tensor_map(const char* what, const MapSource& source, const MapBox& box);
// A view whose rows the plain kernels copy in sixteens of bytes; throws where they cannot.
DeviceOperand plain_rows(const char* what, const View& view);

// Where parts of the keys are joined: none of them as yet.
KeyParts key_parts(const AttentionCall& call, const MutableView& out, const AttentionExtras& extras);

// The mask and the terms of a call on the device. Owns the memory of the mask's lists and bits.
class DeviceCall {
 public:
  DeviceCall(const char* op, const AttentionCall& call, CUstream stream, Allocator* allocator = nullptr,
             const std::optional<RowStatistics>& wanted = {});

  const AttentionCall& call;
  DeviceState& device;
  CUstream stream;
  Allocator* allocator;  // of temporary memory; null: the device's pool
  ScoreTerms terms;
  StatisticsArgs statistics;
  DeviceMask mask;
  bool has_terms = false, has_bits = false;

  // Makes the bits, for tiles of these sizes; of one head of a batch alone, where it is given.
  struct OneHead {
    std::int64_t batch, head;
  };
  void make_bits(int tile_queries, int tile_keys, const std::optional<OneHead>& only = {});
  // For backward: the keys' bits too, and tiles that count.
  KeyBits make_key_bits(int tile_queries, int tile_keys);

 private:
  void lower_statistics(const RowStatistics& wanted);
  void lower_holes(const std::optional<OneHead>& only);
  const std::uint8_t* upload(const std::uint8_t* data, std::size_t bytes);
  std::vector<int> ints_;
  MaskBitsArgs bits_;
  std::vector<std::unique_ptr<Workspace>> memory_;
};

}  // namespace attend::cuda
