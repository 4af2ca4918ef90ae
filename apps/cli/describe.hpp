// What the program tells about itself, as plain data, and the two commands that print it: shell completions, manual
// page.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "command.hpp"

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

// All but what is hidden.
ProgramText describe(const CLI::App& program);

// Hidden: for the build, which installs what they print, and for the shells.
Command add_completion(CLI::App& program);
Command add_man(CLI::App& program);

}  // namespace attend::cli
