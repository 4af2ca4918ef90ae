// Prompt look-up: no second model, only the text so far.
#include "llm/generate/prompt_lookup.hpp"

#include <algorithm>

namespace attend::llm {

std::vector<Token> look_up(std::span<const Token> tokens, std::int64_t most) {
  const std::int64_t size = std::ssize(tokens);
  for (const std::int64_t n : {4, 3, 2}) {
    if (size <= n || most < 1) continue;
    const auto pattern = tokens.last(static_cast<std::size_t>(n));
    // From the end: what was said last is likeliest to be said again.
    const auto before = tokens.first(static_cast<std::size_t>(size - 1));
    const auto found = std::find_end(before.begin(), before.end(), pattern.begin(), pattern.end());
    if (found == before.end()) continue;
    const std::int64_t from = (found - before.begin()) + n;
    const std::int64_t count = std::min(most, size - from);
    return {tokens.begin() + from, tokens.begin() + from + count};
  }
  return {};
}

std::int64_t DraftLength::next(std::int64_t most) {
  if (pause_ > 0) {
    --pause_;
    return 0;
  }
  return std::min(most, length_);
}

void DraftLength::learn(std::int64_t guessed, std::int64_t right) {
  if (guessed == 0) return;
  if (right == guessed) {
    length_ = std::min<std::int64_t>(16, length_ * 2);
    misses_ = 0;
  } else if (right == 0) {
    length_ = 2;
    misses_ = std::min<std::int64_t>(6, misses_ + 1);
    pause_ = (std::int64_t{1} << misses_) - 1;  // 1, 3, 7, ... steps
  } else {
    length_ = std::max<std::int64_t>(2, right);
    misses_ = 0;
  }
}

}  // namespace attend::llm
