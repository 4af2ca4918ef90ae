// The C ABI of adaptive span.
#include "attend/adaptive_span.hpp"

#include "abi/abi.hpp"
#include "attend/attend_variants.h"

using namespace attend::abi;

namespace {

attend_adaptive_span_options default_options() {
  const attend::AdaptiveSpanOptions defaults;
  attend_adaptive_span_options result{};
  result.ramp = defaults.ramp;
  result.max_span = defaults.max_span;
  result.align = ATTEND_LAST_KEY;
  return result;
}

attend::AdaptiveSpanOptions options_of(const char* op, const attend_adaptive_span_options* options) {
  attend::AdaptiveSpanOptions result;
  if (options == nullptr) return result;
  const attend_adaptive_span_options given =
      attend::abi::read_struct(op, "attend_adaptive_span_options", *options, default_options());
  result.ramp = given.ramp;
  result.max_span = given.max_span;
  result.symmetric = given.symmetric != 0;
  result.diagonal = attend::abi::align_of(op, given.align);
  if (given.offset_count != 0)
    result.diagonal = attend::Diagonal::at(attend::abi::integers(op, "offsets", given.offsets, given.offset_count));
  if (given.mask != nullptr) result.mask = given.mask->mask;
  if (given.has_scale != 0) result.scale = given.scale;
  return result;
}

}  // namespace

void attend_adaptive_span_options_init_sized(attend_adaptive_span_options* options, size_t size) {
  attend::abi::write_struct(options, size, default_options());
}

void attend_adaptive_span_gradients_init_sized(attend_adaptive_span_gradients* gradients, size_t size) {
  attend::abi::write_struct(gradients, size, {});
}

attend_status attend_adaptive_span(const attend_tensor* q, const attend_tensor* k, const attend_tensor* v,
                                   const attend_tensor* span, const attend_tensor* out,
                                   const attend_adaptive_span_options* options, const attend_tensor* lse) {
  const char* op = "attend_adaptive_span";
  return guard([&] {
    attend::adaptive_span(view(op, "q", q), view(op, "k", k), view(op, "v", v), view(op, "span", span),
                          mutable_view(op, "out", out), options_of(op, options), optional_mutable_view(op, "lse", lse));
  });
}

attend_status attend_adaptive_span_backward(const attend_tensor* dout, const attend_tensor* q, const attend_tensor* k,
                                            const attend_tensor* v, const attend_tensor* span, const attend_tensor* out,
                                            const attend_tensor* lse, const attend_adaptive_span_gradients* gradients,
                                            const attend_adaptive_span_options* options) {
  const char* op = "attend_adaptive_span_backward";
  return guard([&] {
    const attend_adaptive_span_gradients g = attend::abi::read_struct(
        op, "attend_adaptive_span_gradients", attend::abi::require(op, "gradients", gradients), {});
    attend::adaptive_span_backward(view(op, "dout", dout), view(op, "q", q), view(op, "k", k), view(op, "v", v),
                                   view(op, "span", span), view(op, "out", out), view(op, "lse", lse),
                                   {mutable_view(op, "dq", g.dq), mutable_view(op, "dk", g.dk),
                                    mutable_view(op, "dv", g.dv), mutable_view(op, "dspan", g.dspan)},
                                   options_of(op, options));
  });
}

attend_status attend_adaptive_span_penalty(const attend_tensor* span, double loss_weight,
                                           const attend_adaptive_span_options* options, double* penalty,
                                           const attend_tensor* dspan) {
  const char* op = "attend_adaptive_span_penalty";
  return guard([&] {
    double& result = attend::abi::require(op, "penalty", penalty);
    result = attend::adaptive_span_penalty(view(op, "span", span), loss_weight, options_of(op, options),
                                           optional_mutable_view(op, "dspan", dspan));
  });
}

attend_status attend_inner_adaptive_span(int64_t heads, double initial_span,
                                         const attend_adaptive_span_options* options, attend_inner** inner) {
  const char* op = "attend_inner_adaptive_span";
  return attend::abi::make(op, inner,
                           [&] { return attend::adaptive_span_inner({heads, initial_span, options_of(op, options)}); });
}
