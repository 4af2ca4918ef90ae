// Linformer: the projections as products inside one loop over heads and blocks, attention over what they give.
#include "attend/linformer.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>

#include "attend/attention.hpp"
#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/elements.hpp"
#include "base/random.hpp"
#include "base/threads.hpp"
#include "ops/attention_call.hpp"
#include "ops/matmul.hpp"
#include "ops/rows.hpp"
#include "ops/scratch.hpp"
#include "reference/linformer.hpp"
#include "variants/padding.hpp"
#include "variants/widened.hpp"

namespace attend {
namespace {

const char* const kOp = "linformer";
const char* const kBackwardOp = "linformer_backward";
constexpr std::int64_t kRankBlock = 96;     // rows of a projection that an item makes
constexpr std::int64_t kLengthBlock = 192;  // positions whose gradients an item makes; a multiple of the key tile

AttentionOptions plain(const LinformerOptions& options) {
  AttentionOptions result;
  result.scale = options.scale;
  return result;
}

// q, a view like k' and one like v': what attention over the projections will be asked.
struct Projected {
  View k, v;
};
Projected projected_views(const View& k, const View& v, std::int64_t rank) {
  return {{k.dtype, k.data, {k.batch(), k.heads(), rank, k.dim()}, {0, 0, 0, 0}},
          {v.dtype, v.data, {v.batch(), v.heads(), rank, v.dim()}, {0, 0, 0, 0}}};
}

void check_projection(const char* op, const char* what, const View& p, const View& k) {
  check_readable(op, what, p);
  check_dtype(op, what, p.dtype, k.dtype);
  if (p.heads() != 1 || p.batch() != 1) check_shape(op, what, p.shape, {1, k.heads(), p.length(), p.dim()});
  if (p.length() < 1 || p.length() > std::max<std::int64_t>(1, p.dim()))
    fail(op, std::string(what) + " has rank " + std::to_string(p.length()) + " for a length of " +
                 std::to_string(p.dim()) +
                 ", expected a rank from 1 to the length: above it, exact attention costs less");
  if (k.length() > p.dim())
    fail(op, "k length is " + std::to_string(k.length()) + ", expected at most " + std::to_string(p.dim()) +
                 " (the length of " + what + ")");
}

void check_inputs(const char* op, const View& q, const View& k, const View& v, const View& e,
                  const std::optional<View>& f, const LinformerOptions& options) {
  const AttentionOptions attention = plain(options);
  const AttentionCall call(q, k, v, attention);  // for its checks
  check_projection(op, "e", e, k);
  if (f) {
    check_projection(op, "f", *f, k);
    check_shape(op, "f", f->shape, e.shape);
  }
  check_padding_alone(op, options.mask, k.batch(), k.length(),
                      "each projected key mixes all positions, so a query would see what the mask hides (with a causal "
                      "mask, the future)");
}

// ---- Products ----

// One projection and what it is applied to: y = p . x over the kept positions of each head.
struct Projection {
  const WidenedInput& p;
  const WidenedInput& x;
  const LinformerOptions& options;

