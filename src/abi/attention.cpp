// The C ABI of attention.
#include "attend/attention.hpp"

#include "abi/abi.hpp"

using attend::abi::guard;
using attend::abi::mutable_view;
using attend::abi::optional_mutable_view;
using attend::abi::options_of;
using attend::abi::require;
using attend::abi::view;

void attend_attention_options_init(attend_attention_options* options) {
  if (options == nullptr) return;
  *options = {};
  options->struct_size = sizeof(*options);
  options->alibi_align = ATTEND_LAST_KEY;
}

void attend_attention_gradients_init(attend_attention_gradients* gradients) {
  if (gradients == nullptr) return;
  *gradients = {};
  gradients->struct_size = sizeof(*gradients);
}

attend_status attend_attention(const attend_tensor* q, const attend_tensor* k, const attend_tensor* v,
                               const attend_tensor* out, const attend_attention_options* options,
                               const attend_tensor* lse, const attend_tensor* weights) {
  return guard([&] {
    const char* op = "attend_attention";
    const attend::View q_view = view(op, "q", q);
    attend::attention(q_view, view(op, "k", k), view(op, "v", v), mutable_view(op, "out", out),
                      options_of(op, options, q->dtype, false),
                      {optional_mutable_view(lse), optional_mutable_view(weights)});
  });
}

attend_status attend_attention_backward(const attend_tensor* dout, const attend_tensor* q, const attend_tensor* k,
                                        const attend_tensor* v, const attend_tensor* out, const attend_tensor* lse,
                                        const attend_attention_gradients* gradients,
                                        const attend_attention_options* options) {
  return guard([&] {
    const char* op = "attend_attention_backward";
    const attend_attention_gradients& g = require(op, "gradients", gradients);
    attend::abi::check_struct_size(op, "attend_attention_gradients", g);
    const attend::View q_view = view(op, "q", q);
    attend::attention_backward(
        view(op, "dout", dout), q_view, view(op, "k", k), view(op, "v", v), view(op, "out", out), view(op, "lse", lse),
        {mutable_view(op, "dq", g.dq), mutable_view(op, "dk", g.dk), mutable_view(op, "dv", g.dv),
         optional_mutable_view(g.dbias), optional_mutable_view(g.dsinks), optional_mutable_view(g.ddistance_bias)},
        options_of(op, options, q->dtype, true));
  });
}
