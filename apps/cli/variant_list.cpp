// The attention variants that `attend variants` measures.
#include "variant_list.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "attend/attend.hpp"
#include "inputs.hpp"

namespace attend::cli {
namespace {

constexpr std::int64_t kWindow = 1024;  // keys that the windowed ones see, the query's own among them
constexpr std::int64_t kSamples = 64;   // rows of each head that are held against exact attention

using Call = std::function<void(MutableView)>;

// Softmax attention over what a mask leaves. `reach` is how many keys a decoder has to keep; 0: all.
Variant masked(std::string name, std::int64_t heads, std::int64_t dim, std::int64_t reach,
               std::function<Mask(std::int64_t length)> mask, Exact exact = Exact::causal) {
  const double row = 2.0 * static_cast<double>(heads * dim) * sizeof(float);
  return {std::move(name), exact, 0,
          [mask = std::move(mask)](const VariantInputs& in) -> Call {
            return [&in, options = AttentionOptions{.mask = mask(in.length())}](MutableView out) {
              attention(in.q, in.k, in.v, out, options);
            };
          },
          [row, reach](std::int64_t tokens) -> std::optional<double> {
            return row * static_cast<double>(reach == 0 ? tokens : std::min(reach, tokens));
          }};
}

// The softmax attention of row i of every head over all keys the variant could have seen.
Tensor exact_row(const Variant& variant, const VariantInputs& in, std::int64_t i) {
  const std::int64_t H = in.q.shape()[1], D = in.q.shape()[3];
  View q = in.q.view();
  q.data = static_cast<const float*>(q.data) + i * D;
  q.shape[2] = 1;
  const View k = variant.exact == Exact::shared ? in.shared.view() : in.k.view();
  Tensor row(DType::f32, {1, H, 1, D});
  AttentionOptions options;
  if (variant.exact != Exact::full) options.mask = causal(Diagonal::at({i}));
  attention(q, k, in.v, row, options);
  return row;
}

}  // namespace

VariantInputs variant_inputs(std::int64_t heads, std::int64_t dim, std::int64_t length, std::uint64_t seed) {
  Inputs text = make_inputs({.heads = heads, .kv_heads = heads, .length = length, .dim = dim, .seed = seed});
  Tensor shared = text.q.clone();
  for (std::int64_t r = 0; r < heads * length; ++r) {
    float* row = shared.data<float>() + r * dim;
    double square = 0;
    for (std::int64_t d = 0; d < dim; ++d) square += static_cast<double>(row[d]) * static_cast<double>(row[d]);
    const double factor = square > 0 ? 1 / std::sqrt(square) : 0;
    for (std::int64_t d = 0; d < dim; ++d) row[d] = static_cast<float>(row[d] * factor);
  }
  return {std::move(text.q), std::move(text.k), std::move(text.v), std::move(shared)};
}

std::optional<double> error_of_rows(const Variant& variant, const VariantInputs& in, const View& out) {
  if (variant.exact == Exact::own) return std::nullopt;
  const std::int64_t H = in.q.shape()[1], D = in.q.shape()[3], L = in.length();
  const auto* got = static_cast<const float*>(out.data);
  double difference = 0, size = 0;
  for (std::int64_t sample = 0; sample < kSamples; ++sample) {
    const std::int64_t i = (2 * sample + 1) * L / (2 * kSamples);
    const Tensor expected = exact_row(variant, in, i);
    for (std::int64_t n = 0; n < H * D; ++n) {
      const auto truth = static_cast<double>(expected.data<float>()[n]);
      difference += std::pow(static_cast<double>(got[(n / D * L + i) * D + n % D]) - truth, 2);
      size += truth * truth;
    }
  }
  return std::sqrt(difference / std::max(size, 1e-30));
}

std::vector<Variant> variant_list(std::int64_t H, std::int64_t D) {
  std::vector<Variant> list;
  list.push_back(masked("exact attention", H, D, 0, [](auto) { return causal(); }));
  list.back().longest = 131072;  // quadratic
  list.push_back(masked("window " + std::to_string(kWindow), H, D, kWindow,
                        [](auto) { return causal() & window(kWindow - 1, 0); }));
  return list;
}

}  // namespace attend::cli
