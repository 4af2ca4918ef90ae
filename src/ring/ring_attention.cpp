// Ring attention forward: K and V go round, each block's result is merged into the sums by its LSE.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/elements.hpp"
#include "ops/attention_call.hpp"
#include "ops/scratch.hpp"
#include "ops/softmax_rows.hpp"
#include "ring/arguments.hpp"
#include "ring/blocks.hpp"

namespace attend::ring {
namespace {

constexpr const char* kOp = "ring_attention";
constexpr double kNothing = -std::numeric_limits<double>::infinity();

// Outputs and LSEs of the rank's queries over the keys so far.
struct Sums {
  Sums(std::int64_t B, std::int64_t H, std::int64_t M, std::int64_t E)
      : out(DType::f32, {B, H, M, E}), lse(DType::f64, {B, H, M, 1}) {
    std::fill_n(lse.data<double>(), lse.size(), kNothing);
  }
  Tensor out, lse;
  std::vector<RowState> states;  // [B, H, M] of rows whose LSE does not suffice; empty: there is none
};

// part [B, heads, rows, E] into the same heads and rows of the sums. `states` of the part, or null where its LSEs
// suffice.
void merge_block(const float* part, const float* part_lse, const RowState* states, std::int64_t first_head,
                 std::int64_t heads, std::int64_t first_row, std::int64_t rows, Sums& sums) {
  const auto& [B, H, M, E] = sums.out.shape();
  float* out = sums.out.data<float>();
  double* lse = sums.lse.data<double>();
  for_each_row(B * heads * rows, E, [&](std::int64_t r) {
    const std::int64_t i = r % rows, bh = r / rows;
    const std::int64_t at = (bh / heads * H + first_head + bh % heads) * M + first_row + i;
    RowState* state = sums.states.empty() ? nullptr : &sums.states[static_cast<std::size_t>(at)];
    merge_into<double>({lse[at], state, out + at * E},
                       {static_cast<double>(part_lse[r]), states ? states + r : nullptr, part + r * E}, E);
  });
}

// This rank's queries against the block of keys in hand.
void attend_block(Link& link, const View& q, const View& k, const View& v, std::int64_t owner,
                  const RingOptions& options, Sums& sums) {
  const std::int64_t B = q.batch(), Hk = k.heads(), G = q.heads() / Hk, E = v.dim();
  for_each_pair(link, options, owner, q.length(), [&](const Chunk& queries, const Chunk& keys) {
    const SliceSize size =
        slice_size(options, Hk, queries.count,
                   static_cast<double>(B * G) * static_cast<double>(keys.count) * static_cast<double>(q.dim() + E));
    const std::int64_t most = checked_product("ring: a slice", {B, size.heads * G, size.tokens});
    const Buffer<float> part(checked_product("ring: a slice", {most, E})), part_lse(most);
    for_each_slice(Hk, queries.count, size, [&](auto head, auto heads, auto row, auto rows) {
      const Chunk some{queries.first + row, queries.at + row, rows};
      if (!sees(options.attention.mask, some, keys)) return;
      link.compute([&] {
        const auto of_keys = [&](const View& x) { return slice(slice(x, 1, head, heads), 2, keys.at, keys.count); };
        const View queries_of = slice(slice(q, 1, head * G, heads * G), 2, some.at, rows);
        const AttentionOptions local = local_options(options.attention, some, keys, head * G, heads * G);
        const AttentionCall call(queries_of, of_keys(k), of_keys(v), local);
        attention(call, view_of(part.data(), {B, heads * G, rows, E}),
                  {.lse = view_of(part_lse.data(), {B, heads * G, rows, 1}), .weights = {}, .row_sums = {}});
        const std::int64_t count = B * heads * G * rows;
        const bool large = !all_suffice(part_lse.data(), count);
        const Buffer<RowState> states(large ? count : 0);
        if (large) {
          sums.states.resize(static_cast<std::size_t>(sums.lse.size()));
          fill_row_states(call.problem(), part_lse.data(), false, states.data());
        }
        merge_block(part.data(), part_lse.data(), large ? states.data() : nullptr, head * G, heads * G, some.at, rows,
                    sums);
      });
    });
  });
}

void forward(Link& link, const View& q, const View& k, const View& v, const MutableView& out,
             const std::optional<MutableView>& lse, const RingOptions& options) {
  Sums sums(q.batch(), q.heads(), q.length(), v.dim());
  KeysValues blocks(link, k, v);
  for (std::int64_t step = 0; step < link.ranks(); ++step) {
    blocks.start(step);
    if (options.on_step) options.on_step(step);
    attend_block(link, q, blocks.k(), blocks.v(), blocks.owner(step), options, sums);
    blocks.finish(step);
  }
  round_rows(sums.out, out);
  if (!lse) return;
  for (std::int64_t b = 0, at = 0; b < q.batch(); ++b) {
    for (std::int64_t h = 0; h < q.heads(); ++h) {
      for (std::int64_t i = 0; i < q.length(); ++i) store(*lse, b, h, i, 0, sums.lse.data<double>()[at++]);
    }
  }
}

}  // namespace

void check_arguments(const char* op, const Link& link, const View& q, const View& k, const View& v,
                     const RingOptions& options, Facts& facts,
                     const std::function<void(const AttentionCall&)>& check_rest) {
  check_readable(op, "q", q);
  if (q.dtype == DType::f64) fail(op, "q dtype is f64, expected f32, f16 or bf16");
  check_options(op, options, q.length());
  check_equal(op, "k length", k.length(), q.length(), "q length: queries and keys are sharded alike");
  checked_product("ring: tokens of all ranks", {q.length(), 2, link.ranks()});
  const Chunk all{0, 0, q.length()};
  AttentionOptions local = local_options(options.attention, all, all, 0, q.heads());
  local.alibi_slopes = options.attention.alibi_slopes;
  const AttentionCall call(q, k, v, local);
  facts = {{"dtype", static_cast<std::int64_t>(q.dtype)},
           {"batch", q.batch()},
           {"heads", q.heads()},
           {"kv heads", k.heads()},
           {"tokens", q.length()},
           {"head dim", q.dim()},
           {"value dim", v.dim()},
           {"sharding", static_cast<std::int64_t>(options.sharding)},
           {"options", hash_of(options), true}};
  check_rest(call);
}

void refuse_everywhere(RingCommunicator comm, const char* op, const RingOptions& options) {
  const std::string text = Link::current_error();
  Link link(comm, op, options);
  link.agree([&](Facts&) { throw Refused(text); });
  throw Refused(text);
}

}  // namespace attend::ring

