// The program `attend`: wires the sub-commands together.
#include "run_program.hpp"

int main(int argc, char** argv) {
  using namespace attend::cli;
  return run_program(
      argc, argv,
      "Start here:\n"
      "  attend demo                     run attention at a real size, check it, look at one head\n"
      "  attend pull smollm2             bring a small language model; attend models lists those that are here\n"
      "  attend chat smollm2             talk with it; generate, embed, eval and info are there too\n"
      "  attend serve smollm2            let programs that speak OpenAI's API talk with it\n"
      "  attend explore                  see it think: every head and weight, in the browser\n"
      "  attend cpu                      see what this machine has and which kernel is used\n"
      "  attend variants                 measure every attention variant on this machine\n"
      "  attend lab                      learn attention by experiments, in English or Chinese\n"
      "  attend demo --help              every command explains itself\n"
      "\nEnvironment:\n"
      "  ATTEND_ISA=scalar|avx2|...      use these kernels instead of the best ones (attend cpu lists them)\n"
      "  ATTEND_THREADS=N                use this many threads\n"
      "  ATTEND_HOME=FOLDER              keep models there instead of in the user's cache folder\n"
      "  NO_COLOR=1                      print no colours\n"
      "\nExit codes: 0 success, 1 the job failed, 2 wrong use.",
      [](Program& program) {
        return std::vector<Command>{
            // the engine
            add_demo(program), add_cpu(program), add_variants(program),
            // models
            add_pull(program), add_models(program), add_rm(program), add_info(program), add_convert(program),
            // asked
            add_generate(program), add_chat(program), add_embed(program), add_eval(program), add_look(program),
            add_explore(program), add_serve(program), add_bench(program),
            // trained
            add_corpus(program), add_prepare(program), add_train(program), add_compare(program), add_merge(program),
            // taught
            add_lab(program), add_quiz(program),
            // for the shell
            add_completion(program), add_man(program)};
      });
}
