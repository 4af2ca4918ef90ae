// Describes a checked call for kernels on the GPU.
#include "cuda/cuda_call.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "attend/cuda.hpp"
#include "base/check.hpp"
#include "base/checked.hpp"
#include "cuda/lower_mask.hpp"
#include "ops/row_statistics.hpp"

namespace attend::cuda {
namespace {

constexpr std::int64_t kMostDim = 256;

void refuse_if(const char* op, bool wanted, const char* what) {
  if (wanted) fail(op, std::string(what) + " on a GPU is not supported yet");
}

void check_capture(CUstream stream, const char* what) {
  CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
  check(driver().is_capturing(stream, &capturing), "cuStreamIsCapturing");
  if (capturing != CU_STREAM_CAPTURE_STATUS_NONE)
    throw std::runtime_error(std::string("cuda::attention: ") + what +
                             " are copied from the host, which a captured graph would read again when it runs");
}

void check_memory(const char* op, const AttentionCall& call) {
  check_on_device(op, "q", call.q.data);
  check_on_device(op, "k", call.k.data);
  check_on_device(op, "v", call.v.data);
  const AttentionOptions& options = call.options;
  if (options.bias) check_on_device(op, "bias", options.bias->data);
  if (options.distance_bias) check_on_device(op, "distance_bias", options.distance_bias->data);
  if (options.alibi_slopes) check_on_device(op, "ALiBi slopes", options.alibi_slopes->data);
  if (options.sinks) check_on_device(op, "sinks", options.sinks->data);
  for (const DenseRule& dense : call.mask.denses) check_on_device(op, "the dense mask", dense.data);
}

}  // namespace

void check_hopper(const char* op, const DeviceState& device, const char* what) {
  if (device.kernels == KernelSet::plain)
    fail(op, std::string(what) +
                 " are not supported by the plain kernels, which this GPU runs: expected one of compute capability 9.0 "
                 "(H100, H200), and ATTEND_CUDA_KERNELS not to be \"plain\"");
}

void check_on_device(const char* op, const char* what, const void* data) {
  unsigned type = 0;
  if (data != nullptr && driver().pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                                    reinterpret_cast<CUdeviceptr>(data)) != CUDA_SUCCESS)
    fail(op, std::string(what) + " lies in the host's memory, expected memory of the device");
}

void check_supported(const char* op, const AttentionCall& call) {
  const std::string missing = why_not();
  if (!missing.empty()) fail(op, missing);
  const DType dtype = call.q.dtype;
  if (dtype != DType::bf16 && dtype != DType::f16)
    fail(op, std::string("q is ") + name(dtype) + ", expected bf16 or f16 on a GPU");
  if (call.q.dim() > kMostDim || call.v.dim() > kMostDim)
    fail(op, "head dim is " + std::to_string(call.q.dim()) + " and value dim " + std::to_string(call.v.dim()) +
                 ", expected at most 256 on a GPU");
  refuse_if(op, static_cast<bool>(call.options.rule), "a score rule of one's own");
  const MaskPlan& mask = call.mask;
  refuse_if(op, !mask.anys.empty(), "a mask with `|` or except()");
  refuse_if(op, !mask.periods.empty(), "dilated() and columns()");
  refuse_if(op, !mask.tokens.empty(), "tokens() and global_tokens()");
  refuse_if(op, mask.blocks.size() + mask.denses.size() > kMostHoles, "a mask of more than four dense and block rules");
}

DeviceOperand device_operand(const Operand& operand) {
  return {operand.data,         static_cast<int>(operand.dtype),
          operand.batch_stride, operand.head_stride,
          operand.row_stride,   operand.dim_stride};
}
DeviceOperand device_operand(const std::optional<View>& view) {
  if (!view) return {};
  return device_operand(operand_of(*view));
}

namespace {

constexpr std::int64_t kCopyBytes = 16;  // what the copy engine counts in

// A dimension of one element takes no step: any stride does that the engine allows.
std::int64_t step_of(const MapSource& source, std::size_t d) {
  const std::int64_t unit = kCopyBytes / source.bytes;
  return source.shape[d] > 1 ? source.strides[d] : divide_up(source.shape[3], unit) * unit;
}

}  // namespace

MapSource::MapSource(const View& view)
    : data(view.data),
      shape(view.shape),
      strides(view.strides),
      type(view.dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16),
      bytes(2) {}

