// Grading a learner's file: its functions are run on every case, and a wrong answer is held against every known
// mistake.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "labs/exercises/exercise.hpp"
#include "labs/exercises/sandbox.hpp"

namespace attend::labs {

struct Verdict {
  enum class Kind { right, wrong, unwritten, stopped } kind = Kind::wrong;
  std::string exercise;               // the function's name
  std::vector<std::string> mistakes;  // by name; empty: none that is known
  Text text;                          // what to tell the learner
  std::string lab;                    // that shows it
};

struct CheckResult {
  std::vector<Verdict> verdicts;  // of the functions that the file has, in the order of the exercises
  Text failure;                   // why there are none; else empty
  std::optional<Layers> sandbox;  // what kept the program apart; empty: none was run
  bool all_right() const;
};

struct CheckOptions {
  double seconds = 20;              // for the whole file
  std::string python{};             // empty: the first python3 that has NumPy
  Layers layers{};                  // of the sandbox, to try
  std::function<void()> on_wait{};  // called ten times a second; may throw, to stop the check
};

// .py (NumPy or PyTorch) or .cpp. InvalidArgument for another ending, FileError for a file that cannot be read.
CheckResult check_file(const std::filesystem::path& file, const CheckOptions& options = {});

// The part that needs no process, for tests: what the learner's function answered on each case.
struct Answer {
  enum class Kind { value, none, unwritten, error, exit, memory, missing } kind = Kind::missing;
  Array value{};
  std::string dtype{};                 // "float32"; "bool"
  std::string message{};               // of an error
  std::vector<std::string> changed{};  // inputs that were written to
};
Verdict judge_answers(const Exercise& exercise, const std::vector<const Case*>& cases,
                      const std::vector<Answer>& answers);

// The mistake, or the pair of mistakes, whose answers these are; empty: none known.
std::vector<std::string> matching_mistakes(const Exercise& exercise, const std::vector<const Case*>& cases,
                                           const std::vector<Array>& answers);
bool same_answer(const Array& got, const Array& expected);  // shapes, numbers to 1e-3, NaN and inf alike

// A message of the learner's program about what the sandbox refuses it, and the same with an explanation.
bool was_refused(const std::string& message);
Text refused_words(const std::string& message);

// The functions that a C++ source defines, by the exercises' names; not those in comments and texts.
std::vector<std::string> functions_in(const std::string& source);

std::vector<std::string> names_of(const Layers& layers);  // "namespaces", ...; "system-calls" is always the last
Text sandbox_words(const Layers& layers);                 // "sandbox: ..."

std::string to_json(const CheckResult& result);

}  // namespace attend::labs
