// The words of the generated stories, English and Chinese side by side.
#pragma once

#include <array>
#include <span>
#include <string_view>

namespace attend::llm {

enum class Language { english, chinese };

struct Words {
  std::string_view english, chinese;
  std::string_view in(Language language) const { return language == Language::english ? english : chinese; }
};

enum class Gender { she, he, it };
struct Name {
  Words name;
  Gender gender;
};
struct Pronouns {
  Words subject, object, possessive;
};

// What can be counted or owned. `measure` is the Chinese measure word.
struct Noun {
  Words one;
  std::string_view plural, measure;
};

struct Adjective {
  Words word;
  bool colour;
};

struct Place {
  Words name;
  std::string_view at;  // the English preposition of being there
};

// Something that happens, and what always follows from it. [a] is the first character, as in story.cpp.
struct Cause {
  Words cause, effect;
};

std::span<const Name> person_names();
std::span<const Name> animal_names();
std::span<const Words> person_kinds(Gender gender);
std::span<const Words> animal_kinds();
std::span<const Words> characters();  // adjectives of a person
std::span<const Adjective> adjectives();
std::span<const Noun> objects();
std::span<const Noun> countables();
std::span<const Place> places();
std::span<const Cause> causes();
std::span<const Words> syllables();
const Pronouns& pronouns(Gender gender);

}  // namespace attend::llm
