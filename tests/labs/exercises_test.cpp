// Exercises: right answers against formulas written here, answers at the limit of what counts as right, and known
// mistakes that are told apart. What learners who make each mistake would write is in wrong/: check_test.py runs it.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>

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

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

double element(const Array& a, std::initializer_list<std::int64_t> place) {
  std::size_t at = 0, axis = 0;
  for (const std::int64_t index : place)
    at = at * static_cast<std::size_t>(a.shape[axis++]) + static_cast<std::size_t>(index);
  return static_cast<double>(a.data[at]);
}

// Σ exp(score) · value / Σ exp(score) over the keys that are seen; 0 if there are none.
double mean_of(std::int64_t keys, const std::function<bool(std::int64_t)>& seen,
               const std::function<double(std::int64_t)>& score, const std::function<double(std::int64_t)>& value) {
  double largest = -1e300, sum = 0, weighted = 0;
  for (std::int64_t j = 0; j < keys; ++j)
    if (seen(j)) largest = std::max(largest, score(j));
  for (std::int64_t j = 0; j < keys; ++j)
    if (seen(j)) {
      const double weight = std::exp(score(j) - largest);
      sum += weight;
      weighted += weight * value(j);
    }
  return sum == 0 ? 0 : weighted / sum;
}

double right_softmax(const Case& c, const std::vector<std::int64_t>& at) {
  const Array& x = c.arrays.at("x");
  const std::int64_t length = x.shape.back();
  std::int64_t row = 0;
  for (std::size_t n = 0; n + 1 < at.size(); ++n) row = row * x.shape[n] + at[n];
  const auto score = [&](std::int64_t j) {
    return static_cast<double>(x.data[static_cast<std::size_t>(row * length + j)]);
  };
  return mean_of(
      length, [&](std::int64_t j) { return score(j) > -1e30; }, score,
      [&](std::int64_t j) { return j == at.back() ? 1.0 : 0.0; });
}

double right_attention(const Case& c, const std::vector<std::int64_t>& at) {
  const Array &q = c.arrays.at("q"), &k = c.arrays.at("k"), &v = c.arrays.at("v");
  return mean_of(
      k.shape[2],
      [&](std::int64_t j) { return !c.arrays.contains("mask") || element(c.arrays.at("mask"), {at[2], j}) != 0; },
      [&](std::int64_t j) {
        double dot = 0;
        for (std::int64_t d = 0; d < q.shape[3]; ++d)
          dot += element(q, {at[0], at[1], at[2], d}) * element(k, {at[0], at[1], j, d});
        return dot / std::sqrt(static_cast<double>(q.shape[3]));
      },
      [&](std::int64_t j) { return element(v, {at[0], at[1], j, at[3]}); });
}

double right_multi_head(const Case& c, const std::vector<std::int64_t>& at) {
  const Array& x = c.arrays.at("x");
  const std::int64_t width = x.shape[2], heads = c.wholes.at("heads"), size = width / heads;
  const auto projected = [&](const char* weight, std::int64_t token, std::int64_t feature) {
    double sum = 0;
    for (std::int64_t n = 0; n < width; ++n)
      sum += element(x, {at[0], token, n}) * element(c.arrays.at(weight), {feature, n});
    return sum;
  };
  double out = 0;
  for (std::int64_t feature = 0; feature < width; ++feature) {
    const std::int64_t first = feature / size * size;  // of the head that owns it
    out += element(c.arrays.at("wo"), {at[2], feature}) *
           mean_of(
               x.shape[1], [](std::int64_t) { return true; },
               [&](std::int64_t j) {
                 double dot = 0;
                 for (std::int64_t d = 0; d < size; ++d)
                   dot += projected("wq", at[1], first + d) * projected("wk", j, first + d);
                 return dot / std::sqrt(static_cast<double>(size));
               },
               [&](std::int64_t j) { return projected("wv", j, feature); });
  }
  return out;
}

