// What the sub-commands share: how one is added to the program, and the error of a wrong use.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

namespace attend::cli {

inline constexpr int kSuccess = 0;
inline constexpr int kFailure = 1;  // the job was understood and failed: a check, a file, memory
inline constexpr int kUsage = 2;    // the job was not understood, or cannot be done as asked

struct Command {
  CLI::App* app;
  std::function<int()> run;  // called once the arguments are parsed; gives the exit code
};

Command add_demo(CLI::App& program);
Command add_cpu(CLI::App& program);
Command add_pull(CLI::App& program);
Command add_models(CLI::App& program);
Command add_rm(CLI::App& program);
Command add_info(CLI::App& program);
Command add_generate(CLI::App& program);
Command add_chat(CLI::App& program);
Command add_embed(CLI::App& program);
Command add_eval(CLI::App& program);
Command add_convert(CLI::App& program);
Command add_variants(CLI::App& program);

// Asked for something that cannot be done: what was got, what was expected.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Let an option take numbers from `least` to `most` only; without one of them CLI11 reads "" as 0 and "010" as 8. Every
// numeric option has one.
CLI::Validator whole_number(std::int64_t least, std::int64_t most);
CLI::Validator seed_number();  // whole, 0 to 2^64 - 1
CLI::Validator real_number(double least, double most);

}  // namespace attend::cli
