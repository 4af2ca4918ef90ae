// Runs a program of sub-commands and turns errors into messages and exit codes.
#pragma once

#include <functional>
#include <vector>

#include "command.hpp"

namespace attend::cli {

// What main() gives back. `commands` adds the program's sub-commands; `footer` stands below its help.
int run_program(int argc, char** argv, const char* footer,
                const std::function<std::vector<Command>(Program& program)>& commands);

}  // namespace attend::cli