// Feature `d` of a vector of `size` at a position; x(d) before.
double rotated(const std::function<double(std::int64_t)>& x, std::int64_t size, std::int64_t d, double position,
               double theta) {
  const std::int64_t half = size / 2, pair = d % half;
  const double angle = position / std::pow(theta, 2 * static_cast<double>(pair) / static_cast<double>(size));
  return d < half ? x(pair) * std::cos(angle) - x(pair + half) * std::sin(angle)
                  : x(pair) * std::sin(angle) + x(pair + half) * std::cos(angle);
}

double right_rope(const Case& c, const std::vector<std::int64_t>& at) {
  const Array& x = c.arrays.at("x");
  return rotated([&](std::int64_t d) { return element(x, {at[0], at[1], at[2], d}); }, x.shape[3], at[3],
                 element(c.arrays.at("positions"), {at[2]}), c.reals.at("theta"));
}

// However the tokens come, each sees itself and all before it.
double right_cache(const Case& c, const std::vector<std::int64_t>& at) {
  const std::int64_t size = c.arrays.at("q").shape[3];
  const auto feature = [&](const char* name, std::int64_t token, std::int64_t d) {
    return rotated([&](std::int64_t n) { return element(c.arrays.at(name), {at[0], at[1], token, n}); }, size, d,
                   static_cast<double>(token), c.reals.at("theta"));
  };
  return mean_of(
      at[2] + 1, [](std::int64_t) { return true; },
      [&](std::int64_t j) {
        double dot = 0;
        for (std::int64_t d = 0; d < size; ++d) dot += feature("q", at[2], d) * feature("k", j, d);
        return dot / std::sqrt(static_cast<double>(size));
      },
      [&](std::int64_t j) { return element(c.arrays.at("v"), {at[0], at[1], j, at[3]}); });
}

double right_repeat(const Case& c, const std::vector<std::int64_t>& at) {
  return element(c.arrays.at("k"), {at[0], at[1] / c.wholes.at("groups"), at[2], at[3]});
}

double right_mask(const Case& c, const std::vector<std::int64_t>& at) {
  return c.wholes.at("n") - at[1] >= c.wholes.at("m") - at[0] ? 1 : 0;  // counted from the ends
}

TEST(LabExercises, RightAnswersFollowTheFormulas) {
  const std::map<std::string, double (*)(const Case&, const std::vector<std::int64_t>&)> formulas = {
      {"softmax", right_softmax},
      {"scaled_dot_product_attention", right_attention},
      {"multi_head_attention", right_multi_head},
      {"repeat_kv", right_repeat},
      {"rope", right_rope},
      {"causal_mask", right_mask},
      {"KVCache", right_cache}};
  ASSERT_EQ(formulas.size(), all_exercises().size());
  for (const Exercise& e : all_exercises())
    for (const Case& c : e.cases) {
      const Array answer = e.answer(c, {});
      std::vector<std::int64_t> at(answer.shape.size(), 0);
      for (const float got : answer.data) {
        EXPECT_NEAR(static_cast<double>(got), formulas.at(e.name)(c, at), 1e-5) << e.name << ": " << c.what.en;
        for (std::size_t axis = at.size(); axis-- > 0 && ++at[axis] == answer.shape[axis];) at[axis] = 0;
      }
    }
}

TEST(LabExercises, EveryMistakeIsToldApartFromEveryOther) {
  for (const Exercise& e : all_exercises())
    for (const bool cpp : {false, true}) {
      const auto cases = cases_of(e, cpp);
      std::vector<std::string> names = {""};
      std::vector<std::vector<Array>> answers = {answers_of(e, cases, {})};
      for (const Mistake& m : e.mistakes) {
        if (cpp && (m.name == "axis_before_last" || m.name == "additive")) continue;  // cannot be made there
        names.push_back(m.name);
        answers.push_back(answers_of(e, cases, {m.name}));
        EXPECT_EQ(matching_mistakes(e, cases, answers.back()), std::vector<std::string>{m.name}) << e.name;
      }
      for (std::size_t a = 0; a < names.size(); ++a)
        for (std::size_t b = a + 1; b < names.size(); ++b)
          EXPECT_FALSE(alike(answers[a], answers[b])) << e.name << ": '" << names[a] << "' and '" << names[b] << "'";
    }
}