  std::int64_t B() const { return x.view().batch(); }
  std::int64_t Hk() const { return x.view().heads(); }
  std::int64_t rank() const { return p.view().length(); }
  KeptKeys kept(std::int64_t b) const { return kept_keys(options.mask, b, x.view().length()); }
  FloatMatrix matrix(std::int64_t hk) const { return p.matrix(0, p.view().heads() == 1 ? 0 : hk); }
  // Columns [first, last) of the projection.
  FloatMatrix columns(std::int64_t hk, std::int64_t first, std::int64_t last) const {
    FloatMatrix m = matrix(hk);
    return {m.data + first * m.col_stride, m.rows, last - first, m.row_stride, m.col_stride};
  }
};

FloatMatrix head_matrix(Tensor& y, std::int64_t b, std::int64_t h) {
  const auto& [B, H, R, D] = y.shape();
  return {y.data<float>() + (b * H + h) * R * D, R, D, D};
}

// Items of `project`: a block of rank rows of one head.
std::int64_t project_items(const Projection& job) {
  return job.B() * job.Hk() * divide_up(job.rank(), kRankBlock);
}
void project(const Projection& job, std::int64_t item, Tensor& y, void* scratch) {
  const std::int64_t blocks = divide_up(job.rank(), kRankBlock), head = item / blocks;
  const std::int64_t b = head / job.Hk(), hk = head % job.Hk(), row = item % blocks * kRankBlock;
  const std::int64_t rows = std::min(kRankBlock, job.rank() - row);
  const KeptKeys kept = job.kept(b);
  block_product(job.columns(hk, kept.first, kept.last).part(row, rows),
                job.x.matrix(b, hk).part(kept.first, kept.last - kept.first), head_matrix(y, b, hk).part(row, rows),
                false, scratch);
}

// Rows [first, last) of a head's gradient that no query reached.
void clear_rows(const FloatMatrix& rows, std::int64_t first, std::int64_t last) {
  for (std::int64_t i = first; i < last; ++i)
    for (std::int64_t d = 0; d < rows.cols; ++d) rows.data[i * rows.row_stride + d * rows.col_stride] = 0.0F;
}

// Copies between a block of columns and floats of its own: its rows may lie a power of two apart, where they would
// push each other out of the caches.
void copy_matrix(const FloatMatrix& from, const FloatMatrix& to) {
  for (std::int64_t r = 0; r < from.rows; ++r)
    for (std::int64_t c = 0; c < from.cols; ++c)
      to.data[r * to.row_stride + c * to.col_stride] = from.data[r * from.row_stride + c * from.col_stride];
}

// Where the gradients of one projection go.
struct ProjectionGradient {
  Tensor& dy;
  const WidenedResult& dx;
  const WidenedResult& dp;
  bool add;  // to what dp holds already
};

// Items of `project_backward`: a block of positions for the heads that share a projection.
std::int64_t backward_items(const Projection& job) {
  return job.p.view().heads() * divide_up(job.p.view().dim(), kLengthBlock);
}
std::int64_t backward_scratch_bytes(const Projection& job) {
  return 2 * checked_product("linformer", {job.rank(), kLengthBlock, std::int64_t{sizeof(float)}}) +
         block_product_scratch_bytes();
}
// dx = p^T . dy for each head; dp = sum of dy . x^T over the heads.
void project_backward(const Projection& job, std::int64_t item, const ProjectionGradient& to, void* scratch) {
  const std::int64_t N = job.x.view().length(), L = job.p.view().dim(), blocks = divide_up(L, kLengthBlock);
  const std::int64_t head = item / blocks, first = item % blocks * kLengthBlock,
                     last = std::min(L, first + kLengthBlock);
  auto* memory = static_cast<float*>(scratch);
  const FloatMatrix p{memory, job.rank(), last - first, kLengthBlock};
  const FloatMatrix dp{memory + job.rank() * kLengthBlock, job.rank(), last - first, kLengthBlock};
  void* rest = memory + 2 * job.rank() * kLengthBlock;
  const FloatMatrix all = to.dp.matrix(0, head);
  const FloatMatrix dp_place{all.data + first * all.col_stride, all.rows, last - first, all.row_stride, all.col_stride};
  copy_matrix(job.columns(head, first, last), p);
  if (to.add)
    copy_matrix(dp_place, dp);
  else
    std::fill_n(dp.data, job.rank() * kLengthBlock, 0.0F);
  const bool shared = job.p.view().heads() == 1;
  for (std::int64_t b = 0; b < job.B(); ++b) {
    const KeptKeys kept = job.kept(b);
    const std::int64_t end = std::min(last, N);
    const std::int64_t from = std::clamp(kept.first, first, last), until = std::clamp(kept.last, from, last);
    const auto columns = [&](const FloatMatrix& m) {
      return FloatMatrix{m.data + (from - first), m.rows, until - from, m.row_stride};
    };
    for (std::int64_t hk = shared ? 0 : head; hk < (shared ? job.Hk() : head + 1); ++hk) {
      const FloatMatrix dx = to.dx.matrix(b, hk), dy = head_matrix(to.dy, b, hk);
      clear_rows(dx, first, std::min(from, end));
      clear_rows(dx, until, end);
      if (from == until) continue;
      block_product(columns(p).transposed(), dy, dx.part(from, until - from), false, rest);
      block_product(dy, job.x.matrix(b, hk).part(from, until - from).transposed(), columns(dp), true, rest);
    }
  }
  copy_matrix(dp, dp_place);
}

Tensor projected_like(const Projection& job) {
  return {DType::f32, {job.B(), job.Hk(), job.rank(), job.x.view().dim()}};
}

// k' and v', side by side over the threads.
struct ProjectedTensors {
  Tensor keys, values;
};
ProjectedTensors project_both(const Projection& k, const Projection& v) {
  Tensor keys = projected_like(k), values = projected_like(v);
  const std::int64_t items = project_items(k);
  const Scratch scratch(block_product_scratch_bytes());
  parallel_for(items + project_items(v), scratch.workers(), [&](std::int64_t item, int worker) {
    if (item < items)
      project(k, item, keys, scratch.of(worker));
    else
      project(v, item - items, values, scratch.of(worker));
  });
  return {std::move(keys), std::move(values)};
}

}  // namespace

void linformer(View q, View k, View v, View e, std::optional<View> f, MutableView out, const LinformerOptions& options,
               const LinformerExtras& extras) {
  check_inputs(kOp, q, k, v, e, f, options);
  AttentionExtras inner;
  inner.lse = extras.lse;
  const Projected views = projected_views(k, v, e.length());
  check_outputs(q, views.k, views.v, {}, out, inner);
  const auto check_kept = [&](const char* what, const std::optional<MutableView>& kept, const View& like) {
    if (!kept) return;
    check_writable(kOp, what, *kept);
    check_shape(kOp, what, kept->shape, like.shape);
    check_dtype(kOp, what, kept->dtype, accumulator_dtype(q.dtype));
  };
  check_kept("keys", extras.keys, views.k);
  check_kept("values", extras.values, views.v);
  check_all_apart(kOp, {{"out", out}, {"lse", extras.lse}, {"keys", extras.keys}, {"values", extras.values}},
                  {{"q", q}, {"k", k}, {"v", v}, {"e", e}, {"f", f}});
  if (q.dtype == DType::f64) {
    reference::linformer(q, k, v, e, f, out, options, extras.lse);
    if (extras.keys) copy_rows(reference::linformer_projected(e, k, options), *extras.keys);
    if (extras.values) copy_rows(reference::linformer_projected(f.value_or(e), v, options), *extras.values);
    return;
  }
  const WidenedInput q_in(q), k_in(k), v_in(v), e_in(e);
  const std::optional<WidenedInput> f_in = f ? std::optional<WidenedInput>(std::in_place, *f) : std::nullopt;
  const auto [keys, values] = project_both({e_in, k_in, options}, {f_in ? *f_in : e_in, v_in, options});
  const WidenedResult result(out);
  attention(q_in.view(), keys, values, result.view(), plain(options), inner);
  result.store();
  if (extras.keys) copy_rows(keys, *extras.keys);
  if (extras.values) copy_rows(values, *extras.values);
}

namespace {

void check_gradients(const View& q, const View& k, const View& v, const View& e, const std::optional<View>& f,
                     const LinformerGradients& gradients) {
  const auto check = [&](const char* what, const MutableView& gradient, const View& of) {
    check_writable(kBackwardOp, what, gradient);
    check_shape(kBackwardOp, what, gradient.shape, of.shape);
  };
  check("dq", gradients.dq, q);
  check("dk", gradients.dk, k);
  check("dv", gradients.dv, v);
  check("de", gradients.de, e);
  if (gradients.df.has_value() != f.has_value())
    fail(kBackwardOp, f ? "df is missing, expected a place for the gradient of f"
                        : "df is asked for, but there is no f: de holds the gradient of the one projection");
  if (f) check("df", *gradients.df, *f);
  for (const auto& [what, gradient] : {std::pair{"dq", gradients.dq}, {"dk", gradients.dk}, {"dv", gradients.dv}})
    check_dtype(kBackwardOp, what, gradient.dtype, q.dtype);
  for (const auto& [what, gradient] : {std::pair{"de", gradients.de}, {"df", gradients.df.value_or(gradients.de)}})
    if (gradient.dtype != q.dtype)
      check_dtype(kBackwardOp, what, gradient.dtype, q.dtype == DType::f64 ? DType::f64 : DType::f32);
}

void check_projected(const LinformerProjected& projected, const Projected& like, DType dtype) {
  if (projected.keys.has_value() != projected.values.has_value())
    fail(kBackwardOp, std::string(projected.keys ? "values" : "keys") + " are missing, expected both or neither");
  if (!projected.keys) return;
  for (const auto& [what, x, shape] :
       {std::tuple{"keys", *projected.keys, like.k.shape}, {"values", *projected.values, like.v.shape}}) {
    check_readable(kBackwardOp, what, x);
    check_shape(kBackwardOp, what, x.shape, shape);
    check_dtype(kBackwardOp, what, x.dtype, accumulator_dtype(dtype));
  }
}

}  // namespace

void linformer_backward(View dout, View q, View k, View v, View e, std::optional<View> f, View out, View lse,
                        const LinformerGradients& gradients, const LinformerOptions& options,
                        const LinformerProjected& projected) {
  check_inputs(kBackwardOp, q, k, v, e, f, options);
  check_results(kBackwardOp, dout, out, lse, {q.batch(), q.heads(), q.length(), v.dim()}, q.dtype);
  check_gradients(q, k, v, e, f, gradients);
  check_projected(projected, projected_views(k, v, e.length()), q.dtype);
  check_all_apart(
      kBackwardOp,
      {{"dq", gradients.dq}, {"dk", gradients.dk}, {"dv", gradients.dv}, {"de", gradients.de}, {"df", gradients.df}},
      {{"q", q},
       {"k", k},
       {"v", v},
       {"e", e},
       {"f", f},
       {"dout", dout},
       {"out", out},
       {"lse", lse},
       {"keys", projected.keys},
       {"values", projected.values}});
  if (q.dtype == DType::f64) return reference::linformer_backward(dout, q, k, v, e, f, gradients, options);

  const WidenedInput q_in(q), k_in(k), v_in(v), e_in(e), dout_in(dout), out_in(out);
  const std::optional<WidenedInput> f_in = f ? std::optional<WidenedInput>(std::in_place, *f) : std::nullopt;
  const Projection k_job{e_in, k_in, options}, v_job{f_in ? *f_in : e_in, v_in, options};
  const ProjectedTensors made = projected.keys ? ProjectedTensors() : project_both(k_job, v_job);
  const View keys = projected.keys.value_or(made.keys), values = projected.values.value_or(made.values);
  Tensor dkeys(DType::f32, keys.shape), dvalues(DType::f32, values.shape);
  const WidenedResult dq(gradients.dq), dk(gradients.dk), dv(gradients.dv), de(gradients.de);
  const std::optional<WidenedResult> df = f ? std::optional<WidenedResult>(std::in_place, *gradients.df) : std::nullopt;
  attention_backward(dout_in.view(), q_in.view(), keys, values, out_in.view(), lse, {dq.view(), dkeys, dvalues, {}, {}},
                     plain(options));

  const std::int64_t items = backward_items(k_job);
  const ProjectionGradient of_k{dkeys, dk, de, false}, of_v{dvalues, dv, df ? *df : de, !df};
  const Scratch scratch(backward_scratch_bytes(k_job));
  parallel_for(df ? 2 * items : items, scratch.workers(), [&](std::int64_t item, int worker) {
    if (item < items) project_backward(k_job, item, of_k, scratch.of(worker));
    // One projection for both: its two parts are added by whoever owns the block.
    if (item >= items || !df) project_backward(v_job, item % items, of_v, scratch.of(worker));
  });
  for (const WidenedResult* result : {&dq, &dk, &dv, &de}) result->store();
  if (df) df->store();
}

// ---- The inner attention ----

namespace {

class LinformerInner final : public InnerAttention {
 public:
  explicit LinformerInner(const LinformerConfig& config)
      : e_(drawn(config, 0)), f_(config.shared ? Tensor() : drawn(config, 1)) {}

