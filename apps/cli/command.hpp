// What the sub-commands share: how one describes its arguments, and the error of a wrong use. The parser behind it,
// CLI11, is a large header: command.cpp alone includes it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
class Validator;
}  // namespace CLI

namespace attend::cli {

inline constexpr int kSuccess = 0;
inline constexpr int kFailure = 1;  // the job was understood and failed: a check, a file, memory
inline constexpr int kUsage = 2;    // the job was not understood, or cannot be done as asked

// Asked for something that cannot be done: what was got, what was expected.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What an argument's text has to be.
using Check = std::shared_ptr<const CLI::Validator>;
// Let an option take numbers from `least` to `most` only; without one of them CLI11 reads "" as 0 and "010" as 8. Every
// numeric option has one.
Check whole_number(std::int64_t least, std::int64_t most);
Check seed_number();  // whole, 0 to 2^64 - 1
Check real_number(double least, double most);
Check one_of(const std::vector<std::string>& names);
Check existing_file();
// `fault` says what is wrong with a text, or "".
Check text_that(std::function<std::string(const std::string& text)> fault);

class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  Option required() const;
  Option check(const Check& check) const;
  Option type_name(const char* name) const;  // in the help: "N", "PATH"
  Option show_default() const;               // in the help: the value that the variable has now
  Option needs(const Option& other) const;
  Option excludes(const Option& other) const;
  bool given() const;  // among the arguments, once they are parsed

 private:
  CLI::Option* option_;
};

// The arguments of a sub-command; values go to variables, which must live until it has run.
class Subcommand {
 public:
  explicit Subcommand(CLI::App* app) : app_(app) {}
  // "--tokens,-n" is an option, "model" a place.
  Option add_option(const char* names, std::string& value, const char* about) const;
  Option add_option(const char* names, std::vector<std::string>& values, const char* about) const;
  Option add_option(const char* names, std::int64_t& value, const char* about) const;
  Option add_option(const char* names, std::uint64_t& value, const char* about) const;
  Option add_option(const char* names, int& value, const char* about) const;
  Option add_option(const char* names, double& value, const char* about) const;
  Option add_flag(const char* names, bool& value, const char* about) const;
  void footer(const std::string& text) const;
  void alias(const char* name) const;  // another name for it
  void hide() const;                   // from the help: for the build and for shells
  void take_rest() const;              // arguments that nobody knows are no error: rest() gives them
  std::vector<std::string> rest() const;

 private:
  friend class Program;
  CLI::App* app_;
};

struct ProgramText;  // describe.hpp

struct Command {
  Subcommand subcommand;
  std::function<int()> run;  // called once the arguments are parsed; gives the exit code
};

class Program {
 public:
  Program(const char* about, const std::string& version, const char* footer);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  Subcommand add_subcommand(const char* name, const char* about);
  ProgramText describe() const;  // all but what is hidden
  // The command that was asked for; `who` becomes its name behind the program's. Null when the help or the version was
  // asked for, and printed. UsageError for what is wrong with the arguments, with the name that may have been meant.
  const Command* parse(int argc, char** argv, std::span<const Command> commands, std::string& who);

 private:
  std::unique_ptr<CLI::App> app_;
};

Command add_demo(Program& program);
Command add_cpu(Program& program);
Command add_pull(Program& program);
Command add_models(Program& program);
Command add_rm(Program& program);
Command add_info(Program& program);
Command add_generate(Program& program);
Command add_chat(Program& program);
Command add_serve(Program& program);
Command add_explore(Program& program);
Command add_bench(Program& program);
Command add_embed(Program& program);
Command add_look(Program& program);
Command add_eval(Program& program);
Command add_convert(Program& program);
Command add_corpus(Program& program);
Command add_prepare(Program& program);
Command add_train(Program& program);
Command add_compare(Program& program);
Command add_merge(Program& program);
Command add_variants(Program& program);
Command add_lab(Program& program);
Command add_quiz(Program& program);
Command add_completion(Program& program);
Command add_man(Program& program);

}  // namespace attend::cli