TEST(LabExercises, EveryMistakeHasALearnersFile) {
  for (const Exercise& e : all_exercises())
    for (const Mistake& m : e.mistakes)
      EXPECT_TRUE(std::filesystem::exists(LABS_FILES "/wrong/" + e.short_name + "__" + m.name + ".py"))
          << e.name << " " << m.name;
}

// 1e-3, of numbers beyond 1 relative to them.
TEST(LabExercises, AnswersCountAsRightWithinTheTolerance) {
  const auto same = [](float got, float expected) { return same_answer({{1}, {got}}, {{1}, {expected}}); };
  for (const float sign : {1.0F, -1.0F}) {
    EXPECT_TRUE(same(0.25F + sign * 0.99e-3F, 0.25F));
    EXPECT_FALSE(same(0.25F + sign * 1.01e-3F, 0.25F));
    EXPECT_TRUE(same(sign * 0.99e-3F, 0));
    EXPECT_FALSE(same(sign * 1.01e-3F, 0));
    EXPECT_TRUE(same(200 + sign * 0.199F, 200));
    EXPECT_FALSE(same(200 + sign * 0.201F, 200));
    EXPECT_TRUE(same(-200 + sign * 0.199F, -200));
    EXPECT_FALSE(same(-200 + sign * 0.201F, -200));
  }
  EXPECT_FALSE(same(1, -1));
  EXPECT_TRUE(same(kNan, kNan));
  EXPECT_FALSE(same(kNan, 0));
  EXPECT_FALSE(same(0, kNan));
  EXPECT_TRUE(same(kInfinity, kInfinity));
  EXPECT_FALSE(same(-kInfinity, kInfinity));
  EXPECT_FALSE(same(3e38F, kInfinity));
  EXPECT_FALSE(same(kInfinity, 3e38F));
  EXPECT_FALSE(same(kInfinity, kNan));
}

TEST(LabExercises, EveryElementAndTheShapeCount) {
  const Array expected{{2, 3}, {1, 2, 3, 4, 5, 6}};
  EXPECT_TRUE(same_answer(expected, expected));
  for (std::size_t n = 0; n < expected.data.size(); ++n) {
    Array other = expected;
    other.data[n] += 0.1F;
    EXPECT_FALSE(same_answer(other, expected)) << n;
  }
  EXPECT_FALSE(same_answer({{3, 2}, expected.data}, expected));
  EXPECT_FALSE(same_answer({{6}, expected.data}, expected));
  EXPECT_FALSE(same_answer({{2, 3, 1}, expected.data}, expected));
}

std::vector<Answer> right_answers(const Exercise& e, const std::vector<const Case*>& cases) {
  std::vector<Answer> answers;
  for (const Case* c : cases)
    answers.push_back({Answer::Kind::value, e.answer(*c, {}), e.name == "causal_mask" ? "bool" : "float32", {}, {}});
  return answers;
}

// Five percent off everywhere, or only in the last element of the last case.
TEST(LabExercises, AlmostRightIsWrong) {
  for (const Exercise& e : all_exercises()) {
    const auto cases = cases_of(e, false);
    std::vector<Answer> scaled = right_answers(e, cases), last = scaled;
    EXPECT_EQ(judge_answers(e, cases, scaled).kind, Verdict::Kind::right) << e.name;
    for (Answer& a : scaled)
      for (float& x : a.value.data) x *= 1.05F;
    last.back().value.data.back() += 2e-3F;
    for (const auto& answers : {scaled, last}) {
      const Verdict verdict = judge_answers(e, cases, answers);
      EXPECT_EQ(verdict.kind, Verdict::Kind::wrong) << e.name;
      EXPECT_EQ(verdict.mistakes, std::vector<std::string>{}) << e.name;
      EXPECT_EQ(verdict.lab, e.lab);
    }
    const std::string element = "element " + std::to_string(last.back().value.data.size() - 1) + " is ";
    EXPECT_NE(judge_answers(e, cases, last).text.en.find(element), std::string::npos) << e.name;
    EXPECT_NE(judge_answers(e, cases, last).text.en.find(cases.back()->what.en), std::string::npos) << e.name;
  }
}

