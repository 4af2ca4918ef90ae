// The C ABI of weights in the formats of model files, and of projections with them.
#include "attend/weight.hpp"

#include "abi/abi.hpp"
#include "attend/embedding.hpp"

struct attend_weight {
  attend::Weight weight;
};

using namespace attend::abi;

namespace {

attend::WeightFormat format_of(const char* op, int32_t format) {
  if (format < ATTEND_WEIGHT_F32 || format > ATTEND_WEIGHT_Q6_K)
    attend::fail(op, "format is " + std::to_string(format) + ", expected one of ATTEND_WEIGHT_* (0-10)");
  return static_cast<attend::WeightFormat>(format);
}
static_assert(static_cast<int>(attend::WeightFormat::bf16) == ATTEND_WEIGHT_BF16);
static_assert(static_cast<int>(attend::WeightFormat::q8_0) == ATTEND_WEIGHT_Q8_0);
static_assert(static_cast<int>(attend::WeightFormat::q6_k) == ATTEND_WEIGHT_Q6_K);

}  // namespace

attend_status attend_weight_block(int32_t format, int64_t* numbers, int64_t* bytes) {
  return guard([&] {
    const attend::WeightBlock block = attend::block_of(format_of("attend_weight_block", format));
    if (numbers != nullptr) *numbers = block.numbers;
    if (bytes != nullptr) *bytes = block.bytes;
  });
}

attend_status attend_weight_bytes(int32_t format, int64_t out, int64_t in, int64_t* bytes) {
  const char* op = "attend_weight_bytes";
  return guard([&] { require(op, "bytes", bytes) = attend::weight_bytes(format_of(op, format), out, in); });
}

attend_status attend_weight_create(int32_t format, int64_t out, int64_t in, const void* data, int64_t bytes,
                                   attend_weight** weight) {
  const char* op = "attend_weight_create";
  return attend::abi::make(op, weight, [&] {
    const attend::WeightFormat of = format_of(op, format);
    if (bytes < 0) attend::fail(op, "bytes is " + std::to_string(bytes) + ", expected 0 or more");
    if (data == nullptr && bytes > 0) attend::fail(op, "data is null, expected " + std::to_string(bytes) + " bytes");
    return attend::Weight(of, out, in, {static_cast<const std::byte*>(data), static_cast<std::size_t>(bytes)});
  });
}

attend_status attend_weight_shape(const attend_weight* weight, int32_t* format, int64_t* out, int64_t* in) {
  return guard([&] {
    const attend::Weight& of = require("attend_weight_shape", "weight", weight).weight;
    if (format != nullptr) *format = static_cast<int32_t>(of.format());
    if (out != nullptr) *out = of.out();
    if (in != nullptr) *in = of.in();
  });
}

attend_status attend_weight_row(const attend_weight* weight, int64_t row, float* y, int64_t count) {
  const char* op = "attend_weight_row";
  return guard([&] {
    const attend::Weight& of = require(op, "weight", weight).weight;
    attend::check_equal(op, "count", count, of.in(), "in of the weight");
    of.row(row, y);
  });
}

attend_status attend_weight_embedding(const attend_weight* weight, const int64_t* tokens, int64_t count,
                                      const attend_tensor* y) {
  const char* op = "attend_weight_embedding";
  return guard([&] {
    attend::embedding(require(op, "weight", weight).weight, attend::abi::integers(op, "tokens", tokens, count),
                      attend::abi::mutable_view(op, "y", y));
  });
}

void attend_weight_free(attend_weight* weight) {
  delete weight;
}

attend_status attend_project(const attend_tensor* x, const attend_projection* projections, int64_t count) {
  const char* op = "attend_project";
  return guard([&] {
    if (count < 0) attend::fail(op, "count is " + std::to_string(count) + ", expected 0 or more");
    const attend_projection* given = count == 0 ? nullptr : &require(op, "projections", projections);
    std::vector<attend::Projection> all;
    for (int64_t n = 0; n < count; ++n) {
      all.push_back({&require(op, "weight", given[n].weight).weight,
                     attend::abi::optional_view(op, "bias", given[n].bias),
                     attend::abi::mutable_view(op, "y", given[n].y)});
    }
    attend::project(attend::abi::view(op, "x", x), all);
  });
}
