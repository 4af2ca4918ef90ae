// What a network in training keeps of a batch, and what it works in: planned before it is allocated.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "attend/tensor.hpp"
#include "llm/model/config.hpp"

namespace attend::llm {

struct NetworkOptions {
  DType compute = DType::f32;  // of products and attention: f32, bf16 (parameters and sums stay f32), or f64 for all
  std::int64_t tokens = 0;     // the most that a batch has
  bool recompute = false;      // keep each layer's input alone and make the rest again in backward
  double dropout = 0;          // of what attention and feed-forward add to the residual
  bool frozen = false;         // forward alone: no gradients, and layers share their memory
  double balance = 0;          // how much the balance loss of routed experts counts beside the mean loss of a target
};

// Parameters, their gradients and the residual: sums of many small terms.
inline DType stored_type(DType compute) {
  return compute == DType::f64 ? DType::f64 : DType::f32;
}

// Elements from `first` on of a flat array, as a matrix.
template <class Void>
BasicView<Void> part_of(const BasicView<Void>& flat, std::int64_t first, std::int64_t rows, std::int64_t cols) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  return {flat.dtype, static_cast<Byte*>(flat.data) + first * size_of(flat.dtype), {1, 1, rows, cols}, {0, 0, cols, 1}};
}

// Columns behind the rows of a head that adds a bias: the first holds it.
inline constexpr std::int64_t kBiasColumns = 16;

inline MutableView columns_of(const MutableView& x, std::int64_t first, std::int64_t count) {
  MutableView view = x;
  view.data = static_cast<char*>(view.data) + first * size_of(view.dtype);
  view.shape[3] = count;
  return view;
}

// Views into one piece of memory; without one, only how much they would take.
class Arena {
 public:
  explicit Arena(char* memory = nullptr) : memory_(memory) {}
  MutableView take(DType dtype, std::int64_t rows, std::int64_t cols);  // [1, 1, rows, cols], on a cache line
  std::int32_t* take_numbers(std::int64_t count);
  std::int64_t bytes() const { return used_; }

 private:
  char* memory_;
  char* take_bytes(std::int64_t bytes);
  std::int64_t used_ = 0;
};

// Which experts the tokens of a layer go through. Its rows are the pairs of a token and an expert it uses, by rising
// expert, then by token.
struct Routing {
  MutableView scores;              // [tokens, experts]: the router's softmax
  MutableView weights;             // of each row
  std::int32_t* tokens = nullptr;  // of each row
  std::int32_t* firsts = nullptr;  // the first row of each expert, and the end
  std::int32_t* rows = nullptr;    // [tokens, used]: a token's rows, rising
};

// Of one layer; a row a token.
struct Activations {
  MutableView in, middle;        // the residual that comes in, and between attention and feed-forward
  MutableView sum1, sum2;        // before the norms that come after the parts, where the model has them so
  MutableView normed1, normed2;  // what the parts read
  MutableView qkv_raw;           // queries, keys and values before their norm, where they have one
  MutableView qkv, mixed, lse;
  MutableView wide;  // gate and up side by side, or up; of all experts' rows, then of the shared ones'
  Routing routing;
};

struct NetworkBuffers {
  NetworkBuffers(const ModelConfig& config, const NetworkOptions& options, Arena& arena);

  std::vector<Activations> layers;
  MutableView last, hidden;  // the residual behind the last layer, and what the head reads
  MutableView embedded;      // before the norm of the embeddings
  // Of a masked language model's head: its rows before and behind the activation, what it multiplies with, each row
  // with a 1 behind it, and the embedding with the bias behind it.
  MutableView head_raw, head_active, head_in, head_weight, dhead_in, dhead_active;
  MutableView part, active;                                     // what a part adds to the residual; act(gate) * up
  MutableView router_in, router_out, mix, gathered, dgathered;  // of experts; the last two, of one of them
  MutableView dresidual, dpart, dnormed, dwide, dactive, dmixed, dqkv;
  MutableView dnorm;        // of layer norms and routers: before it is added to another
  MutableView loss, dloss;  // one number a token
  MutableView scratch;      // a gradient that is to be added to another
};

// Bytes that the buffers will take.
std::int64_t buffer_bytes(const ModelConfig& config, const NetworkOptions& options);

}  // namespace attend::llm
