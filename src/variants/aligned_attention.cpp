// Luong's scores as projections before attention or additive attention, and additive attention inside a layer.
#include <cmath>
#include <string>
#include <vector>

#include "attend/additive_attention.hpp"
#include "attend/attention.hpp"
#include "attend/linear.hpp"
#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/elements.hpp"
#include "base/view_parts.hpp"
#include "ops/attention_call.hpp"

namespace attend {
namespace {

constexpr const char* kOp = "aligned_attention";

void check_matrix(const char* what, const std::optional<View>& matrix, std::int64_t heads, std::int64_t out,
                  std::int64_t in, DType dtype) {
  if (!matrix) fail(kOp, std::string(what) + " is missing, expected a matrix for this alignment");
  check_readable(kOp, what, *matrix);
  check_dtype(kOp, what, matrix->dtype, dtype);
  check_shape(kOp, what, matrix->shape, {1, matrix->heads() == 1 ? 1 : heads, out, in});
}

// What the projections need; additive_attention() and attention() check the rest.
void check_call(Alignment alignment, const View& q, const View& k, const AlignmentWeights& weights) {
  check_readable(kOp, "q", q);
  check_readable(kOp, "k", k);
  check_dtype(kOp, "k", k.dtype, q.dtype);
  switch (alignment) {
    case Alignment::dot:
      return;
    case Alignment::general:
      return check_matrix("wq", weights.wq, q.heads(), k.dim(), q.dim(), q.dtype);
    case Alignment::concat:
      if (!weights.w) fail(kOp, "w is missing, expected a vector for this alignment");
      check_readable(kOp, "w", *weights.w);
      check_matrix("wq", weights.wq, q.heads(), weights.w->dim(), q.dim(), q.dtype);
      return check_matrix("wk", weights.wk, k.heads(), weights.w->dim(), k.dim(), q.dtype);
  }
  fail(kOp, "alignment is " + std::to_string(static_cast<int>(alignment)) + ", expected dot, general or concat");
}

AlignmentWeights used_by(Alignment alignment, const AlignmentWeights& weights) {
  if (alignment == Alignment::concat) return weights;
  return {.wq = alignment == Alignment::general ? weights.wq : std::nullopt};
}

// x . matrix^T, with one matrix for all heads or one for each.
Tensor project(const View& x, const View& matrix) {
  Tensor y(x.dtype, {x.batch(), x.heads(), x.length(), matrix.length()});
  if (matrix.heads() == 1) {
    linear(x, matrix, std::nullopt, y);
  } else {
    for (std::int64_t h = 0; h < x.heads(); ++h)
      linear(head_of(x, h), head_of(matrix, h), std::nullopt, head_of(y.view(), h));
  }
  return y;
}

void project_backward(const View& dy, const View& x, const View& matrix, const MutableView& dx,
                      const MutableView& dmatrix) {
  if (matrix.heads() == 1) return linear_backward(dy, x, matrix, {dx, dmatrix, {}});
  for (std::int64_t h = 0; h < x.heads(); ++h)
    linear_backward(head_of(dy, h), head_of(x, h), head_of(matrix, h), {head_of(dx, h), head_of(dmatrix, h), {}});
}

MutableView require(const char* what, const std::optional<MutableView>& gradient) {
  if (!gradient) fail(kOp, std::string(what) + " is missing, expected a place for the gradient of this alignment");
  return *gradient;
}

// dk and dv are made before the projections' gradients: what is wrong with those must show first.
void check_gradients(Alignment alignment, const View& dout, const View& q, const View& k, const View& v,
                     const AlignmentWeights& weights, const View& out, const View& lse, const AlignmentGradients& g) {
  const auto [wq, wk, w] = used_by(alignment, weights);
  for (const auto& [what, x] : {std::pair{"dout", dout}, {"v", v}, {"out", out}, {"lse", lse}})
    check_readable(kOp, what, x);
  const auto check = [&](const char* what, const MutableView& gradient, const View& of) {
    check_writable(kOp, what, gradient);
    check_shape(kOp, what, gradient.shape, of.shape);
  };
  check("dq", g.dq, q);
  check_dtype(kOp, "dq", g.dq.dtype, q.dtype);
  check("dk", g.dk, k);
  check("dv", g.dv, v);
  if (wq) check("dwq", require("dwq", g.dwq), *wq);
  if (wk) check("dwk", require("dwk", g.dwk), *wk);
  if (w) check("dw", require("dw", g.dw), *w);
  if (wq) check_result_dtype(kOp, "dwq", g.dwq->dtype, q.dtype);
  if (wk) {
    check_result_dtype(kOp, "dwk", g.dwk->dtype, q.dtype);
    check_dtype(kOp, "dk", g.dk.dtype, q.dtype);
  }
  check_all_apart(
      kOp,
      {{"dq", g.dq},
       {"dk", g.dk},
       {"dv", g.dv},
       {"dwq", wq ? g.dwq : std::nullopt},
       {"dwk", wk ? g.dwk : std::nullopt},
       {"dw", w ? g.dw : std::nullopt}},
      {{"dout", dout}, {"q", q}, {"k", k}, {"v", v}, {"wq", wq}, {"wk", wk}, {"w", w}, {"out", out}, {"lse", lse}});
}

AttentionOptions plain(const AdditiveAttentionOptions& options) {
  return {.mask = options.mask, .scale = options.scale};
}

class AdditiveInner final : public InnerAttention {
 public:
  explicit AdditiveInner(const AdditiveInnerConfig& config) : options_(config.options) {
    if (config.heads < 1 || config.head_dim < 1)
      fail("additive_attention_inner", "heads is " + std::to_string(config.heads) + " and head_dim " +
                                           std::to_string(config.head_dim) + ", expected at least 1");
    checked_product("additive_attention_inner: w", {config.heads, config.head_dim, size_of(config.dtype)});
    w_ = Tensor(config.dtype, {1, config.heads, 1, config.head_dim});
    const double start = 1 / std::sqrt(static_cast<double>(config.head_dim));
    for (std::int64_t i = 0; i < w_.size(); ++i) store_element(w_.dtype(), w_.view().data, i, start);
  }

