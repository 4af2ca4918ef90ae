// Linformer by its formula: two sums over the positions, then attention over what they give.
#include "reference/linformer.hpp"

#include "base/elements.hpp"
#include "reference/attention.hpp"
#include "reference/rows.hpp"

namespace attend::reference {
namespace {

using std::int64_t;

bool kept(const LinformerOptions& options, const View& x, int64_t b, int64_t j) {
  return visible(options.mask, b, 0, 0, j, 1, x.length());  // padding does not ask for the query
}

int64_t head_of(const View& projection, int64_t h) {
  return projection.heads() == 1 ? 0 : h;
}

// y_r = sum over the kept positions j of p_rj x_j
Tensor projected(const View& p, const View& x, const LinformerOptions& options) {
  Tensor y(DType::f64, {x.batch(), x.heads(), p.length(), x.dim()});
  for_each_row(y.shape(), [&](int64_t b, int64_t h, int64_t r) {
    for (int64_t j = 0; j < x.length(); ++j) {
      if (!kept(options, x, b, j)) continue;
      for (int64_t d = 0; d < x.dim(); ++d)
        store(y, b, h, r, d, load(y, b, h, r, d) + load(p, 0, head_of(p, h), r, j) * load(x, b, h, j, d));
    }
  });
  return y;
}

// dx_j = sum over r of p_rj dy_r; dp_rj += dy_r . x_j
void project_backward(const View& dy, const View& p, const View& x, const LinformerOptions& options,
                      const MutableView& dx, Tensor& dp) {
  for_each_row(x.shape, [&](int64_t b, int64_t h, int64_t j) {
    const bool seen = kept(options, x, b, j);
    for (int64_t d = 0; d < x.dim(); ++d) {
      double sum = 0;
      for (int64_t r = 0; seen && r < p.length(); ++r) {
        sum += load(p, 0, head_of(p, h), r, j) * load(dy, b, h, r, d);
        store(dp, 0, head_of(p, h), r, j,
              load(dp, 0, head_of(p, h), r, j) + load(dy, b, h, r, d) * load(x, b, h, j, d));
      }
      store(dx, b, h, j, d, sum);
    }
  });
}

void copy(const View& from, const MutableView& to) {
  for_each_row(from.shape, [&](int64_t b, int64_t h, int64_t i) {
    for (int64_t d = 0; d < from.dim(); ++d) store(to, b, h, i, d, load(from, b, h, i, d));
  });
}

AttentionOptions plain(const LinformerOptions& options) {
  AttentionOptions result;
  result.scale = options.scale;
  return result;
}

}  // namespace

void linformer(const View& q, const View& k, const View& v, const View& e, const std::optional<View>& f,
               const MutableView& out, const LinformerOptions& options, const std::optional<MutableView>& lse) {
  AttentionExtras extras;
  extras.lse = lse;
  reference::attention(q, projected(e, k, options), projected(f.value_or(e), v, options), out, plain(options), extras);
}

void linformer_backward(const View& dout, const View& q, const View& k, const View& v, const View& e,
                        const std::optional<View>& f, const LinformerGradients& gradients,
                        const LinformerOptions& options) {
  const Tensor keys = projected(e, k, options), values = projected(f.value_or(e), v, options);
  Tensor dkeys(DType::f64, keys.shape()), dvalues(DType::f64, values.shape());
  reference::attention_backward(dout, q, keys, values, {gradients.dq, dkeys, dvalues, {}, {}}, plain(options));
  Tensor de(DType::f64, e.shape), df(DType::f64, e.shape);
  project_backward(dkeys, e, k, options, gradients.dk, de);
  project_backward(dvalues, f.value_or(e), v, options, gradients.dv, f ? df : de);
  copy(de, gradients.de);
  if (f) copy(df, *gradients.df);
}

}  // namespace attend::reference
