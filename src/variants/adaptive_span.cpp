// Adaptive span: attention() once per head, over the window that its span leaves.
#include "attend/adaptive_span.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/elements.hpp"
#include "base/view_parts.hpp"
#include "ops/attention_call.hpp"
#include "ops/rows.hpp"
#include "ops/scratch.hpp"
#include "reference/adaptive_span.hpp"
#include "variants/adaptive_span.hpp"
#include "variants/padding.hpp"
#include "variants/widened.hpp"

namespace attend {
namespace {

const char* const kOp = "adaptive_span";
const char* const kBackwardOp = "adaptive_span_backward";
constexpr double kLongestRamp = 0x1p20;  // its masks are held in a table
constexpr double kFarthest = 0x1p53;     // as whole numbers, doubles end here

}  // namespace

// ---- One head ----

HeadSpan::HeadSpan(double z, const AdaptiveSpanOptions& options, std::int64_t B, std::int64_t M, std::int64_t N)
    : options_(options), B_(B), M_(M), N_(N), tiles_(divide_up(N, kKeyTile)) {
  reach_ = static_cast<std::int64_t>(std::min(std::ceil(z + options.ramp), kFarthest)) - 1;
  inner_ = static_cast<std::int64_t>(std::min(std::floor(z), kFarthest));
  std::int64_t pair = 0;  // the farthest pair of the call
  for (std::int64_t b = 0; b < B; ++b) {
    const std::int64_t first = position(b), last = first + M - 1;
    pair = std::max({pair, last, N - 1 - first});
  }
  farthest_ = std::max(inner_, std::min(reach_, pair));
  for (std::int64_t x = farthest_; x > inner_; --x) {
    const double left = options.ramp + z - static_cast<double>(x);
    logs_.push_back(static_cast<float>(std::log(left / options.ramp)));
    slopes_.push_back(1 / left);
  }
}

std::int64_t HeadSpan::position(std::int64_t b) const {
  const Diagonal& diagonal = options_.diagonal;
  if (diagonal.offsets)
    return diagonal.offsets->size() == 1 ? diagonal.offsets->front() : (*diagonal.offsets)[static_cast<std::size_t>(b)];
  return diagonal.align == Align::last_key ? N_ - M_ : 0;
}

// Calls f(r, c0, c1, n, step): in row r, columns [c0, c1) lie on the ramp; their entries are n, n + step, ...
template <class Tile, class F>
void HeadSpan::for_ramp(const Tile& tile, const F& f) const {
  const std::int64_t first = position(tile.batch) + tile.first_row - tile.first_col;
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const std::int64_t own = first + r;  // the column of the query's own key
    const auto clipped = [&](std::int64_t c) { return std::clamp<std::int64_t>(c, 0, tile.cols); };
    const std::int64_t c0 = clipped(own - farthest_), c1 = clipped(own - inner_);
    if (c0 < c1) f(r, c0, c1, c0 - (own - farthest_), 1);
    if (!options_.symmetric) continue;
    const std::int64_t d0 = clipped(own + inner_ + 1), d1 = clipped(own + farthest_ + 1);
    if (d0 < d1) f(r, d0, d1, own + farthest_ - d0, -1);
  }
}

template <class T>
void HeadSpan::add_log(const ScoreTile<T>& tile) const {
  for_ramp(tile, [&](auto r, auto c0, auto c1, auto n, auto step) {
    for (auto c = c0; c < c1; ++c, n += step) tile(r, c) += static_cast<T>(logs_[static_cast<std::size_t>(n)]);
  });
}

template <class T>
void HeadSpan::add_slopes(const ScoreTile<T>& grad, double* dz) const {
  double sum = 0;
  for_ramp(grad, [&](auto r, auto c0, auto c1, auto n, auto step) {
    for (auto c = c0; c < c1; ++c, n += step)
      sum += static_cast<double>(grad(r, c)) * slopes_[static_cast<std::size_t>(n)];
  });
  // Backward gives a tile of keys to one thread, which takes its rows in rising order.
  dz[grad.batch * tiles_ + grad.first_col / kKeyTile] += sum;
}

