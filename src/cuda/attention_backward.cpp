// Attention backward on the GPU: check, describe, put the kernels on the stream.
#include <algorithm>
#include <memory>
#include <string>

#include "attend/cuda.hpp"
#include "base/check.hpp"
#include "base/checked.hpp"
#include "cuda/backward_args.hpp"
#include "cuda/backward_shapes.hpp"
#include "cuda/cuda_call.hpp"
#include "cuda/plain_shapes.hpp"

namespace attend::cuda {
namespace {

constexpr const char* kOp = "cuda::attention_backward";
// Blocks of keys of one head side by side: they share its queries in the L2.
constexpr int kBlocksInNoOrder = 33;
constexpr std::int64_t kSectionBytes = 32LL << 20;  // of keys and values that stay in the L2
constexpr float kLog2E = 1.4426950408889634F;

BackwardShape by_dim(std::int64_t widest, const BackwardShape& d64, const BackwardShape& d128,
                     const BackwardShape& d256) {
  return widest <= 64 ? d64 : widest <= 128 ? d128 : d256;
}

// The gradient of a bias is written where each score has an element of its own.
void check_gradients(const AttentionCall& call, const AttentionGradients& gradients) {
  if (gradients.ddistance_bias) fail(kOp, "the gradient of distance_bias on a GPU is not supported yet");
  if (gradients.dbias) {
    if (gradients.dbias->shape != Shape{call.q.batch(), call.q.heads(), call.q.length(), call.k.length()})
      fail(kOp, "the gradient of a bias that is repeated, of shape " + to_string(gradients.dbias->shape) +
                    ", is not supported on a GPU yet: expected " +
                    to_string({call.q.batch(), call.q.heads(), call.q.length(), call.k.length()}));
    check_dtype(kOp, "dbias", gradients.dbias->dtype, DType::f32);
  }
}

// Whether 16 bytes can be read or written at every eighth element of a row.
bool in_eights(const DeviceOperand& x) {
  return x.dtype != static_cast<int>(DType::f32) && x.dim_stride == 1 && x.batch_stride % 8 == 0 &&
         x.head_stride % 8 == 0 && x.row_stride % 8 == 0 && reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0;
}

DeviceOperand written(const MutableView& view) {
  DeviceOperand to = device_operand(operand_of(view));
  const bool even = to.batch_stride % 2 == 0 && to.head_stride % 2 == 0 && to.row_stride % 2 == 0;
  to.pairs = view.dtype != DType::f32 && view.dim() % 2 == 0 && to.dim_stride == 1 && even &&
                     reinterpret_cast<std::uintptr_t>(view.data) % 4 == 0
                 ? 1
                 : 0;
  return to;
}

constexpr int kRowThreads = 256, kThreads = 384;

// Which of the terms a kernel must know.
BackwardTerms terms_of(const DeviceCall& on, std::int64_t widest) {
  const ScoreTerms& terms = on.terms;
  if (!on.has_terms && !(on.has_bits && widest > 128)) return BackwardTerms::none;
  const bool cap = terms.softcap > 0, alibi = terms.alibi.data != nullptr;
  if (widest > 128 || on.has_bits || terms.bias.data != nullptr || terms.dropout_threshold != 0 || cap == alibi)
    return BackwardTerms::all;
  if (cap) return BackwardTerms::cap;
  return scale_fits_exponents(on.call.unread_problem().scale) ? BackwardTerms::alibi : BackwardTerms::all;
}

std::string kernel_kind(BackwardTerms terms, bool holes) {
  switch (terms) {
    case BackwardTerms::none:
      return holes ? "holes_" : "plain_";
    case BackwardTerms::alibi:
      return "alibi_";
    case BackwardTerms::cap:
      return "cap_";
    case BackwardTerms::all:
      return "terms_";
  }
  return {};
}

CUfunction rows_kernel(const std::string& name) {
  return kernel("backward_rows", name, 0);
}

// What all kernels are given but where q, k, v and dout lie: steps of `queries`, items of `keys`.
BackwardArgs describe(const DeviceCall& on, bool terms, const View& dout, const View& out, const View& lse,
                      const AttentionGradients& gradients, int queries, int keys) {
  const AttentionProblem& p = on.call.unread_problem();
  BackwardArgs a;
  a.mask = on.mask, a.terms = on.terms;
  a.out = device_operand(operand_of(out)), a.dout_rows = device_operand(operand_of(dout));
  a.lse = device_operand(operand_of(lse));
  a.q_rows = device_operand(operand_of(on.call.q)), a.k_rows = device_operand(operand_of(on.call.k));
  a.by_eight = p.E % 8 == 0 && a.out.dtype == a.dout_rows.dtype && in_eights(a.out) && in_eights(a.dout_rows) ? 1 : 0;
  a.dq_by_eight = p.D % 8 == 0 && in_eights(device_operand(operand_of(gradients.dq))) ? 1 : 0;
  a.dq = written(gradients.dq), a.dk = written(gradients.dk), a.dv = written(gradients.dv);
  if (gradients.dbias) a.dbias = device_operand(operand_of(*gradients.dbias));
  if (gradients.dsinks) a.dsinks = device_operand(operand_of(*gradients.dsinks));
  a.sinks = device_operand(on.call.options.sinks);
  a.scale = p.scale, a.scale2 = terms ? kLog2E : p.scale * kLog2E;
  a.B = static_cast<int>(p.B), a.H = static_cast<int>(p.H), a.Hk = static_cast<int>(p.Hk), a.G = static_cast<int>(p.G);
  a.M = static_cast<int>(p.M), a.N = static_cast<int>(p.N), a.D = static_cast<int>(p.D), a.E = static_cast<int>(p.E);
  a.step_queries = queries, a.block_keys = keys;
  a.steps = static_cast<int>(divide_up(p.M, queries)), a.padded = a.steps * queries;
  a.key_blocks = static_cast<int>(divide_up(p.N, keys));
  return a;
}

// Memory of each query's numbers, and `more` bytes behind them.
std::unique_ptr<Workspace> row_memory(const DeviceCall& on, bool terms, BackwardArgs& a, std::int64_t more) {
  const std::int64_t rows = checked_product("rows", {a.B, a.H, a.padded}), of_batches = std::int64_t{a.B} * a.padded;
  const std::int64_t steps = std::int64_t{a.B} * a.steps;
  const auto bytes = [](std::int64_t count, std::int64_t each) { return Workspace::round(count * each); };
  auto memory = std::make_unique<Workspace>(
      on.device,
      (terms ? 3 : 2) * bytes(rows, 4) + bytes(of_batches, 8) + bytes(of_batches, 4) + bytes(steps, 8) + more,
      on.stream, on.allocator);
  a.rows.lse2 = memory->part<float>(rows), a.rows.delta = memory->part<float>(rows);
  if (terms) a.tops = memory->part<float>(rows);
  a.rows.seen = memory->part<int2>(of_batches);
  float* const positions = memory->part<float>(of_batches);
  a.rows.position = on.terms.alibi.data != nullptr ? positions : nullptr;
  a.rows.blocks = memory->part<int2>(steps);
  return memory;
}

// Each query's numbers and zero to the turns, of rows with a large LSE those that are recomputed, and zero to the
// gradient of a bias.
void launch_begin(const DeviceCall& on, const BackwardArgs& a) {
  const std::int64_t rows = checked_product("rows", {a.B, a.H, a.padded});
  const int lanes = begin_lanes(a.E);
  launch(rows_kernel("backward_begin_" + std::to_string(lanes)), static_cast<int>(divide_up(rows, kRowThreads / lanes)),
         kRowThreads, 0, on.stream, &a);
  if (a.tops != nullptr)
    launch(rows_kernel(std::string("backward_tops_") + name(on.call.q.dtype)),
           static_cast<int>(divide_up(checked_product("rows", {a.B, a.H, a.M}), kRowThreads)), kRowThreads, 0,
           on.stream, &a);
  if (a.dbias.data != nullptr) launch(rows_kernel("backward_clear"), 4096, kRowThreads, 0, on.stream, &a);
}
// The gradient of the sinks.
void launch_sinks(const DeviceCall& on, const BackwardArgs& a) {
  if (a.dsinks.data != nullptr) launch(rows_kernel("backward_sinks"), a.H, kRowThreads, 0, on.stream, &a);
}

// Whether later blocks of keys are seen by fewer queries.
bool is_causal(const MaskPlan& mask) {
  return std::any_of(mask.intervals.begin(), mask.intervals.end(), [](const IntervalRule& r) {
    return r.from == IntervalRule::From::position && r.right != kUnlimited;
  });
}

// KV heads that are worked on side by side, in sections of nearly equal size: a small last one would leave
// multiprocessors waiting.
int head_section(const DeviceCall& on, const BackwardShape& shape, Order order, bool apart, int heads) {
  const int in_order = is_causal(on.call.mask) ? shape.in_order_causal : shape.in_order;
  const int blocks = order == Order::free || apart ? kBlocksInNoOrder : in_order;
  const int section = std::clamp(on.device.multiprocessors / blocks, 1, heads);
  return static_cast<int>(divide_up(heads, divide_up(heads, section)));
}

// Query heads that are worked on side by side: their keys and values fit the L2.
int query_section(const BackwardArgs& a, int dims) {
  const std::int64_t heads = kSectionBytes / (std::int64_t{a.N} * dims * 2 * 2);
  return static_cast<int>(std::clamp<std::int64_t>(heads * a.G, a.G, std::int64_t{a.B} * a.H));
}

// dQ, where it has a kernel to itself.
void launch_queries(const DeviceCall& on, BackwardArgs& a, const BackwardShape& shape) {
  const CounterLease lease = take_counter(on.device, on.stream);
  a.counter = lease.counter;
  a.query_section = query_section(a, shape.D);
  const std::int64_t items = checked_product("tiles", {a.B, a.H, (a.steps + 1) / 2});
  launch_behind(
      on.device.kernels,
      kernel("attention_backward_256", std::string("backward_queries_256_") + name(on.call.q.dtype), kQueriesShared),
      static_cast<int>(std::min<std::int64_t>(on.device.multiprocessors, items)), kThreads, kQueriesShared, on.stream,
      &a);
}

void run(DeviceCall& on, const View& dout, const View& out, const View& lse, const AttentionGradients& gradients,
         Order order) {
  const AttentionProblem& p = on.call.unread_problem();
  const std::int64_t widest = std::max(p.D, p.E);
  const BackwardTerms kind = terms_of(on, widest);
  const bool terms = kind != BackwardTerms::none, holes = on.has_bits && !terms;
  const BackwardShape shape = terms || holes ? by_dim(widest, kBackwardTerms64, kBackwardTerms128, kBackwardTerms256)
                                             : by_dim(widest, kBackwardPlain64, kBackwardPlain128, kBackwardPlain256);
  const bool apart = shares_dims(shape) && !terms;  // dQ has a kernel to itself, and needs no sums and no order
  const KeyBits key_bits = on.has_bits ? on.make_key_bits(shape.queries, shape.keys) : KeyBits{};
  BackwardArgs a = describe(on, terms, dout, out, lse, gradients, shape.queries, shape.keys);
  a.key_bits = key_bits;
  if (kind == BackwardTerms::alibi) a.scale2 = p.scale * kLog2E;
  if (kind == BackwardTerms::cap) a.cap = SmallTanh(p.scale, p.softcap), a.inverse_cap = 1 / p.softcap;
  a.q = tensor_map("q", on.call.q, {0, shape.queries});
  a.k = tensor_map("k", on.call.k, {0, shape.keys});
  a.v = tensor_map("v", on.call.v, {0, shape.keys});
  a.dout = tensor_map("dout", dout, {0, shape.queries});
  a.section = head_section(on, shape, order, apart, a.B * a.Hk);

  const std::int64_t rows = checked_product("rows", {p.B, p.H, a.padded});
  const std::int64_t turns = apart ? 0 : checked_product("steps", {p.B, p.H, a.steps});
  const std::int64_t sums = apart ? 0 : checked_product("dq", {rows, shape.D});
  const std::unique_ptr<Workspace> memory =
      row_memory(on, terms, a, Workspace::round(turns * 4) + Workspace::round(sums * 4));
  int* const all_turns = memory->part<int>(turns);
  a.dq_sums = memory->part<float>(sums);
  const auto clear = [&](void* data, std::int64_t count) {
    check(driver().fill(reinterpret_cast<CUdeviceptr>(data), 0, static_cast<std::size_t>(count) * 4, on.stream),
          "cuMemset");
  };
  if (order == Order::fixed && !apart) a.turns = all_turns;                   // the first kernel clears them
  if (!apart && (a.turns == nullptr || on.has_bits)) clear(a.dq_sums, sums);  // with holes a step may see no keys

  launch_begin(on, a);
  const std::string dim = std::to_string(shape.D);
  const int shared = shared_bytes(shape);
  const std::int64_t items = checked_product("items", {p.B, p.Hk, a.key_blocks});
  {
    const CounterLease lease = take_counter(on.device, on.stream);
    a.counter = lease.counter;
    launch_behind(on.device.kernels,
                  kernel(("attention_backward_" + dim).c_str(),
                         "backward_" + kernel_kind(kind, holes) + dim + "_" + name(on.call.q.dtype), shared),
                  static_cast<int>(std::min<std::int64_t>(on.device.multiprocessors, items)), kThreads, shared,
                  on.stream, &a);
  }
  const std::string end = "backward_end_" + dim + (shape.D == 64 && shape.queries == 64 ? "_halves" : "");
  if (apart)
    launch_queries(on, a, shape);
  else
    launch_behind(on.device.kernels, rows_kernel(end), static_cast<int>(rows / 64), kRowThreads, 0, on.stream, &a);
  launch_sinks(on, a);
}

// The plain kernels: dK and dV by one, dQ by another, a block for each item.
void run_plain(DeviceCall& on, const View& dout, const View& out, const View& lse,
               const AttentionGradients& gradients) {
  const AttentionProblem& p = on.call.unread_problem();
  const std::int64_t widest = std::max(p.D, p.E);
  const auto shape_of = [&](const PlainShape& d64, const PlainShape& d128, const PlainShape& d256) {
    return widest <= 64 ? d64 : widest <= 128 ? d128 : d256;
  };
  const PlainShape keys = shape_of(kPlainKeys64, kPlainKeys128, kPlainKeys256);
  const PlainShape queries = shape_of(kPlainQueries64, kPlainQueries128, kPlainQueries256);
  const bool terms = on.has_terms || on.has_bits;
  if (on.has_bits) on.make_bits(64, 64);  // whose tiles nobody reads
  BackwardArgs a = describe(on, terms, dout, out, lse, gradients, keys.columns, keys_rows(keys));
  a.q_rows = plain_rows("q", on.call.q), a.k_rows = plain_rows("k", on.call.k);
  a.v_rows = plain_rows("v", on.call.v), a.dout_rows = plain_rows("dout", dout);
  a.section = std::clamp(2 * on.device.multiprocessors / kBlocksInNoOrder, 1, a.B * a.Hk);
  a.query_section = query_section(a, keys.D);
  const std::unique_ptr<Workspace> memory = row_memory(on, terms, a, 0);
  launch_begin(on, a);
  const std::string dim = std::to_string(keys.D), image = "backward_plain_" + dim;
  const auto launch_plain = [&](const std::string& what, std::int64_t items, int shared) {
    if (items > kFarKey) fail(kOp, "more than 2^29 tiles");
    const std::string kind = what + (terms ? "_terms_" : "_");
    launch(kernel(image.c_str(), kind + dim + "_" + name(on.call.q.dtype), shared), static_cast<int>(items),
           kPlainThreads, shared, on.stream, &a);
  };
  launch_plain("plain_keys", checked_product("items", {p.B, p.Hk, a.key_blocks}), keys_bytes(keys));
  launch_plain("plain_queries", checked_product("tiles", {p.B, p.H, divide_up(p.M, forward_rows(queries))}),
               queries_bytes(queries));
  launch_sinks(on, a);
}

}  // namespace

void attention_backward(View dout, View q, View k, View v, View out, View lse, const AttentionGradients& gradients,
                        const AttentionOptions& options, Order order, Stream stream, Allocator* allocator) {
  const AttentionCall call(q, k, v, options);
  check_backward(call, dout, out, lse, gradients);
  check_gradients(call, gradients);
  DeviceCall on(kOp, call, static_cast<CUstream>(stream), allocator);
  if (call.empty() || k.length() == 0) fail(kOp, "q and k have no rows, expected at least one of each");
  if (on.device.kernels == KernelSet::plain) return run_plain(on, dout, out, lse, gradients);
  run(on, dout, out, lse, gradients, order);
}

}  // namespace attend::cuda
