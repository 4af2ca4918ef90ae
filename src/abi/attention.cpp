// The C ABI of attention.
#include "attend/attention.hpp"

#include "abi/abi.hpp"

namespace attend::abi {

AttentionGradients gradients_of(const char* op, const attend_attention_gradients* given) {
  const attend_attention_gradients g =
      read_struct(op, "attend_attention_gradients", require(op, "gradients", given), {});
  return {mutable_view(op, "dq", g.dq),
          mutable_view(op, "dk", g.dk),
          mutable_view(op, "dv", g.dv),
          optional_mutable_view(op, "dbias", g.dbias),
          optional_mutable_view(op, "dsinks", g.dsinks),
          optional_mutable_view(op, "ddistance_bias", g.ddistance_bias)};
}

}  // namespace attend::abi

using namespace attend::abi;

void attend_attention_options_init_sized(attend_attention_options* options, size_t size) {
  write_struct(options, size, attend::abi::default_attention_options());
}

void attend_attention_gradients_init_sized(attend_attention_gradients* gradients, size_t size) {
  write_struct(gradients, size, {});
}

attend_status attend_attention(const attend_tensor* q, const attend_tensor* k, const attend_tensor* v,
                               const attend_tensor* out, const attend_attention_options* options,
                               const attend_tensor* lse, const attend_tensor* weights) {
  return guard([&] {
    const char* op = "attend_attention";
    const attend::View q_view = view(op, "q", q);
    attend::attention(q_view, view(op, "k", k), view(op, "v", v), mutable_view(op, "out", out),
                      options_of(op, options, q->dtype, false),
                      {optional_mutable_view(op, "lse", lse), optional_mutable_view(op, "weights", weights)});
  });
}

attend_status attend_attention_backward(const attend_tensor* dout, const attend_tensor* q, const attend_tensor* k,
                                        const attend_tensor* v, const attend_tensor* out, const attend_tensor* lse,
                                        const attend_attention_gradients* gradients,
                                        const attend_attention_options* options) {
  return guard([&] {
    const char* op = "attend_attention_backward";
    const attend::AttentionGradients to = gradients_of(op, gradients);
    const attend::View q_view = view(op, "q", q);
    attend::attention_backward(view(op, "dout", dout), q_view, view(op, "k", k), view(op, "v", v), view(op, "out", out),
                               view(op, "lse", lse), to, options_of(op, options, q->dtype, true));
  });
}
