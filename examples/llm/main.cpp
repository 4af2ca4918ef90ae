// A language model: open it, ask it, print the answer as it grows.
// usage: attend_answers MODEL QUESTION; MODEL is a pulled model's name, a .gguf or .pth file, or a Hugging Face folder
#include <cstdio>
#include <string_view>

#include "attend/llm/llm.hpp"

int main(int argc, char** argv) try {
  if (argc != 3) return std::fprintf(stderr, "usage: attend_answers MODEL QUESTION\n"), 2;
  using namespace attend::llm;
  Model model = Model::open(argv[1]);
  const auto print = [](std::string_view text) {
    return std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  };
  const Message question[] = {{"user", argv[2]}};
  const GenerateOptions options{.max_tokens = 64};
  if (model.tokenizer().chat_template().empty())
    model.generate(argv[2], options, print);  // made to continue text
  else
    model.chat(question, options, print);
  std::puts("");
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
