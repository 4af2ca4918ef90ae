// Conversations within the world of the stories: told and asked about, small sums, words, greetings.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llm/train/story.hpp"

namespace attend::llm {

struct Turn {
  std::string said, answered;  // by the user; by the assistant
};

// Conversation `number` of a seed about its story; some are about anything but the story.
std::vector<Turn> converse(std::uint64_t seed, std::uint64_t number, Language language, const Story& story);

// Short exercises in looking back at what was said, without a story; easy: at most two things are told before a
// question.
std::vector<Turn> exercises(std::uint64_t seed, std::uint64_t number, Language language, bool easy = false);

}  // namespace attend::llm
