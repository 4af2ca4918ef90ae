// The C ABI of softmax, RoPE, RMS norm and linear.
#include "abi/abi.hpp"
#include "attend/linear.hpp"
#include "attend/rms_norm.hpp"
#include "attend/rope.hpp"
#include "attend/softmax.hpp"

using namespace attend::abi;

struct attend_rope_table {
  attend::RopeTable table;
};

namespace {

attend_rope_options default_rope_options() {
  attend_rope_options result{};
  result.style = ATTEND_ROPE_HALF_SPLIT;
  result.theta = attend::RopeOptions{}.theta;
  return result;
}

attend::RopeOptions rope_options_of(const char* op, const attend_rope_options* options) {
  attend::RopeOptions result;
  if (options == nullptr) return result;
  const attend_rope_options given =
      attend::abi::read_struct(op, "attend_rope_options", *options, default_rope_options());
  const std::optional<attend::RopeStyle> style = attend::abi::rope_style_of(op, given.style);
  if (!style)
    attend::fail(op, "RoPE style is ATTEND_ROPE_NONE (0), expected ATTEND_ROPE_HALF_SPLIT or _INTERLEAVED (1-2)");
  result.style = *style;
  result.theta = given.theta;
  result.rotary_dim = given.rotary_dim;
  result.positions = attend::abi::integers(op, "positions", given.positions, given.position_count);
  result.first_position = given.first_position;
  result.scaling = attend::abi::rope_scaling_of(op, given.scaling);
  return result;
}

}  // namespace

attend_status attend_softmax(const attend_tensor* x, const attend_tensor* y) {
  const char* op = "attend_softmax";
  return guard([&] { attend::softmax(view(op, "x", x), mutable_view(op, "y", y)); });
}

attend_status attend_softmax_backward(const attend_tensor* dy, const attend_tensor* y, const attend_tensor* dx) {
  const char* op = "attend_softmax_backward";
  return guard([&] { attend::softmax_backward(view(op, "dy", dy), view(op, "y", y), mutable_view(op, "dx", dx)); });
}

void attend_rope_scaling_init_sized(attend_rope_scaling* scaling, size_t size) {
  attend::abi::write_struct(scaling, size, attend::abi::default_rope_scaling());
}

void attend_rope_options_init_sized(attend_rope_options* options, size_t size) {
  attend::abi::write_struct(options, size, default_rope_options());
}

attend_status attend_rope(const attend_tensor* x, const attend_tensor* y, const attend_rope_options* options) {
  const char* op = "attend_rope";
  return guard([&] { attend::rope(view(op, "x", x), mutable_view(op, "y", y), rope_options_of(op, options)); });
}

attend_status attend_rope_backward(const attend_tensor* dy, const attend_tensor* dx,
                                   const attend_rope_options* options) {
  const char* op = "attend_rope_backward";
  return guard(
      [&] { attend::rope_backward(view(op, "dy", dy), mutable_view(op, "dx", dx), rope_options_of(op, options)); });
}

attend_status attend_rope_table_create(int64_t dim, int64_t length, const attend_rope_options* options,
                                       attend_rope_table** table) {
  const char* op = "attend_rope_table_create";
  return attend::abi::make(
      op, table, [&] { return attend_rope_table{attend::RopeTable(dim, length, rope_options_of(op, options))}; });
}

void attend_rope_table_free(attend_rope_table* table) {
  delete table;
}

attend_status attend_rope_by_table(const attend_tensor* x, const attend_tensor* y, const attend_rope_table* table,
                                   int64_t first) {
  const char* op = "attend_rope_by_table";
  return guard([&] {
    attend::rope(view(op, "x", x), mutable_view(op, "y", y), attend::abi::require(op, "table", table).table, first);
  });
}

attend_status attend_rope_by_table_backward(const attend_tensor* dy, const attend_tensor* dx,
                                            const attend_rope_table* table, int64_t first) {
  const char* op = "attend_rope_by_table_backward";
  return guard([&] {
    attend::rope_backward(view(op, "dy", dy), mutable_view(op, "dx", dx),
                          attend::abi::require(op, "table", table).table, first);
  });
}

attend_status attend_rms_norm(const attend_tensor* x, const attend_tensor* weight, const attend_tensor* y, double eps) {
  const char* op = "attend_rms_norm";
  return guard([&] { attend::rms_norm(view(op, "x", x), view(op, "weight", weight), mutable_view(op, "y", y), eps); });
}

attend_status attend_rms_norm_backward(const attend_tensor* dy, const attend_tensor* x, const attend_tensor* weight,
                                       const attend_tensor* dx, const attend_tensor* dweight, double eps) {
  const char* op = "attend_rms_norm_backward";
  return guard([&] {
    attend::rms_norm_backward(view(op, "dy", dy), view(op, "x", x), view(op, "weight", weight),
                              mutable_view(op, "dx", dx), mutable_view(op, "dweight", dweight), eps);
  });
}

attend_status attend_linear(const attend_tensor* x, const attend_tensor* weight, const attend_tensor* bias,
                            const attend_tensor* y) {
  const char* op = "attend_linear";
  return guard([&] {
    attend::linear(view(op, "x", x), view(op, "weight", weight), optional_view(op, "bias", bias),
                   mutable_view(op, "y", y));
  });
}

attend_status attend_linear_backward(const attend_tensor* dy, const attend_tensor* x, const attend_tensor* weight,
                                     const attend_tensor* dx, const attend_tensor* dweight,
                                     const attend_tensor* dbias) {
  const char* op = "attend_linear_backward";
  return guard([&] {
    attend::linear_backward(view(op, "dy", dy), view(op, "x", x), view(op, "weight", weight),
                            {optional_mutable_view(op, "dx", dx), optional_mutable_view(op, "dweight", dweight),
                             optional_mutable_view(op, "dbias", dbias)});
  });
}
