// The parameters of a model in training: their names, their shapes, and where each lies in one flat array.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attend/tensor.hpp"
#include "llm/model/config.hpp"

namespace attend::llm {

struct Parameter {
  std::string name;         // as Hugging Face's Llama, Qwen and MiniMind call it
  std::int64_t rows, cols;  // a matrix [out, in]; a vector is one row
  std::int64_t offset = 0;  // in the flat array, in elements
  bool matrix = false;      // multiplies rows: decays, and is rounded where products are in bf16
  double spread = 0;        // standard deviation of its first values; 0: all ones for a norm's weight, else zeros
  bool ones = false;

  std::int64_t count() const { return rows * cols; }
};

// Places in ParameterLayout::all(); none: the model has no such parameter.
using ParameterPlace = std::optional<std::size_t>;

struct NormPlaces {
  ParameterPlace weight, bias;
};
struct LinearPlaces {
  ParameterPlace weight, bias;
};
struct FeedForwardPlaces {
  LinearPlaces in;  // gate and up as one matrix of twice the rows, or up alone
  LinearPlaces down;
};
struct LayerPlaces {
  NormPlaces attention_norm, feed_forward_norm;
  LinearPlaces qkv;  // queries, keys and values as one matrix
  LinearPlaces o;
  ParameterPlace q_norm, k_norm, sinks;
  FeedForwardPlaces feed_forward;
  ParameterPlace router;
  std::vector<FeedForwardPlaces> experts, shared;
};

// Matrices that read the same rows stand one after the other: q, k and v, and gate and up, are one product each. They
// keep names of their own; a ParameterPlace of such a group is that of its first.
class ParameterLayout {
 public:
  explicit ParameterLayout(const ModelConfig& config);
  explicit ParameterLayout(std::vector<Parameter> list);  // of other things than a model; offsets are given here

  const std::vector<Parameter>& all() const { return all_; }
  std::int64_t count() const { return count_; }  // numbers of the flat array, gaps included
  std::int64_t parameters() const;               // without them
  const Parameter& at(std::size_t place) const { return all_[place]; }
  const Parameter* find(std::string_view name) const;

  std::size_t embedding = 0;
  ParameterPlace head, positions, token_types;  // head: none if tied to the embedding
  NormPlaces embedding_norm, final_norm;
  LinearPlaces head_dense;  // of a masked language model, as are the norm and the bias behind it
  NormPlaces head_norm;
  ParameterPlace head_bias;
  std::vector<LayerPlaces> layers;

 private:
  std::size_t add(std::string name, std::int64_t rows, std::int64_t cols, double spread, bool matrix);
  std::size_t add_ones(std::string name, std::int64_t cols);
  NormPlaces add_norm(const ModelConfig& config, const std::string& name);
  LinearPlaces add_linear(const std::vector<std::pair<std::string, std::int64_t>>& outputs, std::int64_t inputs,
                          bool bias, double spread);
  FeedForwardPlaces add_feed_forward(const ModelConfig& config, const std::string& name, std::int64_t width, bool bias);
  LayerPlaces add_layer(const ModelConfig& config, std::int64_t n);

  std::vector<Parameter> all_;
  std::int64_t count_ = 0;
};

// First values: normal with each parameter's spread, ones for norms, from a counter-based generator: the same on every
// machine, and a parameter's do not depend on the others.
void initialise(const ParameterLayout& layout, std::uint64_t seed, MutableView values);

}  // namespace attend::llm
