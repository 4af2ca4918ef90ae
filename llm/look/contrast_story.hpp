// Stories in which simple rules ("the last name said") name the wrong word about half of the time.
#pragma once

#include <cstdint>

#include "llm/train/story.hpp"

namespace attend::llm {

// Two persons of different gender, so that every pronoun is clear; which of them it stands for, who is the subject of a
// sentence with two names, and which of two things an adjective belongs to, is random. Only the text, its relations and
// its words are set. Story `number` of a seed: the same on every machine.
Story tell_contrast_story(std::uint64_t seed, std::uint64_t number, Language language);

}  // namespace attend::llm
