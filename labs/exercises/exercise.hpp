// The exercises: what is asked, the cases it is tried on, the right answer, and what each known mistake would answer.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "labs/text.hpp"

namespace attend::labs {

enum class Kind { real, whole, truth };

struct Array {
  std::vector<std::int64_t> shape;
  std::vector<float> data;  // whole numbers and truths as 0, 1, 2, ...
  Kind kind = Kind::real;

  std::int64_t size() const { return static_cast<std::int64_t>(data.size()); }
};

struct Case {
  Text what;  // "a mask that hides whole rows"
  std::map<std::string, Array> arrays{};
  std::map<std::string, std::int64_t> wholes{};
  std::map<std::string, double> reals{};
  bool for_cpp = true;  // the C++ signature can take it
};

using Mistakes = std::set<std::string>;

struct Mistake {
  std::string name;
  Text text;  // what was done, and what to do
};

struct Exercise {
  std::string name;        // of the function, or the class, in the learner's file
  std::string short_name;  // of a template's file
  Text asks;
  std::string lab;  // that shows why
  std::vector<Case> cases;
  std::vector<Mistake> mistakes;
  // The right answer, or what somebody answers who makes these mistakes.
  Array (*answer)(const Case& c, const Mistakes& made);
};

const std::vector<Exercise>& all_exercises();
const Exercise* find_exercise(std::string_view name);  // by either name

}  // namespace attend::labs