  const char* name() const override { return "Linformer"; }

  std::vector<NamedTensor> parameters() override {
    std::vector<NamedTensor> result{{"e", e_}};
    if (!f_.empty()) result.push_back({"f", f_});
    return result;
  }

  void forward(View q, View k, View v, MutableView out, std::vector<Tensor>* saved) const override {
    if (!saved) return linformer(q, k, v, e_, f(), out);
    const DType wide = accumulator_dtype(q.dtype);
    const std::int64_t rank = e_.shape()[2];
    saved->clear();
    saved->emplace_back(wide, Shape{q.batch(), q.heads(), q.length(), 1});
    saved->emplace_back(wide, Shape{k.batch(), k.heads(), rank, k.dim()});
    saved->emplace_back(wide, Shape{v.batch(), v.heads(), rank, v.dim()});
    linformer(q, k, v, e_, f(), out, {}, {(*saved)[0].view(), (*saved)[1].view(), (*saved)[2].view()});
  }

  std::vector<Tensor> backward(View dout, View q, View k, View v, View out, const std::vector<Tensor>& saved,
                               MutableView dq, MutableView dk, MutableView dv) const override {
    check_saved(name(), saved, 3);
    std::vector<Tensor> result;
    for (std::size_t n = 0; n < (f_.empty() ? 1 : 2); ++n) result.emplace_back(accumulator_dtype(q.dtype), e_.shape());
    LinformerGradients gradients{dq, dk, dv, result[0], {}};
    if (!f_.empty()) gradients.df = result[1].view();
    linformer_backward(dout, q, k, v, e_, f(), out, saved[0], gradients, {}, {saved[1].view(), saved[2].view()});
    return result;
  }

