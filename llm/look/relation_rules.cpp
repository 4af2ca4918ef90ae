// The rules, over a story's words before the query.
#include "llm/look/relation_rules.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace attend::llm {
namespace {

constexpr std::array<const char*, kRelationRules> kNames = {
    "the last name said", "the last name or pronoun said", "the first name or pronoun of the sentence",
    "the last noun said", "the last adjective said",       "the last time the same word was said"};

std::string_view text_of(const Story& story, const Span& span) {
  return std::string_view(story.text)
      .substr(static_cast<std::size_t>(span.begin), static_cast<std::size_t>(span.end - span.begin));
}

// Where the sentence of a byte begins.
std::int64_t sentence_of(const Story& story, std::int64_t at) {
  std::size_t begin = 0;
  const std::string_view before = std::string_view(story.text).substr(0, static_cast<std::size_t>(at));
  for (const std::string_view end : {".", "!", "?", "。", "！", "？"})
    if (const std::size_t found = before.rfind(end); found != std::string_view::npos)
      begin = std::max(begin, found + end.size());
  return static_cast<std::int64_t>(begin);
}

}  // namespace

const char* rule_name(std::size_t rule) {
  return kNames[rule];
}

RuleHits rules_that_name(const Story& story, const Span& query, const Span& key) {
  std::array<std::int64_t, kRelationRules> named;  // where the word of each rule begins
  named.fill(-1);
  const std::int64_t sentence = sentence_of(story, query.begin);
  for (const Word& word : story.words) {
    if (word.span.end > query.begin) break;
    const std::int64_t at = word.span.begin;
    const bool name = word.kind == WordClass::name, person = name || word.kind == WordClass::pronoun;
    if (name) named[0] = at;
    if (person) named[1] = at;
    if (person && at >= sentence && named[2] < sentence) named[2] = at;
    if (word.kind == WordClass::noun) named[3] = at;
    if (word.kind == WordClass::adjective) named[4] = at;
    if (text_of(story, word.span) == text_of(story, query)) named[5] = at;
  }
  RuleHits hits;
  for (std::size_t rule = 0; rule < kRelationRules; ++rule) hits[rule] = named[rule] == key.begin;
  return hits;
}

}  // namespace attend::llm
