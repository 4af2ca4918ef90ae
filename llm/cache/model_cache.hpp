// Keys and values of running sequences, for all layers of a model at once.
#pragma once

#include <cstdint>
#include <vector>

#include "attend/paged_kv_cache.hpp"
#include "llm/model/config.hpp"

namespace attend::llm {

struct CacheOptions {
  std::int64_t tokens = 0;  // room for so many, of all sequences together; rounded up to whole pages
  DType dtype = DType::f32;
  bool int8 = false;
  // Streaming: of a long sequence only the first `sinks` tokens and at least the last `stream` are kept, in whole
  // pages, and the sinks' keys are rotated as if the others had never been. 0: all is kept.
  std::int64_t stream = 0, sinks = 4;
};

// One PagedKvCache per layer, changed together: a sequence has the same number in each. In layers with a sliding window
// the pages that no query will look at again are forgotten.
class ModelCache {
 public:
  ModelCache(const ModelConfig& config, const CacheOptions& options);

  const CacheOptions& options() const { return options_; }
  DType dtype() const { return options_.dtype; }
  std::int64_t bytes() const;
  std::int64_t bytes_per_token() const;
  std::int64_t free_pages() const;  // that nobody holds, in the layer that has the fewest

  std::int64_t add();
  // A sequence that begins with the first `length` tokens of another. Possible where can_cut() says so.
  std::int64_t fork(std::int64_t sequence, std::int64_t length);
  void truncate(std::int64_t sequence, std::int64_t length);
  bool can_cut(std::int64_t sequence, std::int64_t length) const;  // what is needed after `length` is still there
  void remove(std::int64_t sequence);
  std::int64_t length(std::int64_t sequence) const;  // tokens so far, forgotten ones included
  std::int64_t pages_to_append(std::int64_t sequence, std::int64_t count) const;  // in the layer that takes the most

  // Forgets what the next token will not see. True when the sinks' keys must be rotated anew: see sinks_of().
  bool slide(std::int64_t sequence);
  std::int64_t sink_tokens() const { return options_.stream > 0 ? sinks_ : 0; }
  std::int64_t forgotten(std::int64_t sequence) const;  // of a stream
  // Keys before their rotation and values of the sinks, [layers, 2, sink_tokens, kv_width]; empty unless streaming.
  std::vector<float>& sinks_of(std::int64_t sequence) { return at(sequence).sinks; }

  PagedKvCache& layer(std::int64_t n) { return layers_[static_cast<std::size_t>(n)]; }

  // What a cache of these options takes for this model: for planning.
  static std::int64_t bytes_for(const ModelConfig& config, const CacheOptions& options);

 private:
  struct Sequence {
    std::vector<std::int64_t> forgotten;  // tokens, by layer
    std::vector<float> sinks;
  };
  Sequence& at(std::int64_t sequence) { return sequences_[static_cast<std::size_t>(sequence)]; }
  const Sequence& at(std::int64_t sequence) const { return sequences_[static_cast<std::size_t>(sequence)]; }
  void place(std::int64_t number, Sequence sequence);

  CacheOptions options_;
  std::int64_t sinks_ = 0;             // rounded up to whole pages
  std::vector<std::int64_t> windows_;  // by layer; 0: none
  std::int64_t kv_width_ = 0;
  std::vector<PagedKvCache> layers_;
  std::vector<Sequence> sequences_;
};

}  // namespace attend::llm
