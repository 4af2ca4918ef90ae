// The C ABI of observers: sums over the weights of a row, and the weights tile by tile.
#include "abi/abi.hpp"

using namespace attend::abi;

namespace attend::abi {

RowSums row_sums_of(const char* op, const attend_row_sums& given) {
  const attend_row_sums sums = read_struct(op, "attend_row_sums", given, {});
  if (sums.values == nullptr) fail(op, "row_sums.values is null, expected a function");
  return {mutable_view(op, "row_sums.sums", sums.sums),
          [context = sums.context, values = sums.values](std::int64_t n, ScoreTile<float> tile) {
            const attend_tile place = place_of(tile);
            values(context, n, &place, tile.data, tile.row_stride);
          }};
}

}  // namespace attend::abi

void attend_row_sums_init_sized(attend_row_sums* row_sums, size_t size) {
  attend::abi::write_struct(row_sums, size, {});
}

attend_status attend_attention_row_sums(const attend_tensor* q, const attend_tensor* k, const attend_tensor* v,
                                        const attend_tensor* out, const attend_attention_options* options,
                                        const attend_tensor* lse, const attend_tensor* weights,
                                        const attend_row_sums* row_sums) {
  const char* op = "attend_attention_row_sums";
  return guard([&] {
    const attend::View q_view = view(op, "q", q);
    attend::attention(q_view, view(op, "k", k), view(op, "v", v), mutable_view(op, "out", out),
                      options_of(op, options, q->dtype, false),
                      {optional_mutable_view(op, "lse", lse), optional_mutable_view(op, "weights", weights),
                       attend::abi::row_sums_of(op, require(op, "row_sums", row_sums))});
  });
}

attend_status attend_visit_weights(const attend_tensor* q, const attend_tensor* k, const attend_tensor* lse,
                                   const attend_attention_options* options, attend_weight_visitor visitor,
                                   void* context) {
  const char* op = "attend_visit_weights";
  return guard([&] {
    if (visitor == nullptr) attend::fail(op, "visitor is null, expected a function");
    const attend::View q_view = view(op, "q", q);
    const auto show = [context, visitor](attend::ScoreTile<const float> tile) {
      const attend_tile place = attend::abi::place_of(tile);
      visitor(context, &place, tile.data, tile.row_stride);
    };
    attend::visit_weights(q_view, view(op, "k", k), view(op, "lse", lse), show,
                          options_of(op, options, q->dtype, false));
  });
}
