// A model's weights in memory, each in the format of its file, or dequantised with Compute::f32.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

#include "attend/weight.hpp"
#include "llm/model/files.hpp"

namespace attend::llm {

struct Linear {
  Weight weight;
  Tensor bias;  // [1, 1, 1, out], f32; empty: none
};
struct Norm {
  Tensor weight, bias;  // bias empty: none; both empty: no norm
};
struct FeedForward {
  Linear gate, up, down;  // gate empty unless the model is gated
};
struct Layer {
  Norm attention_norm, feed_forward_norm;
  Linear q, k, v, o;
  Tensor q_norm, k_norm;  // [1, 1, 1, head_dim]
  Tensor sinks;           // [1, heads, 1, 1]
  FeedForward feed_forward;
  Linear router;
  std::vector<FeedForward> experts, shared;
};
struct ModelWeights {
  Weight embedding;               // [vocabulary, hidden]
  Weight head;                    // empty: tied to the embedding
  Tensor positions, token_types;  // [1, 1, count, hidden], f32
  Norm embedding_norm, final_norm;
  Linear head_dense;  // of a masked language model, as are the norm and the bias behind it
  Norm head_norm;
  Tensor head_bias;  // [1, 1, 1, vocabulary]
  std::vector<Layer> layers;
  std::vector<double> rope_divisors;  // one per pair; empty: none
};

// Called now and then with the bytes read so far and those of all.
using LoadProgress = std::function<void(std::int64_t done, std::int64_t all)>;

// Every tensor that the config asks for is there, with the shape and a type that fit; FileError names the one that is
// not. Gives their names. ModelFiles asks for it as it is made: whoever holds one may rely on it.
std::unordered_set<std::string> check_weights(const ModelFiles& files);

ModelWeights load_weights(const ModelFiles& files, const LoadProgress& progress = {});

// Bytes the weights will take in memory, from the files' headers alone.
std::int64_t weights_memory(const ModelFiles& files);

}  // namespace attend::llm