void check_strides(const char* what, const MapSource& source) {
  const std::int64_t unit = kCopyBytes / source.bytes;
  const auto fits = [&](std::size_t d) { return step_of(source, d) % unit == 0 && step_of(source, d) > 0; };
  const bool aligned = (source.shape[3] == 1 || source.strides[3] == 1) &&
                       reinterpret_cast<std::uintptr_t>(source.data) % kCopyBytes == 0 && fits(0) && fits(1) && fits(2);
  if (!aligned)
    fail("cuda::attention", std::string(what) +
                                " lies at strides that copies of 16 bytes cannot take: expected the last dimension "
                                "contiguous, the others at multiples of " +
                                std::to_string(unit) + " elements (16 bytes), and the first element on 16 bytes");
}

CUtensorMap tensor_map(const char* what, const MapSource& source, const MapBox& box) {
  check_strides(what, source);
  const auto [B, H, L, D] = source.shape;
  const auto step = [&](std::size_t d) { return step_of(source, d); };
  const auto u64 = [](std::int64_t x) { return static_cast<cuuint64_t>(x); };
  const auto bytes = [&](std::int64_t stride) { return u64(stride * source.bytes); };
  const int packed = std::max(box.packed, 1);
  const int rank = box.packed > 0 ? 5 : 4;
  const auto columns = static_cast<cuuint32_t>(128 / source.bytes);
  const cuuint64_t dims5[5] = {u64(D), u64(packed), u64(L), u64(H / packed), u64(B)};
  const cuuint64_t strides5[4] = {bytes(step(1)), bytes(step(2)), bytes(step(1)) * u64(packed), bytes(step(0))};
  const cuuint32_t box5[5] = {columns, static_cast<cuuint32_t>(packed), static_cast<cuuint32_t>(box.rows), 1, 1};
  const cuuint64_t dims4[4] = {u64(D), u64(L), u64(H), u64(B)};
  const cuuint64_t strides4[3] = {bytes(step(2)), bytes(step(1)), bytes(step(0))};
  const cuuint32_t box4[4] = {columns, static_cast<cuuint32_t>(box.rows), 1, 1};
  const cuuint32_t ones[5] = {1, 1, 1, 1, 1};
  CUtensorMap map;
  check(driver().encode_map(&map, source.type, static_cast<cuuint32_t>(rank), const_cast<void*>(source.data),
                            rank == 5 ? dims5 : dims4, rank == 5 ? strides5 : strides4, rank == 5 ? box5 : box4, ones,
                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        what);
  return map;
}

DeviceOperand plain_rows(const char* what, const View& view) {
  check_strides(what, view);
  if (view.dim() % 8 != 0)
    fail("cuda::attention", std::string(what) + " has " + std::to_string(view.dim()) +
                                " dims, expected a multiple of 8 with the plain kernels, which this GPU runs");
  return device_operand(operand_of(view));
}

KeyParts key_parts(const AttentionCall& call, const MutableView& out, const AttentionExtras& extras) {
  const AttentionProblem& p = call.unread_problem();
  KeyParts parts;
  parts.count = 0;
  parts.B = static_cast<int>(p.B), parts.H = static_cast<int>(p.H), parts.M = static_cast<int>(p.M);
  parts.G = static_cast<int>(p.G), parts.E = static_cast<int>(p.E);
  parts.row_floats = p.E <= 64 && p.D <= 64 ? 64 : p.E <= 128 && p.D <= 128 ? 128 : 256;
  parts.sinks = device_operand(call.options.sinks);
  parts.joined = device_operand(operand_of(out));
  if (extras.lse) {
    const Operand lse = operand_of(*extras.lse);
    parts.joined_lse = static_cast<float*>(lse.data);
    parts.lse_batch_stride = lse.batch_stride, parts.lse_head_stride = lse.head_stride;
    parts.lse_row_stride = lse.row_stride;
  }
  return parts;
}

DeviceCall::DeviceCall(const char* op, const AttentionCall& checked, CUstream on, Allocator* memory_from,
                       const std::optional<RowStatistics>& wanted)
    : call(checked), device((check_supported(op, checked), device_state())), stream(on), allocator(memory_from) {
  const AttentionProblem& p = call.unread_problem();
  check_memory(op, call);
  lower_mask(call.mask, mask, ints_);
  terms.softcap = p.softcap;
  if (p.bias) terms.bias = device_operand(*p.bias);
  if (call.options.alibi_slopes) {
    terms.alibi = device_operand(call.options.alibi_slopes);
    const PositionPlan position = lower_diagonal(call.options.alibi_diagonal, "ALiBi", p.B);
    terms.alibi_offsets = lower_offsets(position, ints_);
    terms.alibi_last_key = position.align == Align::last_key ? 1 : 0;
  }
  terms.dropout_seed = p.dropout_seed;
  terms.dropout_threshold = p.dropout_threshold;
  terms.dropout_scale = p.dropout_threshold != 0 ? p.dropout_scale : 1.0F;
  has_bits = !call.mask.blocks.empty() || !call.mask.denses.empty();
  has_terms = terms.softcap > 0 || terms.bias.data != nullptr || terms.alibi.data != nullptr ||
              terms.dropout_threshold != 0 || !scale_fits_exponents(p.scale);
  if (wanted) lower_statistics(*wanted);
  if (ints_.size() <= kInlineInts) {
    std::copy(ints_.begin(), ints_.end(), mask.ints);
  } else {
    mask.outside = reinterpret_cast<const int*>(
        upload(reinterpret_cast<const std::uint8_t*>(ints_.data()), ints_.size() * sizeof(int)));
  }
}

void DeviceCall::lower_statistics(const RowStatistics& wanted) {
  static_assert(kStatisticColumns == kRowStatistics);
  const AttentionProblem& p = call.unread_problem();
  const RowStatisticsOptions& options = wanted.options;
  statistics.rows = device_operand(operand_of(wanted.rows));
  const PositionPlan position = lower_diagonal(options.diagonal, "statistics", p.B);
  statistics.offsets = lower_offsets(position, ints_);
  statistics.last_key = position.align == Align::last_key ? 1 : 0;
  const auto clipped = [](std::int64_t x) { return static_cast<int>(std::min<std::int64_t>(x, kFarKey)); };
  statistics.sink_tokens = clipped(options.sink_tokens), statistics.sinks_apart = options.sinks_apart ? 1 : 0;
  statistics.local_width = clipped(options.local_width), statistics.recent_width = clipped(options.recent_width);
  if (options.tokens.empty()) return;
  constexpr std::int64_t kPastRow = 256;  // floats: a tile reads so far, what it finds there meets a weight of 0
  const StatisticsRows rows(wanted, p);
  const StatisticsPlan& plan = *rows.plan();
  const std::int64_t of_keys = 2 * plan.to_before + kPastRow, of_queries = checked_product("tokens", {p.B, p.M});
  std::vector<float> numbers(static_cast<std::size_t>(of_keys + of_queries));
  std::copy_n(plan.tokens, 2 * plan.to_before, numbers.begin());
  std::copy_n(plan.query_tokens, of_queries, numbers.begin() + of_keys);
  const auto* const there = reinterpret_cast<const float*>(
      upload(reinterpret_cast<const std::uint8_t*>(numbers.data()), numbers.size() * sizeof(float)));
  statistics.tokens = there, statistics.query_tokens = there + of_keys;
  statistics.token_row = plan.token_row, statistics.to_before = plan.to_before;
}

const std::uint8_t* DeviceCall::upload(const std::uint8_t* data, std::size_t bytes) {
  check_capture(stream, "a mask's lists and the tokens of statistics");
  memory_.push_back(std::make_unique<Workspace>(device, static_cast<std::int64_t>(bytes), stream, allocator));
  auto* to = memory_.back()->part<std::uint8_t>(static_cast<std::int64_t>(bytes));
  // From memory that is not pinned the driver copies before it returns.
  check(driver().copy_in(reinterpret_cast<CUdeviceptr>(to), data, bytes, stream), "cuMemcpyHtoDAsync");
  return to;
}

void DeviceCall::lower_holes(const std::optional<OneHead>& only) {
  bits_.M = mask.M, bits_.N = mask.N;
  const auto add = [&](HoleRule rule) {
    if (only) {
      rule.data += only->batch * rule.strides[0] + only->head * rule.strides[1];
      rule.strides[0] = rule.strides[1] = 0;
    }
    bits_.rules[bits_.rule_count++] = rule;
    if (rule.strides[0] != 0) bits_.B = static_cast<int>(call.q.batch());
    if (rule.strides[1] != 0) bits_.H = static_cast<int>(call.q.heads());
  };
  for (const DenseRule& dense : call.mask.denses) {
    HoleRule rule;
    rule.data = dense.data;
    for (std::size_t d = 0; d < 4; ++d) rule.strides[d] = dense.shape[d] == 1 ? 0 : dense.strides[d];
    add(rule);
  }
  for (const BlocksRule& blocks : call.mask.blocks) {
    HoleRule rule;
    rule.blocks = 1;
    rule.data = upload(blocks.bits->data(), blocks.bits->size());
    rule.strides[1] = blocks.heads == 1 ? 0 : blocks.rows * blocks.cols;
    rule.strides[2] = blocks.cols, rule.strides[3] = 1;
    rule.block_queries = static_cast<int>(std::min<std::int64_t>(blocks.block_queries, kFarKey));
    rule.block_keys = static_cast<int>(std::min<std::int64_t>(blocks.block_keys, kFarKey));
    add(rule);
  }
}

void DeviceCall::make_bits(int tile_queries, int tile_keys, const std::optional<OneHead>& only) {
  lower_holes(only);
  bits_.tile_queries = tile_queries, bits_.tile_keys = tile_keys;
  bits_.row_words = static_cast<int>(divide_up(mask.N, tile_keys)) * (tile_keys / 32);  // whole tiles
  bits_.row_tiles = static_cast<int>(divide_up(mask.N, tile_keys));
  bits_.rows_of_tiles = static_cast<int>(divide_up(mask.M, tile_queries));
  const std::int64_t heads = std::int64_t{bits_.B} * bits_.H, tile_rows = heads * bits_.rows_of_tiles;
  const std::int64_t words = checked_product("mask bits", {heads, mask.M, bits_.row_words});
  const std::int64_t tiles = checked_product("mask tiles", {tile_rows, bits_.row_tiles});
  memory_.push_back(std::make_unique<Workspace>(
      device, Workspace::round(words * 4) + Workspace::round(tiles * std::int64_t{sizeof(MaskTile)}), stream,
      allocator));
  bits_.words = memory_.back()->part<std::uint32_t>(words);
  bits_.tiles = memory_.back()->part<MaskTile>(tiles);
  const std::int64_t strips = divide_up(bits_.row_tiles, 1024 / tile_keys);
  launch(kernel("mask_bits", "mask_words", 0), static_cast<int>(tile_rows * strips), kMaskThreads, 0, stream, &bits_);
  launch_behind(device.kernels, kernel("mask_bits", "mask_links", 0), static_cast<int>(tile_rows), 32, 0, stream,
                &bits_);
  MaskBits& to = mask.bits;
  to.words = bits_.words, to.tiles = bits_.tiles;
  to.row_words = bits_.row_words, to.row_tiles = bits_.row_tiles;
  const std::int64_t head_words = std::int64_t{mask.M} * bits_.row_words, head_tiles = tiles / heads;
  to.head_stride = bits_.H > 1 ? head_words : 0, to.tile_head_stride = bits_.H > 1 ? head_tiles : 0;
  to.batch_stride = bits_.B > 1 ? head_words * bits_.H : 0;
  to.tile_batch_stride = bits_.B > 1 ? head_tiles * bits_.H : 0;
}

KeyBits DeviceCall::make_key_bits(int tile_queries, int tile_keys) {
  bits_.counted = 1;
  make_bits(tile_queries, tile_keys);
  bits_.words_of_key = bits_.rows_of_tiles * (tile_queries / 32);
  const std::int64_t heads = std::int64_t{bits_.B} * bits_.H;
  const std::int64_t words = checked_product("mask bits", {heads, mask.N, bits_.words_of_key});
  const std::int64_t tiles = checked_product("mask tiles", {heads, bits_.row_tiles, bits_.rows_of_tiles});
  memory_.push_back(std::make_unique<Workspace>(
      device, Workspace::round(words * 4) + Workspace::round(tiles * std::int64_t{sizeof(MaskTile)}), stream,
      allocator));
  bits_.key_words = memory_.back()->part<std::uint32_t>(words);
  bits_.key_tiles = memory_.back()->part<MaskTile>(tiles);
  launch(kernel("mask_bits", "mask_key_words", 0), static_cast<int>(heads * bits_.row_words), kMaskThreads, 0, stream,
         &bits_);
  launch(kernel("mask_bits", "mask_key_links", 0), static_cast<int>(heads * bits_.row_tiles), 32, 0, stream, &bits_);
  KeyBits to;
  to.words = bits_.key_words, to.tiles = bits_.key_tiles, to.row_words = bits_.words_of_key;
  const std::int64_t head_words = words / heads, head_tiles = tiles / heads;
  to.head_stride = bits_.H > 1 ? head_words : 0, to.tile_head_stride = bits_.H > 1 ? head_tiles : 0;
  to.batch_stride = bits_.B > 1 ? head_words * bits_.H : 0;
  to.tile_batch_stride = bits_.B > 1 ? head_tiles * bits_.H : 0;
  return to;
}

}  // namespace attend::cuda
