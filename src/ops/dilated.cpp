// Masks with a dilation, computed class by class; what else a union shows is computed on its own and merged by LSE.
#include "ops/dilated.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "ops/rows.hpp"
#include "ops/scratch.hpp"
#include "ops/softmax_rows.hpp"

namespace attend {
namespace {

constexpr std::int64_t kLeastClass = 16;        // rows and keys of a class
constexpr std::int64_t kLeastScores = 1 << 18;  // below, one pass over everything is as fast

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  return a / b - (a % b < 0 ? 1 : 0);
}
std::int64_t ceil_divide(std::int64_t a, std::int64_t b) {
  return -floor_divide(-a, b);
}

// What a dilation shows, and what is left of the mask without it. Query i stands at key i + offset.
struct DilatedMask {
  std::int64_t step, offset;
  Mask within;  // the rules beside the dilation: causal, window, padding
  std::optional<Mask> rest;
};

// The offset of a diagonal that is the same for all sequences.
std::optional<std::int64_t> offset_of(const Diagonal& diagonal, std::int64_t M, std::int64_t N) {
  if (!diagonal.offsets) return diagonal.align == Align::first_key ? 0 : N - M;
  if (diagonal.offsets->size() != 1) return std::nullopt;
  return diagonal.offsets->front();
}

// True where every rule can be said within a class of positions.
bool fits_classes(const MaskRule& rule, std::int64_t M, std::int64_t N) {
  if (const auto* causal = std::get_if<CausalRule>(&rule)) return offset_of(causal->diagonal, M, N).has_value();
  if (const auto* window = std::get_if<WindowRule>(&rule)) return offset_of(window->diagonal, M, N).has_value();
  return std::holds_alternative<PaddingRule>(rule);
}

// A mask that is one dilation (of more than 1) and rules that fit classes.
std::optional<DilatedMask> dilation_of(const Mask& mask, std::int64_t M, std::int64_t N) {
  std::optional<DilatedMask> found;
  Mask within;
  for (const MaskRule& rule : mask.rules) {
    if (const auto* dilated = std::get_if<DilatedRule>(&rule)) {
      const std::optional<std::int64_t> offset = offset_of(dilated->diagonal, M, N);
      if (found || !offset || dilated->step == 1) return std::nullopt;
      found = {dilated->step, *offset, {}, {}};
    } else if (fits_classes(rule, M, N)) {
      within.rules.push_back(rule);
    } else {
      return std::nullopt;
    }
  }
  if (found) found->within = std::move(within);
  return found;
}

// The dilation may be the whole mask, or a part of the one union in it.
std::optional<DilatedMask> find_dilation(const Mask& mask, std::int64_t M, std::int64_t N) {
  if (auto whole = dilation_of(mask, M, N)) return whole;
  const AnyRule* any = nullptr;
  Mask beside;
  for (const MaskRule& rule : mask.rules) {
    const auto* found = std::get_if<AnyRule>(&rule);
    if (found != nullptr && any == nullptr && !found->none)
      any = found;
    else if (fits_classes(rule, M, N))
      beside.rules.push_back(rule);
    else
      return std::nullopt;
  }
  if (any == nullptr) return std::nullopt;
  for (std::size_t n = 0; n < any->masks->size(); ++n) {
    auto found = dilation_of((*any->masks)[n], M, N);
    if (!found) continue;
    std::vector<Mask> others = *any->masks;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(n));
    found->within = found->within & beside;
    if (!others.empty())
      found->rest = beside & Mask{{AnyRule{std::make_shared<const std::vector<Mask>>(std::move(others)), false}}} &
                    except((*any->masks)[n]);
    return found;
  }
  return std::nullopt;
}

// Asked first: a call without a dilation allocates nothing here.
bool may_be_dilated(const Mask& mask) {
  return std::any_of(mask.rules.begin(), mask.rules.end(), [](const MaskRule& rule) {
    return std::holds_alternative<DilatedRule>(rule) || std::holds_alternative<AnyRule>(rule);
  });
}

