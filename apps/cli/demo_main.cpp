// The program `attend_demo`: what ./dev demo runs, and nothing more to build.
#include "run_program.hpp"

int main(int argc, char** argv) {
  using namespace attend::cli;
  return run_program(
      argc, argv,
      "This program holds what ./dev demo runs. ./dev build makes build/bin/attend, which holds all:\n"
      "chat, serve, explore, look, train, lab and more.",
      [](Program& program) { return std::vector<Command>{add_demo(program), add_cpu(program), add_pull(program)}; });
}
