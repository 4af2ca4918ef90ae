// Ring attention backward: K and V go round again, their gradients behind them; dq stays.
#include <vector>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "ops/attention_call.hpp"
#include "ops/scratch.hpp"
#include "ops/softmax_rows.hpp"
#include "ring/arguments.hpp"
#include "ring/blocks.hpp"

namespace attend::ring {
namespace {

constexpr const char* kOp = "ring_attention_backward";

struct Inputs {
  View dout, q, k, v, out, lse;
};

// part [B, heads, rows, D] is added to the same heads and rows of `sum`, both f32 and `sum` contiguous.
void add(const float* part, std::int64_t first_head, std::int64_t heads, std::int64_t first_row, std::int64_t rows,
         const MutableView& sum) {
  const auto& [B, H, M, D] = sum.shape;
  auto* to = static_cast<float*>(sum.data);
  for_each_row(B * heads * rows, D, [&](std::int64_t r) {
    const std::int64_t i = r % rows, bh = r / rows;
    float* row = to + ((bh / heads * H + first_head + bh % heads) * M + first_row + i) * D;
    for (std::int64_t d = 0; d < D; ++d) row[d] += part[r * D + d];
  });
}

// The softmax of this rank's rows over the keys of all ranks, where an LSE is too large to make weights from: K goes
// round once more before. Empty: no rank has such a row.
std::vector<RowState> whole_states(Link& link, const Inputs& x, const RingOptions& options) {
  const auto& [B, H, M, D] = x.q.shape;
  const Buffer<float> lse(B * H * M);
  load_lse(x.lse, lse.data());
  auto ranks_in_need = all_suffice(lse.data(), B * H * M) ? 0.0F : 1.0F;
  link.sum(&ranks_in_need, 1);
  if (ranks_in_need == 0) return {};
  std::vector<RowState> whole(static_cast<std::size_t>(B * H * M));
  KeysValues blocks(link, x.k, x.v);
  for (std::int64_t step = 0; step < link.ranks(); ++step) {
    blocks.start(step);
    for_each_pair(link, options, blocks.owner(step), M, [&](const Chunk& queries, const Chunk& keys) {
      if (!sees(options.attention.mask, queries, keys)) return;
      link.compute([&] {
        const auto rows = [&](const View& y) { return slice(y, 2, queries.at, queries.count); };
        const auto some = [&](const View& y) { return slice(y, 2, keys.at, keys.count); };
        const AttentionOptions local = local_options(options.attention, queries, keys, 0, H);
        const AttentionCall call(rows(x.q), some(blocks.k()), some(blocks.v()), local);
        const Buffer<float> own_lse(B * H * queries.count);
        const Buffer<RowState> own(B * H * queries.count);
        load_lse(rows(x.lse), own_lse.data());
        fill_row_states(call.problem(), own_lse.data(), false, own.data());
        for (std::int64_t r = 0; r < B * H * queries.count; ++r) {
          RowState& row = whole[static_cast<std::size_t>(r / queries.count * M + queries.at + r % queries.count)];
          if (!lse_suffices(own_lse[r])) row = merge(row, own[r]);
        }
      });
    });
    blocks.finish(step);
  }
  return whole;
}

// What this rank's queries give to dq and to the gradients of the block in hand. With the merged output and LSE the
// weights are those of the whole row, so each share is exact. Slices are cut along the keys: dk and dv of a slice are
// then whole, and dq is a sum over blocks in any case.
void backward_block(Link& link, const Inputs& x, const View& k, const View& v, std::int64_t owner,
                    const RingOptions& options, const std::vector<RowState>& whole, Tensor& dq,
                    CirculatingGradients& gradients) {
  const std::int64_t B = x.q.batch(), Hk = k.heads(), G = x.q.heads() / Hk, D = x.q.dim(), E = v.dim();
  for_each_pair(link, options, owner, x.q.length(), [&](const Chunk& queries, const Chunk& keys) {
    const std::int64_t M = queries.count;
    const SliceSize size =
        slice_size(options, Hk, keys.count,
                   static_cast<double>(B * G) * static_cast<double>(M) * static_cast<double>(3 * D + 2 * E));
    const Buffer<float> dq_part(checked_product("ring: a slice", {B, size.heads * G, M, D})),
        dk_part(checked_product("ring: a slice", {B, size.heads, size.tokens, D})),
        dv_part(checked_product("ring: a slice", {B, size.heads, size.tokens, E}));
    for_each_slice(Hk, keys.count, size, [&](auto head, auto heads, auto key, auto count) {
      const Chunk some{keys.first + key, keys.at + key, count};
      if (!sees(options.attention.mask, queries, some)) return;
      link.compute([&] {
        const auto of_rows = [&](const View& y) { return slice(slice(y, 1, head * G, heads * G), 2, queries.at, M); };
        const auto of_keys = [&](const View& y) { return slice(slice(y, 1, head, heads), 2, some.at, count); };
        std::vector<RowState> states;  // of these rows
        for (std::int64_t r = 0; !whole.empty() && r < B * heads * G * M; ++r) {
          const std::int64_t i = r % M, h = r / M % (heads * G), b = r / M / (heads * G);
          const std::int64_t row = (b * x.q.heads() + head * G + h) * x.q.length() + queries.at + i;
          states.push_back(whole[static_cast<std::size_t>(row)]);
        }
        const AttentionOptions local = local_options(options.attention, queries, some, head * G, heads * G);
        const AttentionCall call(of_rows(x.q), of_keys(k), of_keys(v), local);
        attention_backward(call, of_rows(x.dout), of_rows(x.out), of_rows(x.lse),
                           {view_of(dq_part.data(), {B, heads * G, M, D}),
                            view_of(dk_part.data(), {B, heads, count, D}),
                            view_of(dv_part.data(), {B, heads, count, E}),
                            {},
                            {}},
                           whole.empty() ? nullptr : states.data());
        add(dq_part.data(), head * G, heads * G, queries.at, M, dq);
        add(dk_part.data(), head, heads, some.at, count, gradients.dk());
        add(dv_part.data(), head, heads, some.at, count, gradients.dv());
      });
    });
  });
}

void backward(Link& link, const Inputs& x, const RingGradients& wanted, const RingOptions& options) {
  Tensor dq(DType::f32, x.q.shape);
  const std::vector<RowState> whole = whole_states(link, x, options);
  KeysValues blocks(link, x.k, x.v);
  CirculatingGradients gradients(link, x.k.shape, x.v.shape);
  for (std::int64_t step = 0; step < link.ranks(); ++step) {
    blocks.start(step);
    gradients.start(step);
    if (options.on_step) options.on_step(step);
    backward_block(link, x, blocks.k(), blocks.v(), blocks.owner(step), options, whole, dq, gradients);
    gradients.finish(step);
    blocks.finish(step);
  }
  round_rows(dq, wanted.dq);
  gradients.return_to_owner();
  round_rows(gradients.dk(), wanted.dk);
  round_rows(gradients.dv(), wanted.dv);
}

}  // namespace
}  // namespace attend::ring

namespace attend {

void ring_attention_backward(RingCommunicator comm, View dout, View q, View k, View v, View out, View lse,
                             const RingGradients& gradients, const RingOptions& options) {
  ring::Link link(comm, ring::kOp, options);
  link.agree([&](ring::Facts& facts) {
    ring::check_arguments(ring::kOp, link, q, k, v, options, facts, [&](const AttentionCall& call) {
      check_backward(call, dout, out, lse, {gradients.dq, gradients.dk, gradients.dv, {}, {}});
    });
  });
  link.run([&] {
    link.start_moving();
    ring::backward(link, {dout, q, k, v, out, lse}, gradients, options);
  });
  ring::add_times(options, link.times);
}

}  // namespace attend