std::optional<DilatedMask> dilated_call(const View& q, const View& k, const AttentionOptions& options) {
  if (!may_be_dilated(options.mask)) return std::nullopt;
  if (row_count(q.shape) == 0 || row_count(k.shape) == 0 || q.length() * k.length() < kLeastScores) return std::nullopt;
  if (options.rule || options.bias || options.distance_bias || options.alibi_slopes || options.sinks ||
      options.dropout.probability > 0)
    return std::nullopt;
  auto dilated = find_dilation(options.mask, q.length(), k.length());
  if (dilated && std::min(q.length(), k.length()) / dilated->step < kLeastClass) return std::nullopt;
  return dilated;
}

// Classes with as many rows and keys each: rows from `row` on, keys from `key` on, one after the other.
struct Classes {
  std::int64_t row, key, count, M, N;
};

std::vector<Classes> group_classes(const DilatedMask& mask, std::int64_t M, std::int64_t N) {
  std::vector<Classes> groups;
  for (std::int64_t row = 0; row < mask.step; ++row) {
    const std::int64_t key = row + mask.offset - floor_divide(row + mask.offset, mask.step) * mask.step;
    const std::int64_t rows = ceil_divide(M - row, mask.step), keys = ceil_divide(N - key, mask.step);
    if (!groups.empty()) {
      Classes& last = groups.back();
      if (last.M == rows && last.N == keys && key == last.key + last.count) {
        ++last.count;
        continue;
      }
    }
    groups.push_back({row, key, 1, rows, keys});
  }
  return groups;
}

// The rules beside the dilation, said in rows and keys of the classes.
Mask class_mask(const DilatedMask& mask, const Classes& at, std::int64_t b, std::int64_t M, std::int64_t N) {
  Mask result;
  // j <= i + most, and j >= i + least: the same for all classes of the group, whose rows and keys move together.
  const auto diagonal = [&](std::int64_t offset) {
    return Diagonal::at({std::clamp(offset, -at.M - at.N - 1, at.M + at.N + 1)});
  };
  const auto up_to = [&](std::int64_t most) {
    result = result & causal(diagonal(floor_divide(at.row + most - at.key, mask.step)));
  };
  const auto from = [&](std::int64_t least) {
    result = result & window(0, kUnlimited, diagonal(ceil_divide(at.row + least - at.key, mask.step)));
  };
  const auto bound = [&](const SharedInts& values) {
    const std::int64_t value = values->size() == 1 ? values->front() : (*values)[static_cast<std::size_t>(b)];
    std::vector<std::int64_t> bounds;
    for (std::int64_t c = 0; c < at.count; ++c)
      bounds.push_back(std::clamp<std::int64_t>(ceil_divide(value - at.key - c, mask.step), 0, at.N));
    return bounds;
  };
  for (const MaskRule& rule : mask.within.rules) {
    if (const auto* r = std::get_if<CausalRule>(&rule)) up_to(*offset_of(r->diagonal, M, N));
    if (const auto* r = std::get_if<WindowRule>(&rule)) {
      const std::int64_t offset = *offset_of(r->diagonal, M, N);
      if (r->right != kUnlimited) up_to(offset + r->right);
      if (r->left != kUnlimited) from(offset - r->left);
    }
    if (const auto* r = std::get_if<PaddingRule>(&rule)) {
      if (r->ends) result = result & padding(bound(r->ends));
      if (r->starts) result = result & left_padding(bound(r->starts));
    }
  }
  return result;
}

