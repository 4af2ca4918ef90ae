// Attention over caches on the GPU: check what the host can, describe, put the kernels on the stream.
#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "attend/cuda.hpp"
#include "base/check.hpp"
#include "base/checked.hpp"
#include "cuda/cuda_call.hpp"
#include "cuda/decode_args.hpp"

namespace attend::cuda {
namespace {

constexpr const char* kOp = "cuda::attention";
constexpr std::int64_t kMostTokens = std::int64_t{1} << 28;
constexpr float kLog2E = 1.4426950408889634F;

const char* format_name(CacheFormat format) {
  return format == CacheFormat::int8 ? "int8" : format == CacheFormat::fp8 ? "fp8" : "plain";
}
std::int64_t bytes_of(CacheFormat format) {
  return format == CacheFormat::plain ? 2 : 1;
}
// Tokens that the pages of a sequence hold.
std::int64_t capacity(const CacheView& cache) {
  const std::int64_t pages = cache.table != nullptr ? cache.table_pages : 1;
  return checked_product("tokens of a sequence", {pages, cache.k.shape[2]});
}
// Whether there is any page with a token.
bool has_tokens(const CacheView& cache) {
  return cache.k.shape[0] > 0 && cache.k.shape[2] > 0;
}

MapSource source_of(const CachePages& pages, CacheFormat format, DType dtype) {
  if (format == CacheFormat::plain) return View{dtype, pages.data, pages.shape, pages.strides};
  return {pages.data, pages.shape, pages.strides};
}

void check_kernels(const char* op) {
  const std::string missing = why_not();
  if (!missing.empty()) fail(op, missing);
  check_hopper(op, device_state(), "caches");
}

void check_pages(const char* op, const char* what, const CachePages& pages, CacheFormat format) {
  check_layout(op, what, pages.data, pages.shape, pages.strides, bytes_of(format));
  check_strides(what, source_of(pages, format, DType::bf16));  // of two bytes, whichever
  const std::string scales = std::string(what) + " scales";
  if (format == CacheFormat::int8 && !pages.scales)
    fail(op, scales + " are not given, expected f32 [pages, KV heads, tokens of a page, 1] for an int8 cache");
  if (!pages.scales) return;
  if (format == CacheFormat::plain) fail(op, scales + " are given, expected none for a cache of the queries' dtype");
  check_readable(op, scales, *pages.scales);
  check_dtype(op, scales, pages.scales->dtype, DType::f32);
  for (std::size_t d = 0; d < 4; ++d) {
    const std::int64_t full = d < 3 ? pages.shape[d] : 1;
    if (pages.scales->shape[d] != full && pages.scales->shape[d] != 1)
      fail(op, scales + " shape is " + to_string(pages.scales->shape) + ", expected " +
                   to_string({pages.shape[0], pages.shape[1], pages.shape[2], 1}) + " with any dimension 1");
  }
  check_on_device(op, scales.c_str(), pages.scales->data);
}

// What can be told on the host. Lengths and the table are the device's: the kernels cut what lies outside.
void check_cache(const char* op, const CacheView& cache, std::int64_t batch) {
  check_pages(op, "k", cache.k, cache.format);
  check_pages(op, "v", cache.v, cache.format);
  const Shape &k = cache.k.shape, &v = cache.v.shape;
  check_shape(op, "v", v, {k[0], k[1], k[2], v[3]});
  if (cache.table != nullptr) {
    check_at_least(op, "table_pages", cache.table_pages, 1);
    if (batch > 1) check_at_least(op, "table_stride", cache.table_stride, cache.table_pages);
    if (cache.table_pages > 1 && k[2] % kDecodeKeys != 0)
      fail(op, "a page holds " + std::to_string(k[2]) + " tokens, expected a multiple of 16");
  } else if (k[0] < batch) {
    fail(op, "the cache holds " + std::to_string(k[0]) + " sequences and there is no table, expected at least " +
                 std::to_string(batch) + " (the batch)");
  }
  if (k[0] > kFarKey || capacity(cache) > kMostTokens)
    fail(op, "a sequence may have " + std::to_string(capacity(cache)) + " tokens of " + std::to_string(k[0]) +
                 " pages, expected at most 2^28 tokens and 2^29 pages");
  check_on_device(op, "k", cache.k.data);
  check_on_device(op, "v", cache.v.data);
  check_on_device(op, "lengths", cache.lengths);
  check_on_device(op, "the table", cache.table);
}

// Stands for one side in the checks that every attention call goes through: its shape as the kernels see it.
View stand_in(const View& q, const CachePages& pages, std::int64_t tokens) {
  return {q.dtype, pages.data, {q.batch(), pages.shape[1], tokens, pages.shape[3]}, {0, 0, 0, 0}};
}

struct Window {
  int left = kFarKey, right = kFarKey;
};
Window window_of(const MaskPlan& mask) {
  const char* const text =
      "the mask over a cache is none that a GPU has: expected causal() and window(), counted from the last key";
  Window window;
  if (mask.segment_queries || !mask.blocks.empty() || !mask.denses.empty()) fail(kOp, text);
  for (const IntervalRule& rule : mask.intervals) {
    if (rule.from != IntervalRule::From::position || rule.position.offsets || rule.prefix ||
        rule.position.align != Align::last_key)
      fail(kOp, text);
    const auto side = [](std::int64_t x) { return x == kUnlimited || x > kFarKey ? kFarKey : static_cast<int>(x); };
    window = {std::min(window.left, side(rule.left)), std::min(window.right, side(rule.right))};
  }
  return window;
}

void refuse(bool given, const char* what) {
  if (given) fail(kOp, std::string(what) + " over a cache on a GPU is not supported yet");
}

void check_options(const AttentionCall& call, const AttentionExtras& extras) {
  const AttentionOptions& options = call.options;
  refuse(options.bias.has_value() || options.distance_bias.has_value(), "a bias");
  refuse(options.dropout.probability > 0, "dropout");
  refuse(extras.weights.has_value() || extras.row_sums.has_value(), "weights and row sums");
  refuse(extras.statistics.has_value(), "statistics");
  if (options.alibi_slopes) {
    const PositionPlan position = lower_diagonal(options.alibi_diagonal, "ALiBi", call.q.batch());
    refuse(position.offsets || position.align != Align::last_key, "ALiBi that counts from elsewhere than the last key");
    check_on_device(kOp, "ALiBi slopes", options.alibi_slopes->data);
  }
  if (options.sinks) check_on_device(kOp, "sinks", options.sinks->data);
}

DeviceOperand scales_of(const CachePages& pages) {
  if (!pages.scales) return {};
  const MutableView& scales = *pages.scales;
  DeviceOperand result = device_operand(operand_of(scales));
  if (scales.shape[0] == 1) result.batch_stride = 0;
  if (scales.shape[1] == 1) result.head_stride = 0;
  if (scales.shape[2] == 1) result.row_stride = 0;
  return result;
}

DecodeShape shape_for(std::int64_t widest, CacheFormat format) {
  const bool narrow = format != CacheFormat::plain;
  if (widest <= 64) return narrow ? kNarrow64 : kDecode64;
  if (widest <= 128) return narrow ? kNarrow128 : kDecode128;
  return narrow ? kNarrow256 : kDecode256;
}

// What the parts of the keys take, and the flags beside them.
struct Needed {
  std::int64_t rows = 0, floats = 0, flags = 0;