  const char* name() const override { return "additive attention"; }
  std::vector<NamedTensor> parameters() override { return {{"w", w_.view()}}; }

  void forward(View q, View k, View v, MutableView out, std::vector<Tensor>* saved) const override {
    if (saved == nullptr) return additive_attention(q, k, w_, v, out, options_);
    Tensor lse(accumulator_dtype(q.dtype), {q.batch(), q.heads(), q.length(), 1});
    additive_attention(q, k, w_, v, out, options_, lse);
    saved->clear();
    saved->push_back(std::move(lse));
  }

  std::vector<Tensor> backward(View dout, View q, View k, View v, View out, const std::vector<Tensor>& saved,
                               MutableView dq, MutableView dk, MutableView dv) const override {
    check_equal("additive_attention_inner", "saved tensors", static_cast<std::int64_t>(saved.size()), 1,
                "forward must have filled them");
    std::vector<Tensor> gradients;
    gradients.emplace_back(accumulator_dtype(q.dtype), w_.shape());
    additive_attention_backward(dout, q, k, w_, v, out, saved[0], {dq, dk, gradients[0], dv}, options_);
    return gradients;
  }

 private:
  AdditiveAttentionOptions options_;
  Tensor w_;
};

}  // namespace

void aligned_attention(Alignment alignment, View q, View k, View v, const AlignmentWeights& weights, MutableView out,
                       const AdditiveAttentionOptions& options, std::optional<MutableView> lse) {
  check_call(alignment, q, k, weights);
  check_readable(kOp, "v", v);
  check_writable(kOp, "out", out);
  if (lse) check_writable(kOp, "lse", *lse);
  const auto [wq, wk, w] = used_by(alignment, weights);
  check_all_apart(kOp, {{"out", out}, {"lse", lse}}, {{"q", q}, {"k", k}, {"v", v}, {"wq", wq}, {"wk", wk}, {"w", w}});
  if (alignment == Alignment::concat)
    return additive_attention(project(q, *weights.wq), project(k, *weights.wk), *weights.w, v, out, options, lse);
  if (alignment == Alignment::dot) return attention(q, k, v, out, plain(options), {.lse = lse});
  attention(project(q, *weights.wq), k, v, out, plain(options), {.lse = lse});
}

void aligned_attention_backward(Alignment alignment, View dout, View q, View k, View v, const AlignmentWeights& weights,
                                View out, View lse, const AlignmentGradients& g,
                                const AdditiveAttentionOptions& options) {
  check_call(alignment, q, k, weights);
  check_gradients(alignment, dout, q, k, v, weights, out, lse, g);
  if (alignment == Alignment::dot)
    return attention_backward(dout, q, k, v, out, lse, {g.dq, g.dk, g.dv, {}, {}}, plain(options));
  const Tensor a = project(q, *weights.wq);
  Tensor da(a.dtype(), a.shape());
  if (alignment == Alignment::general) {
    attention_backward(dout, a, k, v, out, lse, {da, g.dk, g.dv, {}, {}}, plain(options));
    return project_backward(da, q, *weights.wq, g.dq, *g.dwq);
  }
  const Tensor b = project(k, *weights.wk);
  Tensor db(b.dtype(), b.shape());
  additive_attention_backward(dout, a, b, *weights.w, v, out, lse, {da, db, *g.dw, g.dv}, options);
  project_backward(da, q, *weights.wq, g.dq, *g.dwq);
  project_backward(db, k, *weights.wk, g.dk, *g.dwk);
}

std::shared_ptr<InnerAttention> additive_attention_inner(const AdditiveInnerConfig& config) {
  return std::make_shared<AdditiveInner>(config);
}

}  // namespace attend
