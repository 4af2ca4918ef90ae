// Attention forward on the GPU: check, describe, choose a kernel, put it on the stream.
#include <algorithm>
#include <memory>
#include <string>

#include "attend/cuda.hpp"
#include "base/check.hpp"
#include "base/checked.hpp"
#include "cuda/cuda_call.hpp"
#include "cuda/decode_args.hpp"
#include "cuda/forward_shapes.hpp"
#include "cuda/plain_shapes.hpp"

namespace attend::cuda {
namespace {

constexpr const char* kOp = "cuda::attention";
constexpr int kFewRows = 64;                        // of a KV head: the keys are then split
constexpr std::int64_t kSectionBytes = 32LL << 20;  // of keys and values that stay in the L2
constexpr float kLog2E = 1.4426950408889634F;

// Keys of a part: by their number alone, so that bits do not depend on the batch. Up to 32 parts, of 512 or more.
int split_keys(std::int64_t N) {
  std::int64_t keys = 512;
  while (keys * 32 < N) keys *= 2;
  return static_cast<int>(keys);
}

struct Choice {
  std::string kind;  // how the names of its kernels begin
  ForwardShape shape;
};

Choice choose(const DeviceCall& call, bool few) {
  const std::int64_t widest = std::max(call.call.q.dim(), call.call.v.dim());
  const auto by_dim = [&](const ForwardShape& d64, const ForwardShape& d128, const ForwardShape& d256) {
    return widest <= 64 ? d64 : widest <= 128 ? d128 : d256;
  };
  if (call.statistics.rows.data != nullptr) {
    if (few) return {"watched_few", by_dim(kFew64, kFew128, kFew256)};
    if (call.has_bits || call.has_terms)
      return {call.has_bits ? "watched_bits" : "watched_terms",
              by_dim(kWatchedTerms64, kWatchedTerms128, kWatchedTerms256)};
    return {"watched_plain", by_dim(kWatched64, kWatched128, kWatched256)};
  }
  if (call.has_bits) return {call.has_terms ? "forward_bits" : "forward_holes", by_dim(kTerms64, kTerms128, kTerms256)};
  if (few) return {call.has_terms ? "forward_fewterms" : "forward_few", by_dim(kFew64, kFew128, kFew256)};
  // Soft-cap and ALiBi alone have a kernel without the code of the other terms.
  const bool light = call.terms.bias.data == nullptr && call.terms.dropout_threshold == 0;
  if (call.has_terms) return {light ? "forward_light" : "forward_terms", by_dim(kTerms64, kTerms128, kTerms256)};
  return {"forward_plain", by_dim(kPlain64, kPlain128, kPlain256)};
}

struct LseStrides {
  float* data = nullptr;
  std::int64_t batch = 0, head = 0, row = 0;
};
LseStrides lse_of(const AttentionExtras& extras) {
  if (!extras.lse) return {};
  const Operand o = operand_of(*extras.lse);
  return {static_cast<float*>(o.data), o.batch_stride, o.head_stride, o.row_stride};
}

// Where parts of the keys are joined: none of them as yet.
KeyParts parts_of(const DeviceCall& on, const MutableView& out, const AttentionExtras& extras) {
  KeyParts parts = key_parts(on.call, out, extras);
  parts.joined_statistics = on.statistics.rows;
  return parts;
}

void combine(const DeviceCall& on, const KeyParts& parts) {
  constexpr int kThreads = 128;
  const std::int64_t rows = checked_product("rows", {parts.B, parts.H, parts.M});
  if (rows > kFarKey) fail(kOp, "more than 2^29 rows of few queries each");
  const int blocks = static_cast<int>(divide_up(rows, kThreads / 32));
  const CUfunction join = kernel("attention_combine", "attention_combine_" + std::to_string(parts.row_floats), 0);
  launch_behind(on.device.kernels, join, blocks, kThreads, 0, on.stream, &parts);
  if (parts.joined_statistics.data != nullptr)
    launch(kernel("attention_combine", "statistics_combine", 0), blocks, kThreads, 0, on.stream, &parts);
}

// Memory of the parts of the keys.
std::unique_ptr<Workspace> part_memory(const DeviceCall& on, KeyParts& parts) {
  const std::int64_t rows = checked_product("parts", {parts.B, parts.H, parts.M, parts.count});
  const std::int64_t floats = checked_product("parts", {rows, parts.row_floats});
  const std::int64_t watched =
      parts.joined_statistics.data != nullptr ? checked_product("parts", {rows, kStatisticColumns}) : 0;
  parts.has_rest = on.has_terms || watched > 0 ? 1 : 0;  // kernels of parts with statistics have terms always
  const std::int64_t numbers = (1 + parts.has_rest) * rows;
  auto memory = std::make_unique<Workspace>(
      on.device, Workspace::round(numbers * 4) + Workspace::round(floats * 4) + Workspace::round(watched * 4),
      on.stream, on.allocator);
  parts.lse = memory->part<float>(numbers);
  parts.out = memory->part<float>(floats);
  if (watched > 0) parts.statistics = memory->part<float>(watched);
  return memory;
}

// Up to 8 rows of a KV head.
void decode(const DeviceCall& on, const MutableView& out, const AttentionExtras& extras) {
  const AttentionProblem& p = on.call.unread_problem();
  const std::int64_t widest = std::max(p.D, p.E);
  const DecodeShape shape = widest <= 64 ? kDecode64 : widest <= 128 ? kDecode128 : kDecode256;
  DecodeArgs a;
  check_strides("q", on.call.q);
  a.q = device_operand(operand_of(on.call.q));
  a.k = tensor_map("k", on.call.k, {0, kDecodeKeys});
  a.v = tensor_map("v", on.call.v, {0, kDecodeKeys});
  a.mask = on.mask;
  a.scale2 = p.scale * kLog2E;
  a.B = static_cast<int>(p.B), a.Hk = static_cast<int>(p.Hk), a.G = static_cast<int>(p.G);
  a.M = static_cast<int>(p.M), a.N = static_cast<int>(p.N), a.D = static_cast<int>(p.D);
  a.part_keys = decode_part_keys(a.N);
  a.parts = parts_of(on, out, extras);
  a.parts.count = static_cast<int>(divide_up(a.N, a.part_keys));
  const std::int64_t items = checked_product("items", {p.B, p.Hk, a.parts.count});
  if (items > kFarKey) fail(kOp, "more than 2^29 parts of keys");
  const int blocks = static_cast<int>(std::min<std::int64_t>(on.device.multiprocessors, items));
  a.each = static_cast<int>(items / blocks), a.more = static_cast<int>(items % blocks);
  if (folds(shape)) a.parts.each = a.each, a.parts.more = a.more;
  a.once = checked_product("keys", {p.B, p.Hk, p.N, (p.D + p.E) * 2}) > on.device.l2_bytes ? 1 : 0;
  const std::unique_ptr<Workspace> memory = part_memory(on, a.parts);
  const std::string kernel_name = "decode_" + std::to_string(shape.D) + "_" + name(on.call.q.dtype);
  const int shared = shared_bytes(shape);
  launch(kernel("attention_decode", kernel_name, shared), blocks, 32 * shape.warps, shared, on.stream, &a);
  combine(on, a.parts);
}

// Query heads of one KV head that lie in consecutive rows: all of them where a head's own queries fill no tile.
int packed_heads(const DeviceCall& on, bool few, int tile_rows) {
  const AttentionProblem& p = on.call.unread_problem();
  if (p.G == 1 || p.G > kFewRows || on.mask.bits.words != nullptr) return 1;
  return few || p.M < tile_rows ? static_cast<int>(p.G) : 1;
}

// How many keys a head's neighbouring queries see, at most: those that should stay in the L2.
std::int64_t reach_of(const MaskPlan& mask) {
  std::int64_t reach = mask.N;
  for (const IntervalRule& r : mask.intervals)
    if (r.from == IntervalRule::From::position && r.left != kUnlimited && r.right != kUnlimited && !r.prefix)
      reach = std::min(reach, std::min(r.left, mask.N) + std::min(r.right, mask.N) + 1);
  if (!mask.segment_keys) return reach;
  std::int64_t longest = 0, before = 0;
  for (const std::int64_t end : *mask.segment_keys) longest = std::max(longest, end - before), before = end;
  return std::min(reach, longest);
}

// What all kernels are given; tiles of `tile_tokens` queries, `packed` heads each. `split_keys` 0: they are not split.
ForwardArgs describe(const DeviceCall& on, const MutableView& out, const AttentionExtras& extras, int packed,
                     int tile_tokens, int split_keys, std::unique_ptr<Workspace>& memory) {
  const AttentionProblem& p = on.call.unread_problem();
  ForwardArgs a;
  a.packed = packed;
  a.mask = on.mask, a.terms = on.terms, a.statistics = on.statistics;
  a.scale = p.scale, a.scale2 = p.scale * kLog2E;
  if (p.softcap > 0) a.cap = SmallTanh(p.scale, p.softcap);
  a.sinks = device_operand(on.call.options.sinks);
  const LseStrides lse = lse_of(extras);
  a.lse = lse.data, a.lse_batch_stride = lse.batch, a.lse_head_stride = lse.head, a.lse_row_stride = lse.row;
  a.B = static_cast<int>(p.B), a.H = static_cast<int>(p.H) / packed, a.group = static_cast<int>(p.G) / packed;
  a.M = static_cast<int>(p.M), a.N = static_cast<int>(p.N), a.D = static_cast<int>(p.D), a.E = static_cast<int>(p.E);
  a.row_tiles = static_cast<int>(divide_up(p.M, tile_tokens));
  const bool longest_first = std::any_of(on.call.mask.intervals.begin(), on.call.mask.intervals.end(),
                                         [](const IntervalRule& r) { return r.from == IntervalRule::From::position; });
  const std::int64_t head_bytes = std::max<std::int64_t>(1, reach_of(on.call.mask) * (p.D + p.E) * 2);
  const std::int64_t section = std::max<std::int64_t>(1, kSectionBytes / head_bytes) * a.group;
  a.section = longest_first ? static_cast<int>(std::min<std::int64_t>(section, std::int64_t{a.B} * a.H)) : 1;
  if (split_keys > 0) {
    a.split_keys = split_keys;
    a.splits = static_cast<int>(divide_up(p.N, a.split_keys));
    a.parts = parts_of(on, out, extras);
    a.parts.count = a.splits;
    memory = part_memory(on, a.parts);
  }
  return a;
}

std::int64_t count_items(const ForwardArgs& a) {
  const std::int64_t items = checked_product("items", {a.B, a.H, a.row_tiles, a.splits});
  if (items > kFarKey) fail(kOp, "more than 2^29 tiles");
  return items;
}

void run(DeviceCall& on, const MutableView& out, const AttentionExtras& extras) {
  const AttentionProblem& p = on.call.unread_problem();
  const bool few = p.M * p.G <= kFewRows && p.N > split_keys(p.N) && !on.has_bits;
  const bool watched = on.statistics.rows.data != nullptr;
  const auto [kind, shape] = choose(on, few);
  if (on.has_bits) on.make_bits(64 * shape.groups, shape.keys);
  const int packed = packed_heads(on, few, 64 * shape.groups), tokens = 64 / packed;
  std::unique_ptr<Workspace> memory;
  ForwardArgs a = describe(on, out, extras, packed, tokens * shape.groups, few ? split_keys(p.N) : 0, memory);
  a.q = tensor_map("q", on.call.q, {packed, tokens});
  a.k = tensor_map("k", on.call.k, {0, shape.keys});
  a.v = tensor_map("v", on.call.v, {0, shape.keys});
  a.out = tensor_map("out", View(out), {packed, tokens});
  // Terms are added to scaled scores; with statistics, kernels for holes or few rows have them always.
  if (on.has_terms || (watched && (few || on.has_bits))) a.scale2 = kLog2E;
  const CounterLease lease = take_counter(on.device, on.stream);
  a.counter = lease.counter;
  const std::string dim = std::to_string(shape.D);
  const std::string image = (watched ? "attention_watched_" : "attention_forward_") + dim;
  const int shared = shared_bytes(shape, watched);
  launch(kernel(image.c_str(), kind + "_" + dim + "_" + name(on.call.q.dtype), shared),
         static_cast<int>(std::min<std::int64_t>(on.device.multiprocessors, count_items(a))), (shape.groups + 1) * 128,
         shared, on.stream, &a);
  if (few) combine(on, a.parts);
}

// The plain kernels: one block for each item.
void run_plain(DeviceCall& on, const MutableView& out, const AttentionExtras& extras) {
  const AttentionProblem& p = on.call.unread_problem();
  const std::int64_t widest = std::max(p.D, p.E);
  const PlainShape shape = widest <= 64 ? kPlainForward64 : widest <= 128 ? kPlainForward128 : kPlainForward256;
  const bool few = p.M * p.G <= kFewRows && p.N > kLeastKeys && !on.has_bits, terms = on.has_terms || on.has_bits;
  const int rows = forward_rows(shape);
  if (on.has_bits) on.make_bits(rows, shape.columns);
  const int packed = packed_heads(on, few, rows);
  std::unique_ptr<Workspace> memory;
  ForwardArgs a =
      describe(on, out, extras, packed, rows / packed, few ? decode_part_keys(static_cast<int>(p.N)) : 0, memory);
  a.q_rows = plain_rows("q", on.call.q), a.k_rows = plain_rows("k", on.call.k);
  a.v_rows = plain_rows("v", on.call.v), a.out_rows = plain_rows("out", out);
  if (terms) a.scale2 = kLog2E;  // terms are added to scaled scores
  const std::string dim = std::to_string(shape.D), kind = terms ? "plain_forward_terms_" : "plain_forward_";
  const int shared = forward_bytes(shape);
  launch(kernel(("attention_plain_" + dim).c_str(), kind + dim + "_" + name(on.call.q.dtype), shared),
         static_cast<int>(count_items(a)), kPlainThreads, shared, on.stream, &a);
  if (few) combine(on, a.parts);
}

}  // namespace

void attention(View q, View k, View v, MutableView out, const AttentionOptions& options, const AttentionExtras& extras,
               Stream stream, Allocator* allocator) {
  const AttentionCall call(q, k, v, options);
  check_outputs(call, out, extras);
  check_dtype(kOp, "out", out.dtype, q.dtype);
  if (extras.weights) fail(kOp, "weights on a GPU are not supported yet");
  if (extras.row_sums) fail(kOp, "row sums on a GPU are not supported yet");
  DeviceCall on(kOp, call, static_cast<CUstream>(stream), allocator, extras.statistics);
  if (extras.statistics && on.terms.dropout_threshold != 0)
    fail(kOp, "statistics together with dropout on a GPU are not supported yet");
  const bool plain = on.device.kernels == KernelSet::plain;
  if (extras.statistics) check_hopper(kOp, on.device, "statistics of rows");
  if (call.empty()) return;
  if (k.length() == 0) return combine(on, parts_of(on, out, extras));
  if (plain) return run_plain(on, out, extras);
  const AttentionProblem& p = call.unread_problem();
  if (p.M * p.G <= kDecodeRows && p.N > kLeastKeys && !on.has_bits && !on.has_terms && !extras.statistics)
    decode(on, out, extras);
  else
    run(on, out, extras);
}

}  // namespace attend::cuda