AttentionOptions HeadSpan::attention_options(double* dz) const {
  AttentionOptions result;
  result.mask = window(reach_, options_.symmetric ? reach_ : 0, options_.diagonal) & options_.mask;
  result.scale = options_.scale;
  if (logs_.empty()) return result;  // nobody stands on the ramp
  result.rule = ScoreRule([this](auto tile) { add_log(tile); },
                          [this, dz](auto, auto grad) {
                            if (dz) add_slopes(grad, dz);
                          });
  return result;
}

// ---- All heads ----

namespace {

template <class Void>
BasicView<Void> head_view(const BasicView<Void>& x, std::int64_t h) {
  return head_of(x, x.data != nullptr && x.heads() > 1 ? h : 0);
}

void check_span(const char* op, const View& span, std::int64_t H, const AdaptiveSpanOptions& options) {
  if (!(options.ramp > 0 && options.ramp <= kLongestRamp))
    fail(op, "ramp is " + std::to_string(options.ramp) + ", expected a number above 0, up to 2^20");
  if (!(options.max_span >= 0) || !std::isfinite(options.max_span))
    fail(op, "max_span is " + std::to_string(options.max_span) + ", expected a finite number from 0 up");
  check_readable(op, "span", span);
  check_shape(op, "span", span.shape, {1, H, 1, 1});
  for (std::int64_t h = 0; h < H; ++h)
    if (!std::isfinite(load(span, 0, h, 0, 0)))
      fail(op, "span of head " + std::to_string(h) + " is " + std::to_string(load(span, 0, h, 0, 0)) +
                   ", expected a finite number");
}

// What attention over the same inputs would be asked: its checks are the span's too.
AttentionOptions plain(const AdaptiveSpanOptions& options) {
  AttentionOptions result;
  result.scale = options.scale;
  result.mask = causal(options.diagonal);
  return result;
}

void check_spans(const char* op, const View& q, const View& k, const View& span, const AdaptiveSpanOptions& options) {
  check_padding_alone(op, options.mask, k.batch(), k.length(),
                      "the span is itself a window, and other rules would count positions in their own way");
  check_span(op, span, q.heads(), options);
}

double clamped(const View& span, std::int64_t h, const AdaptiveSpanOptions& options) {
  return std::clamp(load(span, 0, h, 0, 0), 0.0, options.max_span);
}

// Not where a step downhill, against g, would lead out of [0, max_span].
double held(double g, double z, const AdaptiveSpanOptions& options) {
  return (z < 0 && g > 0) || (z > options.max_span && g < 0) ? 0 : g;
}

}  // namespace

void adaptive_span(View q, View k, View v, View span, MutableView out, const AdaptiveSpanOptions& options,
                   std::optional<MutableView> lse) {
  const AttentionOptions checked = plain(options);
  const AttentionCall call(q, k, v, checked);
  check_spans(kOp, q, k, span, options);
  AttentionExtras extras;
  extras.lse = lse;
  check_outputs(call, out, extras);
  check_all_apart(kOp, {{"out", out}, {"lse", lse}}, {{"span", span}});
  if (q.dtype == DType::f64) return reference::adaptive_span(q, k, v, span, out, options, lse);
  const std::int64_t group = q.heads() / k.heads();
  for (std::int64_t h = 0; h < q.heads(); ++h) {
    const HeadSpan head(clamped(span, h, options), options, q.batch(), q.length(), k.length());
    if (lse) extras.lse = head_view(*lse, h);
    attention(head_view(q, h), head_view(k, h / group), head_view(v, h / group), head_view(out, h),
              head.attention_options(), extras);
  }
}

