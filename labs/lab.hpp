// A lab: an experiment on this engine whose conclusions are computed from its own run. Parameters in, a report out.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "labs/report.hpp"

namespace attend::labs {

// What the learner may change: a whole number from `least` to `most`, or, where `words` is set, a text.
struct Parameter {
  std::string name;
  std::int64_t preset = 0, least = 0, most = 0;
  std::int64_t quick = 0;  // with --quick: small enough to take no time; a claim that fails then is not decided
  Text help;
  bool words = false;
  std::string preset_words{};
};

class Arguments {
 public:
  // Every parameter of the lab has a value; InvalidArgument for a name or a value that does not fit.
  Arguments(std::span<const Parameter> parameters, const std::map<std::string, std::string>& given, bool quick = false);

  std::int64_t operator[](std::string_view name) const;
  const std::string& words(std::string_view name) const;
  std::string text(std::string_view name) const;  // either kind, as it was given
  bool quick() const { return quick_; }

 private:
  bool quick_ = false;
  std::map<std::string, std::int64_t, std::less<>> numbers_;
  std::map<std::string, std::string, std::less<>> words_;
};

// How far the run has come, from 0 to 1. May throw, to stop it.
using Progress = std::function<void(double share)>;

struct Lab {
  std::string name;
  Text title;
  Text question;  // what we ask
  Text lesson;    // what lessons say about it
  Text guess;     // what the reader should write down before looking
  std::vector<Text> why;
  int seconds = 1;  // about, on two cores
  int minutes = 5;  // to read and play
  std::vector<Parameter> parameters;
  Results (*measure)(const Arguments& arguments, const Progress& progress);
  // From numbers alone, so that a test can hand in numbers that contradict it.
  std::vector<Conclusion> (*judge)(const Numbers& numbers);
};

struct Report {
  const Lab* lab = nullptr;
  Arguments arguments;
  Results results;
  std::vector<Conclusion> conclusions;
  double seconds = 0;
};

const std::vector<Lab>& all_labs();  // in the order of the course
const Lab* find_lab(std::string_view name);
// The lab of that name; InvalidArgument, with the name that may have been meant.
const Lab& lab_called(const std::string& name);

Report run_lab(const Lab& lab, const Arguments& arguments, const Progress& progress = {});

// Both languages, figures as data: what a page needs to show it.
std::string to_json(const Report& report);
std::string to_json(const Lab& lab);  // without a run: texts and parameters

}  // namespace attend::labs
