// The quiz: its questions are whole, its computed answers agree with the key, its progress survives.
#include "labs/quiz/quiz.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <set>

#include "attend/error.hpp"
#include "io/json.hpp"
#include "labs/lab.hpp"

namespace attend::labs {
namespace {

TEST(Quiz, QuestionsAreWhole) {
  std::set<std::string> names, labs;
  std::size_t computed = 0, predicted = 0;
  for (const Question& q : all_questions()) {
    EXPECT_TRUE(names.insert(q.name).second) << q.name;
    EXPECT_NE(find_lab(q.lab), nullptr) << q.name << " " << q.lab;
    EXPECT_FALSE(q.why.en.empty() || q.why.zh.empty()) << q.name;
    labs.insert(q.lab);
    computed += q.computed ? 1 : 0;
    predicted += q.kind == Question::Kind::predict ? 1 : 0;
    if (q.kind == Question::Kind::choice) {
      EXPECT_EQ(q.choices.size(), 4U) << q.name;
      EXPECT_LT(q.right, q.choices.size()) << q.name;
    } else {
      EXPECT_TRUE(std::isfinite(q.answer)) << q.name;
      EXPECT_GT(q.tolerance, 0) << q.name;
    }
  }
  EXPECT_GE(names.size(), 60U);
  EXPECT_GE(computed, 30U);
  EXPECT_GE(predicted, 10U);
  EXPECT_EQ(labs.size(), all_labs().size()) << "every lab is asked about";
}

// The key, written down by hand: what the engine computed has to agree.
TEST(Quiz, ComputedAnswersAgreeWithTheKey) {
  const std::pair<const char*, const char*> key[] = {{"row-sum", "1"},
                                                     {"softmax-zeros", "0.25"},
                                                     {"softmax-shift", "0.665"},
                                                     {"exp-overflow", "88"},
                                                     {"masked-row", "0"},
                                                     {"minus-billion", "c"},
                                                     {"two-keys", "0.75"},
                                                     {"sd-512", "22.6"},
                                                     {"var-scaled", "1"},
                                                     {"outside-one", "31.7"},
                                                     {"scaled-weight", "0.5"},
                                                     {"unscaled-weight", "0.964"},
                                                     {"causal-pairs", "21"},
                                                     {"causal-last", "5"},
                                                     {"causal-first", "1"},
                                                     {"which-align", "c"},
                                                     {"window-seen", "3"},
                                                     {"causal-mean", "2.5"},
                                                     {"window-mean", "3.5"},
                                                     {"heads-parameters", "c"},
                                                     {"heads-ratio", "a"},
                                                     {"rank", "64"},
                                                     {"rank-parameters", "b"},
                                                     {"gqa-head", "1"},
                                                     {"gqa-head-3", "0"},
                                                     {"gqa-qkv", "50"},
                                                     {"gqa-kv", "75"},
                                                     {"kv-bytes", "4096"},
                                                     {"stride-head", "8"},
                                                     {"stride-length", "32"},
                                                     {"stride-packed", "80"},
                                                     {"rope-run", "-0.42"},
                                                     {"rope-zero", "3"},
                                                     {"rope-slow", "6283"},
                                                     {"cache-1000", "1,024,000"},
                                                     {"matrix-64k", "16"},
                                                     {"double-length", "c"},
                                                     {"path", "1"},
                                                     {"linear-state", "528"},
                                                     {"gpt3-embedding", "617,558,016"},
                                                     {"gpt3-head-dim", "128"},
                                                     {"gpt3-queries", "c"},
                                                     {"gpt3-attention", "33 %"},
                                                     {"minimind3", "64"}};
  std::set<std::string> seen;
  for (const auto& [name, answer] : key) {
    const Question* q = find_question(name);
    ASSERT_NE(q, nullptr) << name;
    EXPECT_EQ(grade(*q, answer), Grade::right) << name << ": computed " << right_answer(*q, Language::en);
    seen.insert(name);
  }
  for (const Question& q : all_questions())
    if (q.computed) {
      EXPECT_TRUE(seen.contains(q.name)) << q.name << " is not in the key";
    }
}

TEST(Quiz, NoLetterIsAGoodGuess) {
  std::map<std::size_t, std::size_t> letters;
  std::size_t choices = 0;
  for (const Question& q : all_questions())
    if (q.kind == Question::Kind::choice) {
      ++letters[q.right];
      ++choices;
    }
  for (const auto& [letter, count] : letters) EXPECT_LT(2 * count, choices) << letter;
}

// Questions are asked in any order: none may lean on the one before it.
TEST(Quiz, QuestionsStandAlone) {
  for (const Question& q : all_questions()) {
    for (const char* opening : {"And ", "The same ", "How many times as many as"})
      EXPECT_FALSE(q.text.en.starts_with(opening)) << q.name;
    EXPECT_FALSE(q.text.zh.ends_with("呢？")) << q.name;
  }
}

TEST(Quiz, GradesWhatPeopleType) {
  const Question& number = *find_question("sd-512");
  EXPECT_EQ(grade(number, "22.63"), Grade::right);
  EXPECT_EQ(grade(number, "+22.6"), Grade::right);
  EXPECT_EQ(grade(number, "512"), Grade::wrong);
  for (const char* bad : {"", "abc", "1e999", "nan", "22.6x"}) EXPECT_EQ(grade(number, bad), Grade::unreadable) << bad;
  const Question& choice = *find_question("equivariant");
  ASSERT_EQ(choice.choices[choice.right].en, "equivariant");
  ASSERT_EQ(choice.right, 2U);
  EXPECT_EQ(grade(choice, "c"), Grade::right);
  EXPECT_EQ(grade(choice, "C"), Grade::right);
  EXPECT_EQ(grade(choice, "3"), Grade::right);
  EXPECT_EQ(grade(choice, "a"), Grade::wrong);
  for (const char* bad : {"", "e", "5", "ab", "\xe4"}) EXPECT_EQ(grade(choice, bad), Grade::unreadable) << bad;
}

std::string typed(double value) {
  return fmt::format("{:.17g}", value);
}

TEST(Quiz, NumbersAreRightUpToTheirToleranceAndNoFurther) {
  for (const Question& q : all_questions()) {
    if (q.kind == Question::Kind::choice) continue;
    for (const double sign : {-1.0, 1.0}) {
      EXPECT_EQ(grade(q, typed(q.answer + sign * 0.99 * q.tolerance)), Grade::right) << q.name;
      EXPECT_EQ(grade(q, typed(q.answer + sign * 1.01 * q.tolerance)), Grade::wrong) << q.name;
    }
    EXPECT_EQ(grade(q, typed(q.answer)), Grade::right) << q.name;
    EXPECT_EQ(grade(q, typed(-q.answer - 2 * q.tolerance)), Grade::wrong) << q.name;
  }
  const Question& quarter = *find_question("softmax-zeros");
  EXPECT_EQ(grade(quarter, "0.2375"), Grade::wrong);  // 5 % off
  EXPECT_EQ(grade(quarter, "0.2625"), Grade::wrong);
  Question exact = quarter;  // a limit that doubles hold
  exact.answer = 2;
  exact.tolerance = 0.5;
  EXPECT_EQ(grade(exact, "2.5"), Grade::right);
  EXPECT_EQ(grade(exact, "1.5"), Grade::right);
  EXPECT_EQ(grade(exact, "2.5000001"), Grade::wrong);
}

// A count is right or wrong; of what is measured or rounded, 2.5 % at most, but where the question asks "about".
TEST(Quiz, TolerancesAreNarrow) {
  const std::set<std::string> kAbout = {"outside-one", "rope-slow", "gpt3-attention"};
  for (const Question& q : all_questions()) {
    if (q.kind == Question::Kind::choice) continue;
    if (q.answer == std::floor(q.answer)) {
      EXPECT_LE(q.tolerance, 0.5) << q.name;
    } else if (!kAbout.contains(q.name)) {
      EXPECT_LE(q.tolerance, 0.025 * std::abs(q.answer)) << q.name;
    } else {
      EXPECT_LE(q.tolerance, 0.07 * q.answer) << q.name;
    }
  }
}

TEST(Quiz, EveryChoiceButTheRightOneIsWrong) {
  for (const Question& q : all_questions())
    if (q.kind == Question::Kind::choice)
      for (std::size_t n = 0; n < q.choices.size(); ++n) {
        const std::string letter(1, static_cast<char>('a' + static_cast<int>(n)));
        EXPECT_EQ(grade(q, letter), n == q.right ? Grade::right : Grade::wrong) << q.name << letter;
        EXPECT_EQ(right_answer(q, Language::en).starts_with(letter + ") "), n == q.right) << q.name;
      }
}

TEST(Quiz, NumbersAreReadAsPeopleWriteThem) {
  Question q = *find_question("gpt3-embedding");
  q.tolerance = 0;
  for (const char* same :
       {"617558016", "617,558,016", "617 558 016", "617_558_016", "+617558016", "6.17558016e8", "617558016.0"})
    EXPECT_EQ(grade(q, same), Grade::right) << same;
  EXPECT_EQ(grade(q, "-617558016"), Grade::wrong);
  for (const char* bad : {"", " ", "%", "+", "--5", "+-5", "5 5 x", "inf", "-inf", "nan", "0x10", "1e400", "5%%"})
    EXPECT_EQ(grade(q, bad), Grade::unreadable) << bad;
}

TEST(Quiz, APercentSignMeansHundredths) {
  const Question &share = *find_question("two-keys"), &percentage = *find_question("gqa-kv");
  for (const char* same : {"0.75", ".75", "75 %", "75%", "75.0 %", "７５％", "７５　％", "０．７５"})
    EXPECT_EQ(grade(share, same), Grade::right) << same;
  for (const char* other : {"75", "0.75 %"}) EXPECT_EQ(grade(share, other), Grade::wrong) << other;
  for (const char* same : {"75", "75 %", "７５％"}) EXPECT_EQ(grade(percentage, same), Grade::right) << same;
  EXPECT_EQ(grade(percentage, "0.75 %"), Grade::wrong);
  for (const Question& q : all_questions())
    EXPECT_EQ(q.percent, q.text.en.find("percentage") != std::string::npos) << q.name;
}

// What the quiz prints itself, what other keyboards type.
TEST(Quiz, UnicodeFormsCountAsTheirAsciiForms) {
  const Question& cosine = *find_question("rope-run");
  ASSERT_NE(cosine.why.en.find("−0.42"), std::string::npos);
  for (const char* same : {"-0.42", "−0.42", "–0.42", "－0.42", "－０．４２", "−\u00a00.42", "　-0.42　"})
    EXPECT_EQ(grade(cosine, same), Grade::right) << same;
  EXPECT_EQ(grade(cosine, "0.42"), Grade::wrong);
  const Question& count = *find_question("gpt3-embedding");
  for (const char* same : {"６１７，５５８，０１６", "617\u202f558\u202f016", "＋617558016"})
    EXPECT_EQ(grade(count, same), Grade::right) << same;
  const Question& choice = *find_question("equivariant");
  for (const char* same : {"ｃ", "Ｃ", "３", " c ", "c)", "ｃ）"}) EXPECT_EQ(grade(choice, same), Grade::right) << same;
  for (const char* bad : {"—", "七十五", "e\u00e9", "c))", ")", "\xef\xbc", "½"}) {
    EXPECT_EQ(grade(choice, bad), Grade::unreadable) << bad;
    EXPECT_EQ(grade(cosine, bad), Grade::unreadable) << bad;
  }
}

TEST(Quiz, ProgressComesBackAndABrokenFileIsRefused) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "attend-quiz-test";
  std::filesystem::remove_all(folder);
  const std::filesystem::path file = folder / "deep" / "quiz.json";
  EXPECT_TRUE(read_progress(file).empty());
  write_progress(file, {{"sd-512", {2, 1, true}}, {"mla", {0, 3, false}}});
  const QuizProgress back = read_progress(file);
  ASSERT_EQ(back.size(), 2U);
  EXPECT_EQ(back.at("sd-512").right, 2);
  EXPECT_TRUE(back.at("sd-512").last_right);
  EXPECT_EQ(back.at("mla").wrong, 3);
  EXPECT_NO_THROW(io::parse_json(quiz_json(back), "quiz"));
  for (const char* bad : {"", "{}", "[1]", R"({"questions": {"a": {"right": -1, "wrong": 0, "last_right": true}}})",
                          R"({"questions": {"a": 1}})"}) {
    std::ofstream(file) << bad;
    EXPECT_THROW(read_progress(file), FileError) << bad;
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace attend::labs