namespace {

struct BackwardArguments {
  View dout, q, k, v, span, out, lse;
};

void check_backward(const BackwardArguments& in, const AdaptiveSpanGradients& gradients,
                    const AdaptiveSpanOptions& options) {
  const AttentionOptions checked = plain(options);
  const AttentionCall call(in.q, in.k, in.v, checked);
  check_spans(kBackwardOp, in.q, in.k, in.span, options);
  check_backward(call, in.dout, in.out, in.lse, {gradients.dq, gradients.dk, gradients.dv, {}, {}});
  check_writable(kBackwardOp, "dspan", gradients.dspan);
  check_shape(kBackwardOp, "dspan", gradients.dspan.shape, in.span.shape);
  check_all_apart(
      kBackwardOp, {{"dq", gradients.dq}, {"dk", gradients.dk}, {"dv", gradients.dv}, {"dspan", gradients.dspan}},
      {{"q", in.q}, {"k", in.k}, {"v", in.v}, {"span", in.span}, {"dout", in.dout}, {"out", in.out}, {"lse", in.lse}});
}

// One head: dq, dk and dv go where they belong, the gradient of z is returned.
double backward_head(const BackwardArguments& in, std::int64_t h, std::int64_t hk, const MutableView& dq,
                     const MutableView& dk, const MutableView& dv, const AdaptiveSpanOptions& options) {
  const HeadSpan head(clamped(in.span, h, options), options, in.q.batch(), in.q.length(), in.k.length());
  const Buffer<double> slots(head.slots());
  std::fill_n(slots.data(), head.slots(), 0.0);
  attention_backward(head_view(in.dout, h), head_view(in.q, h), head_view(in.k, hk), head_view(in.v, hk),
                     head_view(in.out, h), head_view(in.lse, h), {head_view(dq, h), dk, dv, {}, {}},
                     head.attention_options(slots.data()));
  double dz = 0;
  for (std::int64_t n = 0; n < head.slots(); ++n) dz += slots[n];
  return dz;
}

// y = x, or y += x, for matrices of one head in every batch.
void take_sum(Tensor& x, const WidenedResult& y, std::int64_t hk, bool add) {
  const std::int64_t N = x.shape()[2], D = x.shape()[3];
  for_each_row(row_count(x.shape()), D, [&](std::int64_t r) {
    const FloatMatrix to = y.matrix(r / N, hk);
    const float* from = x.data<float>() + r * D;
    float* row = to.data + r % N * to.row_stride;
    for (std::int64_t d = 0; d < D; ++d) row[d * to.col_stride] = add ? row[d * to.col_stride] + from[d] : from[d];
  });
}

// Heads that share keys and values: each has its own window, so their gradients are made one by one and summed.
void backward_groups(const BackwardArguments& given, const AdaptiveSpanGradients& gradients,
                     const AdaptiveSpanOptions& options, std::vector<double>& dz) {
  const WidenedInput dout(given.dout), q(given.q), k(given.k), v(given.v), out(given.out);
  const BackwardArguments in{dout.view(), q.view(), k.view(), v.view(), given.span, out.view(), given.lse};
  const WidenedResult dq(gradients.dq), dk(gradients.dk), dv(gradients.dv);
  Tensor dk_head(DType::f32, {in.k.batch(), 1, in.k.length(), in.k.dim()});
  Tensor dv_head(DType::f32, {in.v.batch(), 1, in.v.length(), in.v.dim()});
  const std::int64_t group = in.q.heads() / in.k.heads();
  for (std::int64_t h = 0; h < in.q.heads(); ++h) {
    dz.push_back(backward_head(in, h, h / group, dq.view(), dk_head, dv_head, options));
    take_sum(dk_head, dk, h / group, h % group != 0);
    take_sum(dv_head, dv, h / group, h % group != 0);
  }
  for (const WidenedResult* result : {&dq, &dk, &dv}) result->store();
}

}  // namespace

