// Stories as lines of JSON, in the forms that `prepare` reads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "llm/train/train_config.hpp"

namespace attend::llm {

// easy: exercises in which at most two things are told before a question.
enum class CorpusFormat { text, chat, preference, exercises, easy };

struct CorpusOptions {
  std::uint64_t seed = 1;
  bool english = true, chinese = true;  // both: every other one
  CorpusFormat format = CorpusFormat::text;
  bool relations = false;
};

// Document `number`, without a line end: the same on every machine, whatever was told before.
std::string corpus_line(const CorpusOptions& options, std::int64_t number);

// The first `count` as lines of a file, which appears whole. `progress` may throw to stop. Gives the bytes.
std::int64_t write_corpus(const std::filesystem::path& path, const CorpusOptions& options, std::int64_t count,
                          const std::function<void(std::int64_t done)>& progress = {});

// What a stage learns where no texts are brought: stories, talks about them, or pairs of answers.
inline constexpr const char* kBuiltInCorpus = "stories";
CorpusOptions corpus_of(Stage stage);
std::int64_t corpus_count(Stage stage);

}  // namespace attend::llm
