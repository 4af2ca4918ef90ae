// What is done to a text before it is cut into words.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace attend::llm {

enum class Normal {
  nfc,
  nfd,
  lowercase,
  strip_combining,   // StripAccents: every mark goes
  strip_nonspacing,  // BertNormalizer's: marks that take no space go
  bert_clean,        // control characters go, white space becomes a space
  bert_chinese,      // a space on either side of each Chinese character
};

class Normalizer {
 public:
  Normalizer() = default;
  explicit Normalizer(std::vector<Normal> steps) : steps_(std::move(steps)) {}
  bool empty() const { return steps_.empty(); }
  std::string apply(std::string_view text) const;  // whole UTF-8, in and out

 private:
  std::vector<Normal> steps_;
};

}  // namespace attend::llm