// Every step-th row of sequence b, the classes in place of the batch.
template <class AnyView>
AnyView class_view(const AnyView& x, std::int64_t b, std::int64_t first, std::int64_t rows, std::int64_t step,
                   std::int64_t classes) {
  AnyView view = x;
  using Byte = std::conditional_t<std::is_same_v<AnyView, View>, const char, char>;
  view.data = static_cast<Byte*>(x.data) + (b * x.strides[0] + first * x.strides[2]) * size_of(x.dtype);
  view.shape = {classes, x.shape[1], rows, x.shape[3]};
  view.strides = {x.strides[2], x.strides[1], x.strides[2] * step, x.strides[3]};
  return view;
}

template <class F>
void for_classes(const DilatedMask& mask, const AttentionOptions& options, std::int64_t B, std::int64_t M,
                 std::int64_t N, const F& f) {
  for (const Classes& at : group_classes(mask, M, N))
    for (std::int64_t b = 0; b < B; ++b) {
      AttentionOptions within = options;
      within.mask = class_mask(mask, at, b, M, N);
      const auto rows = [&](const auto& x) { return class_view(x, b, at.row, at.M, mask.step, at.count); };
      const auto keys = [&](const auto& x) { return class_view(x, b, at.key, at.N, mask.step, at.count); };
      f(rows, keys, within, b, at);
    }
}

// The softmax of rows whose LSE does not suffice, of either part. The classes of a group are a batch of their own.
struct PartStates {
  PartStates(const DilatedMask& mask, const View& q, const View& k, const AttentionOptions& options, const float* lse)
      : near(row_count(q.shape)), far(row_count(q.shape)) {
    AttentionOptions rest = options;
    rest.mask = *mask.rest;
    const AttentionCall call(q, k, k, rest);
    fill_row_states(call.problem(), lse, false, near.data());
    for_classes(
        mask, options, q.batch(), q.length(), k.length(),
        [&](const auto& rows, const auto& keys, const AttentionOptions& within, std::int64_t b, const Classes& at) {
          const AttentionCall own(rows(q), keys(k), keys(k), within);
          const std::int64_t count = at.count * q.heads() * at.M;
          const Buffer<float> class_lse(count);
          const Buffer<RowState> states(count);
          for_class_rows(mask, q, b, at, [&](std::int64_t n, std::int64_t row) { class_lse[n] = lse[row]; });
          fill_row_states(own.problem(), class_lse.data(), false, states.data());
          for_class_rows(mask, q, b, at, [&](std::int64_t n, std::int64_t row) { far[row] = states[n]; });
        });
  }

  // f(n, row) for every row of the classes, by its places among them and in the whole.
  template <class F>
  static void for_class_rows(const DilatedMask& mask, const View& q, std::int64_t b, const Classes& at, const F& f) {
    std::int64_t n = 0;
    for (std::int64_t c = 0; c < at.count; ++c)
      for (std::int64_t h = 0; h < q.heads(); ++h)
        for (std::int64_t i = 0; i < at.M; ++i) f(n++, (b * q.heads() + h) * q.length() + at.row + c + i * mask.step);
  }

  Buffer<RowState> near, far;  // [B, H, M]
};

Tensor widened(const View& x) {
  Tensor wide(DType::f32, x.shape);
  visit_f32_family(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_each_row(row_count(x.shape), x.dim(), [&](std::int64_t r) {
      const Row<T> from = row_of<T>(x, r);
      float* to = wide.data<float>() + r * x.dim();
      for (std::int64_t d = 0; d < x.dim(); ++d) to[d] = from[d];
    });
  });
  return wide;
}
// to = a + b, rounded once.
void add_rounded(const Tensor& a, const Tensor& b, const MutableView& to) {
  visit_f32_family(to.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_each_row(row_count(to.shape), to.dim(), [&](std::int64_t r) {
      const MutableRow<T> row = row_of<T>(to, r);
      const float *x = a.data<float>() + r * to.dim(), *y = b.data<float>() + r * to.dim();
      for (std::int64_t d = 0; d < to.dim(); ++d) row.set(d, x[d] + y[d]);
    });
  });
}

