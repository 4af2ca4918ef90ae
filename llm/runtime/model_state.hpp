// What a Model holds.
#pragma once

#include <memory>

#include "attend/llm/model.hpp"
#include "llm/generate/running_batch.hpp"
#include "llm/model/transformer.hpp"

namespace attend::llm {

struct Model::State {
  ModelInfo info;
  MemoryPlan memory;
  Transformer transformer;
  Tokenizer tokenizer;
  std::int64_t context;
  CacheOptions cache;                   // of generate(): room for one sequence
  std::unique_ptr<RunningBatch> batch;  // of generate(): made at its first call, and kept for what it remembers

  const ModelConfig& config() const { return transformer.config(); }
  RunningBatch& running();
  void must_generate() const;  // InvalidArgument for an encoder
};

}  // namespace attend::llm
