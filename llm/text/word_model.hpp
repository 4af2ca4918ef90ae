// What turns one word into tokens.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace attend::llm {

class WordModel {
 public:
  virtual ~WordModel() = default;
  virtual void encode(std::string_view word, std::vector<std::int32_t>& tokens) const = 0;  // appends
};

}  // namespace attend::llm