namespace attend {

void ring_attention(RingCommunicator comm, View q, View k, View v, MutableView out, const RingOptions& options,
                    std::optional<MutableView> lse) {
  ring::Link link(comm, ring::kOp, options);
  link.agree([&](ring::Facts& facts) {
    ring::check_arguments(ring::kOp, link, q, k, v, options, facts, [&](const AttentionCall& call) {
      check_outputs(call, out, {.lse = lse, .weights = {}, .row_sums = {}});
    });
  });
  link.run([&] {
    link.start_moving();
    ring::forward(link, q, k, v, out, lse, options);
  });
  ring::add_times(options, link.times);
}

double ring_transfer_seconds(RingCommunicator comm, View k, View v, bool backward, const RingOptions& options) {
  constexpr const char* kTransferOp = "ring_transfer_seconds";
  ring::Link link(comm, kTransferOp, options);
  link.agree([&](ring::Facts& facts) {
    check_readable(kTransferOp, "k", k);
    check_readable(kTransferOp, "v", v);
    facts = {
        {"bytes of k", checked_product("bytes of k", {k.batch(), k.heads(), k.length(), k.dim(), size_of(k.dtype)})},
        {"bytes of v", checked_product("bytes of v", {v.batch(), v.heads(), v.length(), v.dim(), size_of(v.dtype)})},
        {"backward", backward ? 1 : 0}};
  });
  double seconds = 0;
  link.run([&] {
    ring::KeysValues blocks(link, k, v);
    std::optional<ring::CirculatingGradients> gradients;
    if (backward) gradients.emplace(link, k.shape, v.shape);
    const auto start = ring::Clock::now();
    for (std::int64_t step = 0; step < link.ranks(); ++step) {
      blocks.start(step);
      if (backward) gradients->start(step), gradients->finish(step);
      blocks.finish(step);
    }
    if (backward) gradients->return_to_owner();
    seconds = ring::seconds_since(start);
  });
  return seconds;
}

}  // namespace attend