MergedStates<double, double> merge_lse(float a, float b) {
  return merge(state_of_lse(static_cast<double>(a)), state_of_lse(static_cast<double>(b)),
               [](double x) { return std::exp(x); });
}
// The LSE over the keys of two parts.
float merged_lse(float a, float b) {
  const SoftmaxState<double, double> whole = merge_lse(a, b).whole;
  return static_cast<float>(whole.max + (whole.empty() ? 0 : std::log(whole.sum)));
}
// The shares of two parts in the weights of a row.
struct Shares {
  float a, b;
};
Shares shares(float a, float b) {
  const MergedStates<double, double> merged = merge_lse(a, b);
  if (merged.whole.empty()) return {0, 0};
  return {static_cast<float>(merged.a / merged.whole.sum), static_cast<float>(merged.b / merged.whole.sum)};
}

// The outputs of two parts of the keys, weighted as one softmax over both; `states` where an LSE does not suffice.
void merge_parts(const Tensor& out_a, const Tensor& lse_a, const Tensor& out_b, const Tensor& lse_b, const float* lse,
                 const PartStates* states, const MutableView& out) {
  visit_f32_family(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_each_row(row_count(out.shape), out.dim(), [&](std::int64_t r) {
      Shares share = shares(lse_a.data<float>()[r], lse_b.data<float>()[r]);
      if (states && !lse_suffices(lse[r])) {
        const RowState whole = merge(states->near[r], states->far[r]);
        share = {static_cast<float>(share_of(states->near[r], whole)),
                 static_cast<float>(share_of(states->far[r], whole))};
      }
      const MutableRow<T> row = row_of<T>(out, r);
      const float *x = out_a.data<float>() + r * out.dim(), *y = out_b.data<float>() + r * out.dim();
      for (std::int64_t d = 0; d < out.dim(); ++d) row.set(d, share.a * x[d] + share.b * y[d]);
    });
  });
}

}  // namespace

bool attention_by_classes(const AttentionCall& call, const MutableView& out, const AttentionExtras& extras) {
  const View &q = call.q, &k = call.k, &v = call.v;
  const AttentionOptions& options = call.options;
  if (extras.weights || extras.row_sums || extras.statistics) return false;
  const std::optional<DilatedMask> dilated = dilated_call(q, k, options);
  if (!dilated) return false;
  const std::int64_t B = q.batch(), M = q.length(), N = k.length();
  const auto run = [&](const View& queries, const View& keys, const View& values, const MutableView& to,
                       const std::optional<MutableView>& lse) {
    for_classes(*dilated, options, B, M, N,
                [&](const auto& rows, const auto& of_keys, const AttentionOptions& within, auto, const auto&) {
                  AttentionExtras own;
                  if (lse) own.lse = rows(*lse);
                  const AttentionCall of_class(rows(queries), of_keys(keys), of_keys(values), within);
                  attention(of_class, rows(to), own);
                });
  };
  if (!dilated->rest) {
    run(q, k, v, out, extras.lse);
    return true;
  }
  // In f32, so that the sum of the two is what is rounded.
  const bool narrow_inputs = q.dtype != DType::f32;
  const Tensor wide_q = narrow_inputs ? widened(q) : Tensor(), wide_k = narrow_inputs ? widened(k) : Tensor();
  const Tensor wide_v = narrow_inputs ? widened(v) : Tensor();
  const View queries = narrow_inputs ? View(wide_q) : q, keys = narrow_inputs ? View(wide_k) : k;
  const View values = narrow_inputs ? View(wide_v) : v;
  Tensor near(DType::f32, out.shape), far(DType::f32, out.shape);
  Tensor near_lse(DType::f32, {B, q.heads(), M, 1}), far_lse(DType::f32, {B, q.heads(), M, 1});
  AttentionOptions rest = options;
  rest.mask = *dilated->rest;
  AttentionExtras near_extras;
  near_extras.lse = near_lse.view();
  const AttentionCall near_call(queries, keys, values, rest);
  attention(near_call, near, near_extras);
  run(queries, keys, values, far, far_lse.view());
  Tensor lse(DType::f32, near_lse.shape());
  for (std::int64_t r = 0; r < lse.size(); ++r)
    lse.data<float>()[r] = merged_lse(near_lse.data<float>()[r], far_lse.data<float>()[r]);
  std::optional<PartStates> states;
  if (!all_suffice(lse.data<float>(), lse.size())) states.emplace(*dilated, queries, keys, options, lse.data<float>());
  merge_parts(near, near_lse, far, far_lse, lse.data<float>(), states ? &*states : nullptr, out);
  if (extras.lse) copy_rows(lse, *extras.lse);
  return true;
}

