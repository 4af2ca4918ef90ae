// Answers for a whole file of prompts, through one running batch.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "language_model.hpp"

namespace attend::cli {

struct Prompt {
  std::int64_t line = 0;  // in its file, from 1
  std::string text;
};

// One a line; in a file whose name ends in .jsonl a line is a JSON string, or an object with "prompt". Lines without a
// character but white space are passed over. "-" is standard input. FileError names file and line.
std::vector<Prompt> read_prompts(const std::string& path);

struct PromptsJob {
  std::string path;
  std::int64_t batch = 8;  // answers under way at once, if there is memory for them
};

// Prints one JSON object a prompt, in the order of the file: line, prompt, text, finish, prompt_tokens, tokens. Each
// has the answer that it would have alone. `request_of` makes the request of a text.
int answer_prompts(llm::OpenModel& open, const ModelArguments& arguments, const PromptsJob& job,
                   const std::function<llm::Request(const std::string& text)>& request_of);

}  // namespace attend::cli