  Needed(const CacheView& cache, const KeyParts& parts, const CacheLengths& lengths)
      : rows(checked_product("parts", {parts.B, parts.H, parts.M, parts.count})),
        floats(checked_product("parts", {rows, parts.row_floats})),
        flags(checked_product("parts", {parts.B, cache.k.shape[1], lengths.groups})) {}
  std::int64_t bytes() const {
    return Workspace::round(2 * rows * 4) + Workspace::round(floats * 4) + Workspace::round(flags * 4);
  }
};

// Whether every head is folded by the block that has its one part.
bool needs_joining(const CacheLengths& lengths, const DecodeShape& shape) {
  return most_cache_parts(lengths.most) > 1 || !folds(shape);
}

CacheLengths lengths_of(const CacheView& cache, std::int64_t rows) {
  CacheLengths lengths;
  lengths.data = cache.lengths;
  lengths.most = static_cast<int>(capacity(cache));
  lengths.groups = static_cast<int>(divide_up(rows, kDecodeRows));
  return lengths;
}

// A row for each warp of `kernels`, which come in three widths.
void launch_rows(const char* kernels, const KeyParts& parts, const void* args, CUstream stream) {
  constexpr int kThreads = 128;
  const std::int64_t rows = checked_product("rows", {parts.B, parts.H, parts.M});
  if (rows > kFarKey) fail(kOp, "more than 2^29 rows of few queries each");
  launch_behind(KernelSet::hopper, kernel("attention_combine", kernels + std::to_string(parts.row_floats), 0),
                static_cast<int>(divide_up(rows, kThreads / 32)), kThreads, 0, stream, args);
}

// Where the kernels look for the pages.
template <class Args>
void give_pages(const CacheView& cache, Args& a) {
  a.table = cache.table, a.table_stride = cache.table_stride;
  a.page_tokens = static_cast<int>(cache.k.shape[2]), a.pages = static_cast<int>(cache.k.shape[0]);
  a.k_scales = scales_of(cache.k), a.v_scales = scales_of(cache.v);
}

void run(const AttentionCall& call, const CacheView& cache, const KeyParts& parts, CUstream stream,
         const WorkingMemory& memory) {
  const AttentionProblem& p = call.unread_problem();
  DeviceState& device = device_state();
  const DecodeShape shape = shape_for(std::max(p.D, p.E), cache.format);
  CacheArgs a;
  check_strides("q", call.q);
  a.q = device_operand(operand_of(call.q));
  give_pages(cache, a);
  a.half_boxes = cache.table != nullptr && a.page_tokens % shape.keys != 0 ? 1 : 0;
  const int box = a.half_boxes != 0 ? kDecodeKeys : shape.keys;
  a.k = tensor_map("k", source_of(cache.k, cache.format, call.q.dtype), {0, box});
  a.v = tensor_map("v", source_of(cache.v, cache.format, call.q.dtype), {0, box});
  a.page_tiles = static_cast<int>(divide_up(a.page_tokens, kDecodeKeys));
  const auto tiles_of_page = static_cast<unsigned>(a.page_tiles);
  if (std::has_single_bit(tiles_of_page)) a.page_bits = std::countr_zero(tiles_of_page);
  a.lengths = lengths_of(cache, p.M * p.G);
  a.parts = parts;
  a.parts.count = most_cache_parts(a.lengths.most);
  a.slopes = device_operand(call.options.alibi_slopes);
  if (call.options.alibi_slopes && call.options.alibi_slopes->batch() == 1) a.slopes.batch_stride = 0;
  a.softcap = p.softcap, a.scale = p.scale;
  a.terms = a.softcap > 0 || a.slopes.data != nullptr || !scale_fits_exponents(p.scale) ? 1 : 0;
  a.scale2 = a.terms != 0 ? kLog2E : p.scale * kLog2E;
  a.B = static_cast<int>(p.B), a.Hk = static_cast<int>(p.Hk), a.G = static_cast<int>(p.G);
  a.M = static_cast<int>(p.M), a.D = static_cast<int>(p.D);
  const Window window = window_of(call.mask);
  a.left = window.left, a.right = window.right;
  a.fine = cache.format != CacheFormat::plain && call.q.dtype == DType::f16 ? 1 : 0;
  const std::int64_t heads = checked_product("heads", {p.B, p.Hk, a.lengths.groups});
  const std::int64_t items = checked_product("items", {heads, a.parts.count});
  if (items > kFarKey) fail(kOp, "more than 2^29 parts of keys");
  // Costs of all items fit 32 bits.
  const std::int64_t tiles = divide_up(a.lengths.most, kDecodeKeys);
  while (checked_product("tiles", {heads, (tiles >> a.cost_shift) + 8 * kMostParts}) >> 31 != 0 && a.cost_shift < 3)
    ++a.cost_shift;
  if (checked_product("tiles", {heads, (tiles >> a.cost_shift) + 8 * kMostParts}) >> 31 != 0)
    fail(kOp, "the tables have room for more than 2^38 keys of all heads, expected narrower tables");
  const std::int64_t bytes = checked_product("keys", {p.B, p.Hk, a.lengths.most, (p.D + p.E) * bytes_of(cache.format)});
  a.once = bytes > device.l2_bytes ? 1 : 0;

  const bool joins = needs_joining(a.lengths, shape);
  const Needed needed(cache, a.parts, a.lengths);
  Workspace work(device, joins ? needed.bytes() : 0, stream, memory.data);
  if (joins) {
    a.parts.lse = work.part<float>(2 * needed.rows), a.parts.has_rest = a.terms;
    a.parts.out = work.part<float>(needed.floats);
    a.lengths.folded = work.part<int>(needed.flags);
  }
  const std::string kind = cache.format == CacheFormat::plain ? name(call.q.dtype) : format_name(cache.format);
  const int shared = shared_bytes(shape);
  launch(kernel("attention_cached", "cached_" + std::to_string(shape.D) + "_" + kind, shared),
         static_cast<int>(std::min<std::int64_t>(device.multiprocessors, items)), 32 * shape.warps, shared, stream, &a);
  const CacheParts joined{a.parts, a.lengths};
  if (joins) launch_rows("cache_combine_", a.parts, &joined, stream);
}

}  // namespace

std::int64_t working_bytes(View q, const CacheView& cache) {
  check_at_least(kOp, "KV heads", cache.k.shape[1], 1);
  if (q.batch() == 0 || q.length() == 0 || !has_tokens(cache)) return 0;
  AttentionOptions options;
  const AttentionCall call(q, stand_in(q, cache.k, capacity(cache)), stand_in(q, cache.v, capacity(cache)), options);
  KeyParts parts = key_parts(call, {}, {});
  const CacheLengths lengths = lengths_of(cache, call.rows());
  parts.count = most_cache_parts(lengths.most);
  if (!needs_joining(lengths, shape_for(std::max(q.dim(), cache.v.shape[3]), cache.format))) return 0;
  return Needed(cache, parts, lengths).bytes();
}

void attention(View q, const CacheView& cache, MutableView out, const AttentionOptions& options,
               const AttentionExtras& extras, Stream stream, WorkingMemory memory) {
  check_kernels(kOp);
  check_cache(kOp, cache, q.batch());
  const std::int64_t tokens = capacity(cache);
  const View k = stand_in(q, cache.k, tokens), v = stand_in(q, cache.v, tokens);
  const AttentionCall call(q, k, v, options);
  check_supported(kOp, call);
  check_options(call, extras);
  window_of(call.mask);
  check_outputs(call, out, extras);
  check_dtype(kOp, "out", out.dtype, q.dtype);
  const std::initializer_list<Written> written = {{"out", out}, {"lse", extras.lse}};
  for (const CachePages* side : {&cache.k, &cache.v})
    check_apart_from(kOp, "the cache", side->data, side->shape, side->strides, bytes_of(cache.format), written);
  check_on_device(kOp, "q", q.data);
  check_on_device(kOp, "out", out.data);
  if (memory.data != nullptr) {
    check_on_device(kOp, "the working memory", memory.data);
    if (memory.bytes < working_bytes(q, cache) || reinterpret_cast<std::uintptr_t>(memory.data) % 256 != 0)
      fail(kOp, "the working memory has " + std::to_string(memory.bytes) + " bytes, expected at least " +
                    std::to_string(working_bytes(q, cache)) + " (working_bytes()), from a multiple of 256 on");
  }
  if (call.empty()) return;
  auto* const on = static_cast<CUstream>(stream);
  const KeyParts parts = key_parts(call, out, extras);
  if (has_tokens(cache)) return run(call, cache, parts, on, memory);
  launch_rows("attention_combine_", parts, &parts, on);  // of no part: zeros
}

void append(View k, View v, const CacheView& cache, bool own_scales, Stream stream) {
  constexpr const char* kAppend = "cuda::append";
  check_kernels(kAppend);
  check_cache(kAppend, cache, k.batch());
  check_readable(kAppend, "k", k);
  check_readable(kAppend, "v", v);
  if (k.dtype != DType::bf16 && k.dtype != DType::f16)
    fail(kAppend, std::string("k is ") + name(k.dtype) + ", expected bf16 or f16 on a GPU");
  check_dtype(kAppend, "v", v.dtype, k.dtype);
  check_shape(kAppend, "k", k.shape, {k.batch(), cache.k.shape[1], k.length(), cache.k.shape[3]});
  check_shape(kAppend, "v", v.shape, {k.batch(), cache.k.shape[1], k.length(), cache.v.shape[3]});
  if (cache.lengths == nullptr) fail(kAppend, "lengths are not given, expected those before the new tokens");
  check_on_device(kAppend, "k", k.data);
  check_on_device(kAppend, "v", v.data);
  AppendArgs a;
  const auto own = [&](const char* what, const CachePages& side) {
    const bool by_row = side.scales && side.scales->shape == Shape{side.shape[0], side.shape[1], side.shape[2], 1};
    if (!own_scales || !by_row) return 0;
    check_writable(kAppend, std::string(what) + " scales", *side.scales);
    return 1;
  };
  a.own_k_scales = own("k", cache.k), a.own_v_scales = own("v", cache.v);
  give_pages(cache, a);
  const auto side = [&](const CachePages& pages) {
    return device_operand(operand_of(View{k.dtype, pages.data, pages.shape, pages.strides}));
  };
  a.k = device_operand(operand_of(k)), a.v = device_operand(operand_of(v));
  a.k_pages = side(cache.k), a.v_pages = side(cache.v);
  a.lengths = cache.lengths, a.most = static_cast<int>(capacity(cache));
  a.format = static_cast<int>(cache.format);
  a.B = static_cast<int>(k.batch()), a.Hk = static_cast<int>(k.heads()), a.tokens = static_cast<int>(k.length());
  a.D = static_cast<int>(k.dim()), a.E = static_cast<int>(v.dim());
  const std::int64_t rows = checked_product("rows", {k.batch(), k.heads(), k.length(), 2});
  if (rows == 0 || !has_tokens(cache)) return;
  if (rows > kFarKey) fail(kAppend, "more than 2^29 rows of keys and values at once");
  constexpr int kThreads = 128;
  launch(kernel("cache_append", "cache_append", 0), static_cast<int>(divide_up(rows, kThreads / 32)), kThreads, 0,
         static_cast<CUstream>(stream), &a);
}

}  // namespace attend::cuda
