// What the program tells about itself, as plain data: what completions and the manual page are made from.
#pragma once

#include <string>
#include <vector>

namespace attend::cli {

enum class Takes { nothing, choice, path, model, other };  // model: a pulled model's name, or a path

struct OptionText {
  std::vector<std::string> names;    // "-n", "--tokens"; of a positional its name alone
  std::string text;                  // what it is for
  std::string value;                 // "N"; empty for a flag
  std::string preset;                // the value it has without being given; empty: none
  std::vector<std::string> choices;  // of Takes::choice
  Takes takes = Takes::nothing;
  bool required = false;
  bool repeats = false;
};

struct CommandText {
  std::string name;
  std::string text;
  std::string footer;
  std::vector<OptionText> options;
  std::vector<OptionText> positionals;
};

struct ProgramText {
  CommandText self;
  std::vector<CommandText> commands;
};

}  // namespace attend::cli
