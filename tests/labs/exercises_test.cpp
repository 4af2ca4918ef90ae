// Exercises: every known mistake shows, is told apart from every other, and pairs of mistakes are found.
#include <gtest/gtest.h>

#include "labs/exercises/check.hpp"

namespace attend::labs {
namespace {

std::vector<const Case*> cases_of(const Exercise& e, bool cpp) {
  std::vector<const Case*> list;
  for (const Case& c : e.cases)
    if (!cpp || c.for_cpp) list.push_back(&c);
  return list;
}

std::vector<Array> answers_of(const Exercise& e, const std::vector<const Case*>& cases, const Mistakes& made) {
  std::vector<Array> list;
  for (const Case* c : cases) list.push_back(e.answer(*c, made));
  return list;
}

bool alike(const std::vector<Array>& a, const std::vector<Array>& b) {
  for (std::size_t n = 0; n < a.size(); ++n)
    if (!same_answer(a[n], b[n])) return false;
  return true;
}

TEST(LabExercises, EveryMistakeIsFoundAsItself) {
  std::size_t count = 0;
  for (const Exercise& e : all_exercises())
    for (const bool cpp : {false, true}) {
      const auto cases = cases_of(e, cpp);
      for (const Mistake& m : e.mistakes) {
        if (cpp && (m.name == "axis_before_last" || m.name == "additive")) continue;  // cannot be made there
        const auto answers = answers_of(e, cases, {m.name});
        EXPECT_FALSE(alike(answers, answers_of(e, cases, {}))) << e.name << " " << m.name << " passes for right";
        EXPECT_EQ(matching_mistakes(e, cases, answers), std::vector<std::string>{m.name}) << e.name;
        ++count;
      }
    }
  EXPECT_GE(count, 100U);
}

TEST(LabExercises, TwoMistakesAtOnceAreFound) {
  const Exercise& e = *find_exercise("sdpa");
  const auto cases = cases_of(e, false);
  EXPECT_EQ(matching_mistakes(e, cases, answers_of(e, cases, {"scaled_by_d", "minus_billion"})),
            (std::vector<std::string>{"scaled_by_d", "minus_billion"}));
}

TEST(LabExercises, NumbersThatNobodyKnowsAreWrongAndSayWhere) {
  const Exercise& e = *find_exercise("softmax");
  const auto cases = cases_of(e, false);
  std::vector<Answer> answers;
  for (const Case* c : cases) answers.push_back({Answer::Kind::value, e.answer(*c, {}), "float32", {}, {}});
  EXPECT_EQ(judge_answers(e, cases, answers).kind, Verdict::Kind::right);
  answers[1].value.data[2] = 7;
  const Verdict verdict = judge_answers(e, cases, answers);
  EXPECT_EQ(verdict.kind, Verdict::Kind::wrong);
  EXPECT_TRUE(verdict.mistakes.empty());
  EXPECT_NE(verdict.text.en.find("element 2 is 7"), std::string::npos) << verdict.text.en;
}

}  // namespace
}  // namespace attend::labs