bool attention_backward_by_classes(const AttentionCall& call, const View& dout, const View& out, const View& lse,
                                   const AttentionGradients& gradients) {
  const View &q = call.q, &k = call.k, &v = call.v;
  const AttentionOptions& options = call.options;
  const std::optional<DilatedMask> dilated = dilated_call(q, k, options);
  if (!dilated) return false;
  // A part's gradients are those of the one softmax over its own keys: the out and LSE of the whole make them so.
  const auto run = [&](const View& grad, const View& queries, const View& keys, const View& values, const View& result,
                       const AttentionGradients& to, const RowState* whole) {
    for_classes(*dilated, options, q.batch(), q.length(), k.length(),
                [&](const auto& rows, const auto& of_keys, const AttentionOptions& within, auto b, const auto& at) {
                  const Buffer<RowState> states(whole ? at.count * q.heads() * at.M : 0);
                  if (whole)
                    PartStates::for_class_rows(*dilated, q, b, at, [&](auto n, auto row) { states[n] = whole[row]; });
                  const AttentionCall of_class(rows(queries), of_keys(keys), of_keys(values), within);
                  attention_backward(of_class, rows(grad), rows(result), rows(lse),
                                     {rows(to.dq), of_keys(to.dk), of_keys(to.dv), {}, {}},
                                     whole ? states.data() : nullptr);
                });
  };
  if (!dilated->rest) {
    run(dout, q, k, v, out, gradients, nullptr);
    return true;
  }
  const Tensor g = widened(dout), wide_q = widened(q), wide_k = widened(k), wide_v = widened(v), o = widened(out);
  AttentionGradientTensors near, far;
  for (AttentionGradientTensors* part : {&near, &far}) {
    part->dq = Tensor(DType::f32, q.shape);
    part->dk = Tensor(DType::f32, k.shape);
    part->dv = Tensor(DType::f32, v.shape);
  }
  AttentionOptions rest = options;
  rest.mask = *dilated->rest;
  const Buffer<float> lse_rows(row_count(lse.shape));
  load_lse(lse, lse_rows.data());
  std::optional<PartStates> states;
  if (!all_suffice(lse_rows.data(), row_count(lse.shape))) {
    states.emplace(*dilated, wide_q, wide_k, options, lse_rows.data());
    for (std::int64_t r = 0; r < row_count(lse.shape); ++r)
      if (!lse_suffices(lse_rows[r])) states->near[r] = merge(states->near[r], states->far[r]);
  }
  const RowState* whole = states ? states->near.data() : nullptr;
  const AttentionCall near_call(wide_q, wide_k, wide_v, rest);
  attention_backward(near_call, g, o, lse, {near.dq, near.dk, near.dv, {}, {}}, whole);
  run(g, wide_q, wide_k, wide_v, o, {far.dq, far.dk, far.dv, {}, {}}, whole);
  add_rounded(near.dq, far.dq, gradients.dq);
  add_rounded(near.dk, far.dk, gradients.dk);
  add_rounded(near.dv, far.dv, gradients.dv);
  return true;
}

}  // namespace attend
