// What chats and completions have in common: the fields that say how tokens are chosen, and the answer as it comes.
#pragma once

#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apps/server/fields.hpp"
#include "apps/server/served_model.hpp"
#include "apps/server/tools.hpp"

namespace attend::server {

struct GenerationFields {
  llm::Sampling sampling{};
  std::vector<std::string> stop;
  std::int64_t n = 1;
  bool stream = false, include_usage = false;
};

// temperature, top_p, seed, penalties, logit_bias, stop, n, stream, stream_options, and those of other servers: top_k,
// min_p, repetition_penalty or repeat_penalty. What is absent is as the model's files recommend, or the default of
// `attend chat`. Fields of other servers that would change the answer and are not supported are refused.
GenerationFields read_generation(Fields& fields, const ServedModel& model);

// The tokens of an answer as a field says them: 0 where it is absent, or -1 for no limit.
std::int64_t read_limit(Fields& fields, std::string_view name, std::int64_t least);

// The field or its default, cut to what the context has room for behind the prompt. RequestError when the prompt does
// not fit: it says how much does.
std::int64_t room_for_answer(const ServedModel& model, std::int64_t prompt, std::int64_t asked, const char* field);

std::uint64_t fresh_number();  // by chance

// The seed of choice number `n` of a request.
std::uint64_t choice_seed(std::uint64_t seed, std::int64_t n);

// What a request wants to have written, whatever the form.
struct AnswerForm {
  bool chat = true;
  bool stream = false, include_usage = false;
  bool logprobs = false;
  std::int64_t top_logprobs = 0;
  std::vector<std::string> tools{};  // names of those that may be called; empty: an answer is text
  llm::ToolForm tool_form = llm::ToolForm::none;
  std::size_t most_calls = std::numeric_limits<std::size_t>::max();
  ThoughtReader thoughts = ThoughtReader();  // splits <think> off; of chats with models that think
  std::vector<std::string> echoes{};         // of completions: what stands before the answer, by choice; empty: nothing
  bool prompt_alone = false;                 // of completions: no answer is asked for
  Headers headers{};                         // of the response
};

// Submits the requests, one for each choice, and answers through `reply` as their tokens come. RequestError 429 when
// the queue is full.
void answer(ServedModel& model, std::vector<llm::Request> requests, AnswerForm form,
            const std::shared_ptr<Reply>& reply);

}  // namespace attend::server
