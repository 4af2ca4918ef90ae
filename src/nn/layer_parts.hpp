// What the layers share: parameters drawn at random, what a step asks of its options, slices and copies.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "attend/attention.hpp"
#include "attend/multi_head_attention.hpp"
#include "attend/tensor.hpp"
#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/view_parts.hpp"

namespace attend {

void fill(Tensor& tensor, double value);

// Uniform in +-1/sqrt(inputs), from stream number `stream` of the seed: the same on every machine.
void draw_uniform(Tensor& tensor, std::uint64_t seed, std::uint64_t stream, std::int64_t inputs);

// A parameter of a layer whose parameters are the members of a struct.
template <class Parameters>
struct ParameterSpec {
  const char* name;
  Tensor Parameters::* tensor;
  bool wanted;
  Shape shape;
  std::int64_t inputs;  // summed into one output; 0 for a norm
};
// Every parameter there can be, in the order of their random streams.
template <class Parameters, std::size_t Count>
using ParameterSpecs = std::array<ParameterSpec<Parameters>, Count>;

// Zeros, norms as ones.
template <class Parameters, std::size_t Count>
Parameters make_parameters(const ParameterSpecs<Parameters, Count>& specs, DType dtype) {
  for (const auto& spec : specs) {  // before any memory is taken
    checked_product(("bytes of " + std::string(spec.name)).c_str(), {spec.shape[2], spec.shape[3], size_of(dtype)});
  }
  Parameters parameters;
  for (const auto& spec : specs) {
    if (!spec.wanted) continue;
    Tensor& tensor = parameters.*spec.tensor = Tensor(dtype, spec.shape);
    if (spec.inputs == 0) fill(tensor, 1.0);
  }
  return parameters;
}

// Parameters can be assigned by the user: they must still be what the config calls for.
template <class Parameters, std::size_t Count>
void check_parameters(const char* op, const ParameterSpecs<Parameters, Count>& specs, DType dtype,
                      const Parameters& parameters) {
  for (const auto& spec : specs) {
    if (!spec.wanted) continue;
    const Tensor& tensor = parameters.*spec.tensor;
    check_shape(op, spec.name, tensor.shape(), spec.shape);
    check_dtype(op, spec.name, tensor.dtype(), dtype);
  }
}

template <class Parameters, std::size_t Count>
std::int64_t count_parameters(const ParameterSpecs<Parameters, Count>& specs) {
  std::int64_t count = 0;
  for (const auto& spec : specs) {
    if (spec.wanted) count += spec.shape[2] * spec.shape[3];
  }
  return count;
}

template <class Parameters, std::size_t Count>
void draw_parameters(const ParameterSpecs<Parameters, Count>& specs, std::uint64_t seed, Parameters& parameters,
                     std::uint64_t stream = 0) {
  for (const auto& spec : specs) {
    ++stream;  // counted for every parameter: one more in the config does not change the others
    if (!spec.wanted) continue;
    Tensor& tensor = parameters.*spec.tensor;
    if (spec.inputs == 0) {
      fill(tensor, 1.0);
    } else {
      draw_uniform(tensor, seed, stream, spec.inputs);
    }
  }
}

// Those of MultiHeadAttention, for a config with the zeros filled in (multi_head_attention.cpp).
ParameterSpecs<MultiHeadAttentionParameters, 11> attention_parameter_specs(const MultiHeadAttentionConfig& config);

// A cache may only forget: `length` is at most what it holds.
void check_truncate(const char* op, std::int64_t length, std::int64_t held);

// The new tokens are the last of the sequence: masks and ALiBi must count from the last key.
void check_step_options(const char* op, const AttentionOptions& options);

Tensor copy_of(const View& x);

}  // namespace attend
