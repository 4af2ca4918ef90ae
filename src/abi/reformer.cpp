// The C ABI of Reformer's attention.
#include "attend/reformer.hpp"

#include <algorithm>

#include "abi/abi.hpp"
#include "attend/attend_variants.h"
#include "base/checked.hpp"

using namespace attend::abi;

namespace {

attend_reformer_options default_options() {
  const attend::ReformerOptions defaults;
  attend_reformer_options result{};
  result.rounds = defaults.rounds;
  result.chunk = defaults.chunk;
  return result;
}

attend::ReformerOptions options_of(const char* op, const attend_reformer_options* options) {
  attend::ReformerOptions result;
  if (options == nullptr) return result;
  const attend_reformer_options given =
      attend::abi::read_struct(op, "attend_reformer_options", *options, default_options());
  result.rounds = given.rounds;
  result.chunk = given.chunk;
  result.buckets = attend::abi::integers(op, "buckets", given.buckets, given.bucket_count);
  result.causal = given.causal != 0;
  result.seed = given.seed;
  if (given.has_scale != 0) result.scale = given.scale;
  return result;
}

}  // namespace

void attend_reformer_options_init_sized(attend_reformer_options* options, size_t size) {
  attend::abi::write_struct(options, size, default_options());
}

attend_status attend_reformer(const attend_tensor* q, const attend_tensor* v, const attend_tensor* out,
                              const attend_reformer_options* options, const attend_tensor* lse) {
  const char* op = "attend_reformer";
  return guard([&] {
    attend::reformer(view(op, "q", q), view(op, "v", v), mutable_view(op, "out", out), options_of(op, options),
                     optional_mutable_view(op, "lse", lse));
  });
}

attend_status attend_reformer_backward(const attend_tensor* dout, const attend_tensor* q, const attend_tensor* v,
                                       const attend_tensor* out, const attend_tensor* lse, const attend_tensor* dq,
                                       const attend_tensor* dv, const attend_reformer_options* options) {
  const char* op = "attend_reformer_backward";
  return guard([&] {
    attend::reformer_backward(view(op, "dout", dout), view(op, "q", q), view(op, "v", v), view(op, "out", out),
                              view(op, "lse", lse), {mutable_view(op, "dq", dq), mutable_view(op, "dv", dv)},
                              options_of(op, options));
  });
}

attend_status attend_reformer_hashes(const attend_tensor* q, const attend_reformer_options* options, int32_t* hashes,
                                     int64_t count) {
  const char* op = "attend_reformer_hashes";
  return guard([&] {
    const attend::View q_view = view(op, "q", q);
    const attend::ReformerOptions made = options_of(op, options);
    attend::check_readable(op, "q", q_view);
    const std::int64_t all = attend::checked_product(
        op, {std::max<std::int64_t>(0, made.rounds), q_view.batch(), q_view.heads(), q_view.length()});
    attend::check_equal(op, "number of hashes", count, all, "rounds x batch x heads x length");
    const std::vector<std::int32_t> result = attend::reformer_hashes(q_view, made);
    if (all > 0) std::copy(result.begin(), result.end(), &attend::abi::require(op, "hashes", hashes));
  });
}

attend_status attend_reformer_recall(const attend_tensor* q, const attend_reformer_options* options, int64_t samples,
                                     double* recall) {
  const char* op = "attend_reformer_recall";
  return guard([&] {
    double& result = attend::abi::require(op, "recall", recall);
    result = attend::reformer_recall(view(op, "q", q), options_of(op, options), samples);
  });
}

attend_status attend_inner_reformer(const attend_reformer_options* options, attend_inner** inner) {
  const char* op = "attend_inner_reformer";
  return attend::abi::make(op, inner, [&] { return attend::reformer_inner(options_of(op, options)); });
}