// An invalid answer is reported before any wrong number, wherever it is; of several, the first.
TEST(LabExercises, AnythingButAnAnswerIsNamed) {
  using Answered = Answer::Kind;
  using Judged = Verdict::Kind;
  const Exercise& e = *find_exercise("softmax");
  const auto cases = cases_of(e, false);
  const struct {
    Answered kind;
    Judged verdict;
    const char *mistake, *words;
  } kKinds[] = {{Answered::none, Judged::wrong, "returned_nothing", "returns nothing"},
                {Answered::unwritten, Judged::unwritten, "", "not written yet"},
                {Answered::exit, Judged::stopped, "", "left the program"},
                {Answered::memory, Judged::stopped, "", "more memory"},
                {Answered::error, Judged::wrong, "error", "broke"},
                {Answered::missing, Judged::stopped, "", "broke"}};
  for (const auto& one : kKinds)
    for (const std::size_t place : {std::size_t{0}, cases.size() - 1}) {
      std::vector<Answer> answers = right_answers(e, cases);
      answers[place].kind = one.kind;
      answers[place].message = "broke";
      const Verdict verdict = judge_answers(e, cases, answers);
      EXPECT_EQ(verdict.kind, one.verdict) << one.words;
      EXPECT_EQ(verdict.mistakes,
                *one.mistake == '\0' ? std::vector<std::string>{} : std::vector<std::string>{one.mistake});
      EXPECT_NE(verdict.text.en.find(one.words), std::string::npos) << verdict.text.en;
    }
  std::vector<Answer> answers = right_answers(e, cases);
  answers[1].kind = Answered::none;
  answers[2].kind = Answered::unwritten;
  EXPECT_EQ(judge_answers(e, cases, answers).mistakes, std::vector<std::string>{"returned_nothing"});
  answers[0].kind = Answered::error;
  answers[0].message = "[Errno 1] Operation not permitted";
  EXPECT_EQ(judge_answers(e, cases, answers).kind, Judged::stopped);
}

TEST(LabExercises, RightNumbersInTheWrongMannerAreNamed) {
  for (const char* name : {"softmax", "causal_mask"}) {
    const Exercise& e = *find_exercise(name);
    const auto cases = cases_of(e, false);
    for (const std::size_t place : {std::size_t{0}, cases.size() - 1}) {
      std::vector<Answer> answers = right_answers(e, cases);
      answers[place].dtype = e.name == "softmax" ? "float16" : "float64";
      EXPECT_EQ(judge_answers(e, cases, answers).mistakes, std::vector<std::string>{"wrong_dtype"});
      answers[place].changed = {"x"};  // the worse of the two
      EXPECT_EQ(judge_answers(e, cases, answers).mistakes, std::vector<std::string>{"mutated_input"});
      answers[place].value.data.back() += 1;  // numbers come first
      EXPECT_NE(judge_answers(e, cases, answers).mistakes, std::vector<std::string>{"mutated_input"});
    }
  }
}

TEST(LabExercises, Float64IsRightAndSaidWhereNumbersAreAsked) {
  for (const Exercise& e : all_exercises()) {
    const auto cases = cases_of(e, false);
    std::vector<Answer> answers = right_answers(e, cases);
    answers.back().dtype = "float64";
    const Verdict verdict = judge_answers(e, cases, answers);
    EXPECT_EQ(verdict.kind == Verdict::Kind::right, e.name != "causal_mask") << e.name;
    EXPECT_NE(verdict.text.en.find("float64"), std::string::npos) << verdict.text.en;
    EXPECT_NE(verdict.text.zh.find("float64"), std::string::npos) << verdict.text.zh;
  }
}

TEST(LabExercises, AShapeThatDiffersIsShown) {
  const Exercise& e = *find_exercise("repeat_kv");
  const auto cases = cases_of(e, false);
  std::vector<Answer> answers = right_answers(e, cases);
  answers.back().value = {{1}, {5}};
  const Verdict verdict = judge_answers(e, cases, answers);
  EXPECT_NE(verdict.text.en.find("the shape is [1], expected [1, 6, 2, 4]"), std::string::npos) << verdict.text.en;
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
