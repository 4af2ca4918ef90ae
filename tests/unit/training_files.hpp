// Documents, datasets and texts for the tests of training.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "golden_models.hpp"
#include "llm/train/corpus.hpp"
#include "llm/train/dataset.hpp"

namespace attend::llm::test {

// The text of the FileError or InvalidArgument that a call throws; "" when it throws nothing.
template <class F>
std::string refusal_of(const F& call) {
  try {
    call();
  } catch (const io::FileError& error) {
    return error.what();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

inline void expect_in(const std::string& text, const std::string& words) {
  EXPECT_NE(text.find(words), std::string::npos) << "\"" << words << "\" is not in: " << text;
}

class ListOfDocuments : public Documents {
 public:
  explicit ListOfDocuments(std::vector<std::vector<std::int32_t>> list) : list_(std::move(list)) {}
  std::int64_t count() const override { return std::ssize(list_); }
  DocumentTokens document(std::int64_t n) const override { return list_.at(static_cast<std::size_t>(n)); }

 private:
  std::vector<std::vector<std::int32_t>> list_;
};

inline DataInfo write_dataset(const fs::path& folder, const std::vector<std::vector<std::int32_t>>& documents,
                              std::int64_t vocabulary, DataKind kind = DataKind::text, bool replace = false) {
  DatasetWriter writer(folder, replace);
  for (const auto& document : documents) writer.add(document);
  DataInfo info;
  info.kind = kind, info.vocabulary = vocabulary;
  return writer.commit(info);
}

inline std::string story_lines(std::int64_t count, const CorpusOptions& options = {}) {
  std::string text;
  for (std::int64_t n = 0; n < count; ++n) text += corpus_line(options, n) + "\n";
  return text;
}

}  // namespace attend::llm::test
