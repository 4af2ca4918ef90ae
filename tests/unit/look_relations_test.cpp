// Relations of heads against rules that need no model, and the stories in which those rules are wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "llm/look/contrast_story.hpp"
#include "llm/look/relation_rules.hpp"
#include "llm/train/story.hpp"

namespace attend::llm::test {
namespace {

std::string text_of(const Story& story, const Span& span) {
  return story.text.substr(static_cast<std::size_t>(span.begin), static_cast<std::size_t>(span.end - span.begin));
}

Span span_of(const Story& story, const std::string& word, std::size_t from = 0) {
  const auto at = static_cast<std::int64_t>(story.text.find(word, from));
  return {at, at + std::ssize(word)};
}

TEST(LookRelations, RulesNameTheWordTheySay) {
  Story story;
  story.text = "Lily met Tom. She had a red ball. Tom, who knew Lily, saw the ball.";
  const Span lily = span_of(story, "Lily"), tom = span_of(story, "Tom"), she = span_of(story, "She"),
             red = span_of(story, "red"), ball = span_of(story, "ball"), tom_again = span_of(story, "Tom", 20),
             lily_again = span_of(story, "Lily", 20), saw = span_of(story, "saw"), last = span_of(story, "ball", 40);
  story.words = {{WordClass::name, lily},       {WordClass::name, tom},  {WordClass::pronoun, she},
                 {WordClass::adjective, red},   {WordClass::noun, ball}, {WordClass::name, tom_again},
                 {WordClass::name, lily_again}, {WordClass::verb, saw},  {WordClass::noun, last}};
  const auto named = [&](const Span& query, const Span& key) {
    const RuleHits hits = rules_that_name(story, query, key);
    std::set<std::string> names;
    for (std::size_t rule = 0; rule < kRelationRules; ++rule)
      if (hits[rule]) names.insert(rule_name(rule));
    return names;
  };
  using Names = std::set<std::string>;
  EXPECT_EQ(named(she, tom), (Names{"the last name said", "the last name or pronoun said"}));
  EXPECT_EQ(named(she, lily), Names{});
  EXPECT_EQ(named(ball, red), (Names{"the last adjective said"}));
  EXPECT_EQ(named(ball, she), (Names{"the last name or pronoun said", "the first name or pronoun of the sentence"}));
  EXPECT_EQ(named(saw, tom_again), (Names{"the first name or pronoun of the sentence"}));
  EXPECT_EQ(named(saw, lily_again), (Names{"the last name said", "the last name or pronoun said"}));
  EXPECT_EQ(named(last, ball), (Names{"the last noun said", "the last time the same word was said"}));
  EXPECT_EQ(named(lily, tom), Names{});  // a rule sees only what comes before
}

// In ordinary stories one rule is nearly always right; in contrast stories none is.
TEST(LookRelations, InContrastStoriesEveryRuleIsOftenWrong) {
  for (const Language language : {Language::english, Language::chinese}) {
    std::map<RelationKind, std::pair<int, std::array<int, kRelationRules>>> found;
    for (std::uint64_t n = 0; n < 400; ++n) {
      const Story story = tell_contrast_story(3, n, language);
      for (std::size_t w = 1; w < story.words.size(); ++w)
        EXPECT_LE(story.words[w - 1].span.end, story.words[w].span.begin) << story.text;
      for (const Relation& relation : story.relations) {
        auto& [cases, hits] = found[relation.kind];
        ++cases;
        const RuleHits right = rules_that_name(story, relation.from, relation.to);
        for (std::size_t rule = 0; rule < kRelationRules; ++rule) hits[rule] += right[rule];
        EXPECT_LT(relation.to.begin, relation.from.begin) << story.text;
        if (relation.kind == RelationKind::repeat_first) {
          EXPECT_EQ(text_of(story, relation.from), text_of(story, relation.to));
        }
      }
    }
    ASSERT_EQ(found.size(), 4U);
    for (const auto& [kind, counted] : found)
      for (std::size_t rule = 0; rule < kRelationRules; ++rule) {
        if (kind == RelationKind::verb_subject) continue;  // three of five verbs follow their subject
        if (kind == RelationKind::repeat_first && rule == kRelationRules - 1) continue;  // the second time is the last
        EXPECT_LT(counted.second[rule], 0.6 * counted.first) << name_of(kind) << ": " << rule_name(rule);
      }
    const auto& [pronouns, hits] = found[RelationKind::pronoun_antecedent];
    EXPECT_NEAR(static_cast<double>(hits[0]) / pronouns, 0.5, 0.06);
  }
}

TEST(LookRelations, ContrastStoriesReadLikeStories) {
  const Story story = tell_contrast_story(3, 0, Language::english);
  EXPECT_EQ(story.text, tell_contrast_story(3, 0, Language::english).text);
  EXPECT_NE(story.text, tell_contrast_story(3, 1, Language::english).text);
  EXPECT_NE(story.text, tell_contrast_story(4, 0, Language::english).text);
  EXPECT_EQ(std::ranges::count(story.text, '.'), 6) << story.text;
  EXPECT_EQ(story.text.find("  "), std::string::npos) << story.text;
  for (std::size_t at = 0; (at = story.text.find(". ", at)) != std::string::npos; at += 2)
    EXPECT_TRUE(story.text[at + 2] >= 'A' && story.text[at + 2] <= 'Z') << story.text;
}

}  // namespace
}  // namespace attend::llm::test
