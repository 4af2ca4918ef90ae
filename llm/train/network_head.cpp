// The head of a masked language model: logits are embedding . norm(act(dense(row))) + bias, as BertForMaskedLM has
// them.
#include <cstring>

#include "attend/activation.hpp"
#include "attend/add.hpp"
#include "attend/linear.hpp"
#include "base/elements.hpp"
#include "llm/train/network.hpp"

namespace attend::llm {

View Network::head_weight() const {
  if (config_.masked_head) return buffers_.head_weight;
  return weight(layout_.head.value_or(layout_.embedding), config_.vocabulary);
}

// The bias is a column more of what is multiplied: each row has a 1 there.
void Network::masked_head() {
  const std::int64_t H = config_.hidden, V = config_.vocabulary;
  const MutableView raw = rows(buffers_.head_raw), active = rows(buffers_.head_active), in = rows(buffers_.head_in);
  project(layout_.head_dense, rows(buffers_.hidden), raw);
  activation(config_.activation, raw, active);
  norm(layout_.head_norm, active, columns_of(in, 0, H));
  const MutableView& both = buffers_.head_weight;
  convert(head(), columns_of(both, 0, H));
  const std::int64_t bias = layout_.at(*layout_.head_bias).offset, width = H + kBiasColumns;
  for (std::int64_t c = 0; c < kBiasColumns; ++c) {
    for (std::int64_t t = 0; t < T_; ++t) store_element(in.dtype, in.data, t * width + H + c, c == 0 ? 1 : 0);
    for (std::int64_t v = 0; v < V; ++v)
      store_element(both.dtype, both.data, v * width + H + c,
                    c == 0 ? load_element(stored_, parameters_.view().data, bias + v) : 0);
  }
}

// From the gradients of what was multiplied, dhead_in and the first rows of scratch.
void Network::masked_head_backward(const MutableView& dhead, const MutableView& dhidden, bool add_head) {
  const std::int64_t H = config_.hidden, V = config_.vocabulary;
  const MutableView both = part_of(buffers_.scratch, 0, V, H + kBiasColumns), dbias = gradient(*layout_.head_bias, 1);
  const auto give = [&](const MutableView& from, const MutableView& to) {
    if (add_head)
      add(to, from, to);
    else
      convert(from, to);
  };
  give(columns_of(both, 0, H), dhead);
  MutableView column = dbias;
  column.shape = {1, 1, V, 1}, column.strides = {0, 0, 1, 1};
  give(columns_of(both, H, 1), column);
  const MutableView d = rows(buffers_.dhead_active);
  norm_backward(layout_.head_norm, columns_of(rows(buffers_.dhead_in), 0, H), rows(buffers_.head_active), d);
  activation_backward(config_.activation, d, rows(buffers_.head_raw), d);
  project_backward(layout_.head_dense, d, rows(buffers_.hidden), dhidden);
}

}  // namespace attend::llm
