// Linear attention as the inner attention of a layer.
#include <utility>

#include "attend/linear_attention.hpp"
#include "base/check.hpp"
#include "base/elements.hpp"

namespace attend {
namespace {

class LinearInner final : public InnerAttention {
 public:
  explicit LinearInner(LinearAttentionOptions options) : options_(std::move(options)) {
    const char* op = "linear_attention_inner";
    if (options_.beta || options_.initial_state || !options_.lengths.empty())
      fail(op, "beta, initial_state or lengths was given, expected none: a layer has no place for them");
    if (!options_.log_decay) return;
    const View given = *options_.log_decay;
    check_readable(op, "log_decay", given);
    check_shape(op, "log_decay", given.shape, {1, given.heads(), 1, 1});
    log_decay_ = Tensor(DType::f64, given.shape);
    for (std::int64_t h = 0; h < given.heads(); ++h) store(log_decay_, 0, h, 0, 0, load(given, 0, h, 0, 0));
    options_.log_decay = std::as_const(log_decay_).view();
  }

  const char* name() const override { return "linear attention"; }

  void forward(View q, View k, View v, MutableView out, std::vector<Tensor>* saved) const override {
    if (options_.causal || saved == nullptr) return linear_attention(q, k, v, out, options_);
    saved->emplace_back(q.dtype == DType::f64 ? DType::f64 : DType::f32, linear_state_shape(q, k, v, options_));
    linear_attention(q, k, v, out, options_, saved->back().view());
  }
  std::vector<Tensor> backward(View dout, View q, View k, View v, View, const std::vector<Tensor>& saved,
                               MutableView dq, MutableView dk, MutableView dv) const override {
    std::optional<View> state;
    if (!saved.empty()) state = saved.back().view();
    linear_attention_backward(dout, q, k, v, {dq, dk, dv}, options_, {}, state);
    return {};
  }

 private:
  LinearAttentionOptions options_;
  Tensor log_decay_;
};

}  // namespace

std::shared_ptr<InnerAttention> linear_attention_inner(const LinearAttentionOptions& options) {
  return std::make_shared<LinearInner>(options);
}

}  // namespace attend