void adaptive_span_backward(View dout, View q, View k, View v, View span, View out, View lse,
                            const AdaptiveSpanGradients& gradients, const AdaptiveSpanOptions& options) {
  const BackwardArguments in{dout, q, k, v, span, out, lse};
  check_backward(in, gradients, options);
  if (q.dtype == DType::f64) return reference::adaptive_span_backward(dout, q, k, v, span, gradients, options);
  std::vector<double> dz;
  if (q.heads() != k.heads()) {
    backward_groups(in, gradients, options, dz);
  } else {
    for (std::int64_t h = 0; h < q.heads(); ++h)
      dz.push_back(
          backward_head(in, h, h, gradients.dq, head_view(gradients.dk, h), head_view(gradients.dv, h), options));
  }
  for (std::int64_t h = 0; h < q.heads(); ++h)
    store(gradients.dspan, 0, h, 0, 0, held(dz[static_cast<std::size_t>(h)], load(span, 0, h, 0, 0), options));
}

double adaptive_span_penalty(View span, double loss_weight, const AdaptiveSpanOptions& options,
                             std::optional<MutableView> dspan) {
  const char* op = "adaptive_span_penalty";
  const std::int64_t H = span.heads();
  check_span(op, span, H, options);
  if (!std::isfinite(loss_weight))
    fail(op, "loss_weight is " + std::to_string(loss_weight) + ", expected a finite number");
  if (dspan) {
    check_writable(op, "dspan", *dspan);
    check_shape(op, "dspan", dspan->shape, span.shape);
    check_all_apart(op, {{"dspan", dspan}}, {{"span", span}});
  }
  if (H == 0) return 0;
  const double each = loss_weight / static_cast<double>(H);
  double sum = 0;
  for (std::int64_t h = 0; h < H; ++h) {
    sum += clamped(span, h, options);
    if (dspan) store(*dspan, 0, h, 0, 0, held(each, load(span, 0, h, 0, 0), options));
  }
  return each * sum;
}

// ---- The inner attention ----

namespace {

class AdaptiveSpanInner final : public InnerAttention {
 public:
  explicit AdaptiveSpanInner(const AdaptiveSpanConfig& config)
      : options_(config.options), span_(DType::f32, {1, config.heads, 1, 1}) {
    std::fill_n(span_.data<float>(), config.heads, static_cast<float>(config.initial_span));
  }

  const char* name() const override { return "adaptive span"; }
  std::vector<NamedTensor> parameters() override { return {{"span", span_}}; }

  void forward(View q, View k, View v, MutableView out, std::vector<Tensor>* saved) const override {
    adaptive_span(q, k, v, span_, out, options_, saved_lse(q, saved));
  }

  std::vector<Tensor> backward(View dout, View q, View k, View v, View out, const std::vector<Tensor>& saved,
                               MutableView dq, MutableView dk, MutableView dv) const override {
    check_saved(name(), saved, 1);
    std::vector<Tensor> result;
    result.emplace_back(accumulator_dtype(q.dtype), span_.shape());
    adaptive_span_backward(dout, q, k, v, span_, out, saved[0], {dq, dk, dv, result[0]}, options_);
    return result;
  }

 private:
  AdaptiveSpanOptions options_;
  Tensor span_;
};

}  // namespace

std::shared_ptr<InnerAttention> adaptive_span_inner(const AdaptiveSpanConfig& config) {
  const char* op = "adaptive_span_inner";
  if (config.heads < 1) fail(op, "heads is " + std::to_string(config.heads) + ", expected at least 1");
  if (!(config.initial_span >= 0 && config.initial_span <= config.options.max_span))
    fail(op, "initial_span is " + std::to_string(config.initial_span) + ", expected 0 to " +
                 std::to_string(config.options.max_span) + " (max_span)");
  if (!config.options.mask.rules.empty()) fail(op, "the options have a mask, expected none: padding belongs to a call");
  check_span(op, View{DType::f32, nullptr, {1, 0, 1, 1}}, 0, config.options);
  return std::make_shared<AdaptiveSpanInner>(config);
}

}  // namespace attend
