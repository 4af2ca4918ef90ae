// The C ABI of positions.
#include "attend/positions.hpp"

#include "abi/abi.hpp"
#include "base/elements.hpp"

using namespace attend::abi;

namespace {

attend_t5_buckets default_buckets() {
  const attend::T5Buckets defaults;
  return {0, defaults.bidirectional ? 1 : 0, defaults.count, defaults.max_distance};
}

attend::T5Buckets buckets_of(const char* op, const attend_t5_buckets* buckets) {
  if (buckets == nullptr) return {};
  const attend_t5_buckets given = attend::abi::read_struct(op, "attend_t5_buckets", *buckets, default_buckets());
  return {given.bidirectional != 0, given.count, given.max_distance};
}

}  // namespace

attend_status attend_sinusoidal(const attend_tensor* out, double theta, const int64_t* positions,
                                int64_t position_count, int64_t first_position) {
  const char* op = "attend_sinusoidal";
  return guard([&] {
    attend::sinusoidal(mutable_view(op, "out", out),
                       {theta, attend::abi::integers(op, "positions", positions, position_count), first_position});
  });
}

attend_status attend_add_positions(const attend_tensor* x, const attend_tensor* table, const attend_tensor* y,
                                   int64_t first_position) {
  const char* op = "attend_add_positions";
  return guard([&] {
    attend::add_positions(view(op, "x", x), view(op, "table", table), mutable_view(op, "y", y), first_position);
  });
}

attend_status attend_add_positions_backward(const attend_tensor* dy, const attend_tensor* dtable,
                                            int64_t first_position) {
  const char* op = "attend_add_positions_backward";
  return guard(
      [&] { attend::add_positions_backward(view(op, "dy", dy), mutable_view(op, "dtable", dtable), first_position); });
}

attend_status attend_alibi_slopes(const attend_tensor* slopes) {
  const char* op = "attend_alibi_slopes";
  return guard([&] {
    const std::int64_t heads = require(op, "slopes", slopes).shape[1];
    const attend::MutableView to = attend::abi::result_view(op, "slopes", slopes, attend::DType::f32, {1, heads, 1, 1});
    attend::abi::copy(attend::alibi_slopes(heads), to);
  });
}

void attend_t5_buckets_init_sized(attend_t5_buckets* buckets, size_t size) {
  attend::abi::write_struct(buckets, size, default_buckets());
}

attend_status attend_t5_bucket(int64_t distance, const attend_t5_buckets* buckets, int64_t* bucket) {
  const char* op = "attend_t5_bucket";
  return guard([&] { require(op, "bucket", bucket) = attend::t5_bucket(distance, buckets_of(op, buckets)); });
}

attend_status attend_t5_bias(const attend_tensor* table, const attend_tensor* out, int64_t first_distance,
                             const attend_t5_buckets* buckets) {
  const char* op = "attend_t5_bias";
  return guard([&] {
    attend::t5_bias(view(op, "table", table), mutable_view(op, "out", out), first_distance, buckets_of(op, buckets));
  });
}

attend_status attend_t5_bias_backward(const attend_tensor* dout, const attend_tensor* dtable, int64_t first_distance,
                                      const attend_t5_buckets* buckets) {
  const char* op = "attend_t5_bias_backward";
  return guard([&] {
    attend::t5_bias_backward(view(op, "dout", dout), mutable_view(op, "dtable", dtable), first_distance,
                             buckets_of(op, buckets));
  });
}
