// Stories as lines of JSON, in the forms that `prepare` reads.
#pragma once

#include <cstdint>
#include <string>

namespace attend::llm {

enum class CorpusFormat { text, chat, preference };

struct CorpusOptions {
  std::uint64_t seed = 1;
  bool english = true, chinese = true;  // both: every other one
  CorpusFormat format = CorpusFormat::text;
  bool relations = false;
};

// Document `number`, without a line end: the same on every machine, whatever was told before.
std::string corpus_line(const CorpusOptions& options, std::int64_t number);

}  // namespace attend::llm
