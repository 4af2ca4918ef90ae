// The C ABI of Linformer.
#include "attend/linformer.hpp"

#include "abi/abi.hpp"
#include "attend/attend_variants.h"

using namespace attend::abi;

namespace {

attend::LinformerOptions options_of(const char* op, const attend_linformer_options* options) {
  attend::LinformerOptions result;
  if (options == nullptr) return result;
  const attend_linformer_options given = attend::abi::read_struct(op, "attend_linformer_options", *options, {});
  if (given.mask != nullptr) result.mask = given.mask->mask;
  if (given.has_scale != 0) result.scale = given.scale;
  return result;
}

}  // namespace

void attend_linformer_options_init_sized(attend_linformer_options* options, size_t size) {
  attend::abi::write_struct(options, size, {});
}

void attend_linformer_gradients_init_sized(attend_linformer_gradients* gradients, size_t size) {
  attend::abi::write_struct(gradients, size, {});
}

attend_status attend_linformer(const attend_tensor* q, const attend_tensor* k, const attend_tensor* v,
                               const attend_tensor* e, const attend_tensor* f, const attend_tensor* out,
                               const attend_linformer_options* options, const attend_tensor* lse,
                               const attend_tensor* keys, const attend_tensor* values) {
  const char* op = "attend_linformer";
  return guard([&] {
    attend::linformer(view(op, "q", q), view(op, "k", k), view(op, "v", v), view(op, "e", e), optional_view(op, "f", f),
                      mutable_view(op, "out", out), options_of(op, options),
                      {optional_mutable_view(op, "lse", lse), optional_mutable_view(op, "keys", keys),
                       optional_mutable_view(op, "values", values)});
  });
}

attend_status attend_linformer_backward(const attend_tensor* dout, const attend_tensor* q, const attend_tensor* k,
                                        const attend_tensor* v, const attend_tensor* e, const attend_tensor* f,
                                        const attend_tensor* out, const attend_tensor* lse, const attend_tensor* keys,
                                        const attend_tensor* values, const attend_linformer_gradients* gradients,
                                        const attend_linformer_options* options) {
  const char* op = "attend_linformer_backward";
  return guard([&] {
    const attend_linformer_gradients g = attend::abi::read_struct(op, "attend_linformer_gradients",
                                                                  attend::abi::require(op, "gradients", gradients), {});
    attend::linformer_backward(
        view(op, "dout", dout), view(op, "q", q), view(op, "k", k), view(op, "v", v), view(op, "e", e),
        optional_view(op, "f", f), view(op, "out", out), view(op, "lse", lse),
        {mutable_view(op, "dq", g.dq), mutable_view(op, "dk", g.dk), mutable_view(op, "dv", g.dv),
         mutable_view(op, "de", g.de), optional_mutable_view(op, "df", g.df)},
        options_of(op, options), {optional_view(op, "keys", keys), optional_view(op, "values", values)});
  });
}

attend_status attend_inner_linformer(int32_t dtype, int64_t length, int64_t rank, int64_t kv_heads, int32_t shared,
                                     uint64_t seed, attend_inner** inner) {
  return attend::abi::make("attend_inner_linformer", inner, [&] {
    return attend::linformer_inner({static_cast<attend::DType>(dtype), length, rank, kv_heads, shared != 0, seed});
  });
}
