// A model and its runs as JSON, as the explorer's page reads them.
#pragma once

#include <cstdint>
#include <string>

#include "attend/llm/look.hpp"

namespace attend::llm {

std::string model_json(const Model& model, const std::string& name);

struct RunFacts {
  std::string id{};
  std::int64_t prompt_tokens = 0, uncut_tokens = 0;  // uncut: that the text has, more where it was cut
  std::int64_t context = 0;
  const Look* base = nullptr;      // the same tokens without switches, where there are any
  const LookStep* step = nullptr;  // the token that was added last
};
// Tokens, all heads with their kinds, next tokens, the cache.
std::string run_json(LookSession& session, const Look& look, const RunFacts& facts);

}  // namespace attend::llm
