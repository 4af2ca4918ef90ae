// The quiz: questions whose answers are computed by the engine wherever they can be, and the learner's progress.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "labs/text.hpp"

namespace attend::labs {

struct Question {
  enum class Kind { choice, number, predict };  // predict: a number that a run prints

  std::string name;
  Kind kind = Kind::choice;
  std::string lab;  // that shows it
  Text text;
  std::vector<Text> choices{};  // of a choice
  std::size_t right = 0;        // which of them
  double answer = 0;            // of a number
  double tolerance = 0;         // that counts as right, absolute
  Text why;
  bool computed = false;  // the answer was computed here, not written down
  bool percent = false;   // the answer is a percentage: 75 for three quarters
};

const std::vector<Question>& all_questions();  // in the order of the course
const Question* find_question(std::string_view name);

enum class Grade { right, wrong, unreadable };
// "b", "b)", "2" or a number such as "617,558,016", "1e3" or "75 %", which is 0.75 where no percentage is asked.
// Full-width characters and the minus sign U+2212 count as their ASCII forms.
Grade grade(const Question& question, const std::string& typed);
std::string plain_answer(const std::string& typed);  // with those ASCII forms, without spaces at its ends
std::string right_answer(const Question& question, Language language);

struct Tally {
  std::int64_t right = 0, wrong = 0;
  bool last_right = false;
};
using QuizProgress = std::map<std::string, Tally>;

// $XDG_STATE_HOME/attend/quiz.json, or below ~/.local/state; empty: there is no home.
std::filesystem::path progress_file();
// A file that is not there is no progress; FileError for one that is no progress.
QuizProgress read_progress(const std::filesystem::path& file);
void write_progress(const std::filesystem::path& file, const QuizProgress& progress);

// For the page: all questions with their answers, and the progress.
std::string quiz_json(const QuizProgress& progress);

}  // namespace attend::labs