 private:
  static Tensor drawn(const LinformerConfig& config, std::uint64_t which) {
    Tensor p(config.dtype, {1, config.kv_heads, config.rank, config.length});
    const double deviation = 1 / std::sqrt(static_cast<double>(config.length));
    const std::int64_t count = p.size();
    for (std::int64_t n = 0; n < count; ++n)
      store_element(config.dtype, p.view().data, n,
                    deviation * normal(config.seed, static_cast<std::uint64_t>(2 * n) + which));
    return p;
  }
  std::optional<View> f() const { return f_.empty() ? std::nullopt : std::optional<View>(f_.view()); }

  Tensor e_, f_;
};

}  // namespace

std::shared_ptr<InnerAttention> linformer_inner(const LinformerConfig& config) {
  const char* op = "linformer_inner";
  if (config.length < 1) fail(op, "length is " + std::to_string(config.length) + ", expected at least 1");
  if (config.kv_heads < 1) fail(op, "kv_heads is " + std::to_string(config.kv_heads) + ", expected at least 1");
  if (config.rank < 1 || config.rank > config.length)
    fail(op, "rank is " + std::to_string(config.rank) + ", expected 1 to " + std::to_string(config.length) +
                 " (length): above it, exact attention costs less");
  return std::make_shared<LinformerInner>(config);
}

}  // namespace attend
