// What a model needs before any of it is loaded: parameters by part, bytes per token, memory at a length.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attend/tensor.hpp"
#include "llm/cache/model_cache.hpp"
#include "llm/model/config.hpp"

namespace attend::llm {

struct ParameterCounts {
  std::int64_t embedding = 0, positions = 0, queries = 0, keys = 0, values = 0, output = 0, feed_forward = 0,
               router = 0, norms = 0, biases = 0, head = 0;
  std::int64_t attention() const { return queries + keys + values + output; }
  std::int64_t total() const {
    return embedding + positions + attention() + feed_forward + router + norms + biases + head;
  }
  std::int64_t active = 0;  // of them that one token meets: all but the experts it does not use
};
ParameterCounts count_parameters(const ModelConfig& config);

// Keys and values of one token in all layers, as plain numbers of this size.
std::int64_t kv_bytes_per_token(const ModelConfig& config, std::int64_t bytes_per_number);

// Working memory of a forward pass over so many tokens, `logits` rows of them with logits.
std::int64_t working_memory(const ModelConfig& config, std::int64_t tokens, std::int64_t logits, DType cache_dtype);

// Shapes that people ask about by name: "gpt-3", "llama-3-8b", ...
struct NamedShape {
  std::string_view name;
  ModelConfig config;
};
const std::vector<NamedShape>& named_shapes();
const ModelConfig* find_shape(std::string_view name);

}  // namespace attend::llm
