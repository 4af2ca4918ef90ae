// The C ABI of additive attention and of Luong's scores.
#include "attend/additive_attention.hpp"

#include <string>

#include "abi/abi.hpp"
#include "attend/attend_variants.h"

using namespace attend::abi;

namespace {

attend_additive_options default_options() {
  attend_additive_options result{};
  result.scale = attend::AdditiveAttentionOptions{}.scale;
  return result;
}

attend::AdditiveAttentionOptions options_of(const char* op, const attend_additive_options* options) {
  attend::AdditiveAttentionOptions result;
  if (options == nullptr) return result;
  const attend_additive_options given = read_struct(op, "attend_additive_options", *options, default_options());
  if (given.mask != nullptr) result.mask = given.mask->mask;
  result.scale = given.scale;
  return result;
}

struct Aligned {
  attend::Alignment score;
  attend::AlignmentWeights weights;
};

Aligned alignment_of(const char* op, const attend_alignment* given) {
  const attend_alignment alignment = read_struct(op, "attend_alignment", require(op, "alignment", given), {});
  if (alignment.score < ATTEND_ALIGN_DOT || alignment.score > ATTEND_ALIGN_CONCAT)
    attend::fail(op, "score is " + std::to_string(alignment.score) + ", expected one of ATTEND_ALIGN_* (0-2)");
  return {static_cast<attend::Alignment>(alignment.score),
          {optional_view(op, "wq", alignment.wq), optional_view(op, "wk", alignment.wk),
           optional_view(op, "w", alignment.w)}};
}

}  // namespace

void attend_additive_options_init_sized(attend_additive_options* options, size_t size) {
  write_struct(options, size, default_options());
}

void attend_additive_gradients_init_sized(attend_additive_gradients* gradients, size_t size) {
  write_struct(gradients, size, {});
}

void attend_alignment_init_sized(attend_alignment* alignment, size_t size) {
  write_struct(alignment, size, {});
}

void attend_alignment_gradients_init_sized(attend_alignment_gradients* gradients, size_t size) {
  write_struct(gradients, size, {});
}

attend_status attend_additive_attention(const attend_tensor* a, const attend_tensor* b, const attend_tensor* w,
                                        const attend_tensor* v, const attend_tensor* out,
                                        const attend_additive_options* options, const attend_tensor* lse) {
  const char* op = "attend_additive_attention";
  return guard([&] {
    attend::additive_attention(view(op, "a", a), view(op, "b", b), view(op, "w", w), view(op, "v", v),
                               mutable_view(op, "out", out), options_of(op, options),
                               optional_mutable_view(op, "lse", lse));
  });
}

attend_status attend_additive_attention_backward(const attend_tensor* dout, const attend_tensor* a,
                                                 const attend_tensor* b, const attend_tensor* w, const attend_tensor* v,
                                                 const attend_tensor* out, const attend_tensor* lse,
                                                 const attend_additive_gradients* gradients,
                                                 const attend_additive_options* options) {
  const char* op = "attend_additive_attention_backward";
  return guard([&] {
    const attend_additive_gradients g =
        read_struct(op, "attend_additive_gradients", require(op, "gradients", gradients), {});
    attend::additive_attention_backward(view(op, "dout", dout), view(op, "a", a), view(op, "b", b), view(op, "w", w),
                                        view(op, "v", v), view(op, "out", out), view(op, "lse", lse),
                                        {mutable_view(op, "da", g.da), mutable_view(op, "db", g.db),
                                         mutable_view(op, "dw", g.dw), mutable_view(op, "dv", g.dv)},
                                        options_of(op, options));
  });
}

attend_status attend_aligned_attention(const attend_alignment* alignment, const attend_tensor* q,
                                       const attend_tensor* k, const attend_tensor* v, const attend_tensor* out,
                                       const attend_additive_options* options, const attend_tensor* lse) {
  const char* op = "attend_aligned_attention";
  return guard([&] {
    const Aligned aligned = alignment_of(op, alignment);
    attend::aligned_attention(aligned.score, view(op, "q", q), view(op, "k", k), view(op, "v", v), aligned.weights,
                              mutable_view(op, "out", out), options_of(op, options),
                              optional_mutable_view(op, "lse", lse));
  });
}

attend_status attend_aligned_attention_backward(const attend_alignment* alignment, const attend_tensor* dout,
                                                const attend_tensor* q, const attend_tensor* k, const attend_tensor* v,
                                                const attend_tensor* out, const attend_tensor* lse,
                                                const attend_alignment_gradients* gradients,
                                                const attend_additive_options* options) {
  const char* op = "attend_aligned_attention_backward";
  return guard([&] {
    const Aligned aligned = alignment_of(op, alignment);
    const attend_alignment_gradients g =
        read_struct(op, "attend_alignment_gradients", require(op, "gradients", gradients), {});
    attend::aligned_attention_backward(aligned.score, view(op, "dout", dout), view(op, "q", q), view(op, "k", k),
                                       view(op, "v", v), aligned.weights, view(op, "out", out), view(op, "lse", lse),
                                       {mutable_view(op, "dq", g.dq), mutable_view(op, "dk", g.dk),
                                        mutable_view(op, "dv", g.dv), optional_mutable_view(op, "dwq", g.dwq),
                                        optional_mutable_view(op, "dwk", g.dwk), optional_mutable_view(op, "dw", g.dw)},
                                       options_of(op, options));
  });
}

attend_status attend_inner_additive(int32_t dtype, int64_t heads, int64_t head_dim,
                                    const attend_additive_options* options, attend_inner** inner) {
  const char* op = "attend_inner_additive";
  return attend::abi::make(op, inner, [&] {
    return attend::additive_attention_inner(
        {static_cast<attend::DType>(dtype), heads, head_dim, options_of(op, options)});
  });
}
