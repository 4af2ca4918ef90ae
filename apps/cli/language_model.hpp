// What the commands that run a language model share: which model, how it is loaded, how tokens are chosen.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "llm/generate/engine.hpp"
#include "llm/model/plan.hpp"
#include "llm/text/chat_template.hpp"

namespace attend::cli {

inline constexpr std::int64_t kTokensPerStep = 512;  // of a prompt read at once

struct ModelArguments {
  std::string model;
  std::int64_t context = 0;  // 0: the model's own
  std::string cache = "auto";
  std::int64_t stream = 0;
  int threads = 0;
  bool quiet = false;
};
void add_model_arguments(const Subcommand& app, ModelArguments& arguments, bool with_cache);

void add_sampling_arguments(const Subcommand& app, llm::Sampling& sampling);

// Bytes by what they are for, known before anything is loaded.
struct MemoryPlan {
  std::int64_t weights = 0, cache = 0, working = 0;
  std::int64_t total() const { return weights + cache + working; }
};

llm::EngineOptions engine_options(const ModelArguments& arguments, const llm::CacheOptions& cache,
                                  std::int64_t context);

// The cache's number format that --cache asks for; "auto" is f32 beside f32 weights, else f16.
// Room for `tokens`, or for a stream if that is less.
llm::CacheOptions cache_options(const ModelArguments& arguments, const llm::ModelFiles& files, std::int64_t tokens);

MemoryPlan plan_memory(const llm::ModelFiles& files, const llm::CacheOptions& cache, std::int64_t tokens_per_step,
                       std::int64_t logits);
std::string describe(const MemoryPlan& plan);

// Says on standard error which tensors of the files nothing uses.
void warn_of_unused(const llm::ModelFiles& files);

// Opens the files, so that a plan can be made and the prompt read before the weights are loaded.
struct OpenModel {
  explicit OpenModel(const ModelArguments& arguments);
  // Says what memory it will take (unless quiet), refuses if there is not so much, and loads, with progress. The files
  // are closed then.
  llm::Model load(const MemoryPlan& plan, bool quiet);

  std::unique_ptr<llm::ModelFiles> files;
  llm::Tokenizer tokenizer;
  std::int64_t context;  // as asked for, or the model's; where positions are learnt, never more than the model's
};

// Which chat template, and whether its answers begin with thoughts.
struct ChatArguments {
  std::string chat_template, thinking;  // "": the model's own; thinking: on or off
};
void add_chat_arguments(const Subcommand& app, ChatArguments& arguments);
llm::ChatTemplate chat_template_of(const llm::Tokenizer& tokenizer, const ChatArguments& arguments);
// UsageError if `text`, which `what` names, is not UTF-8: it says at which byte.
void check_utf8(const std::string& what, std::string_view text);

// FileError if the tokenizer of `model` gives a token that its embedding does not have.
void check_tokens(const std::vector<llm::Token>& tokens, std::int64_t vocabulary, const std::string& model);

// The tokens that end an answer: the model's own, and the template's if there is one.
std::vector<llm::Token> stop_tokens(const llm::Tokenizer& tokenizer, const llm::ModelConfig& config,
                                    const llm::ChatTemplate* chat);

// Prompt, answer and rate, as one line.
struct Tally {
  std::int64_t prompt = 0, reused = 0, generated = 0;
  double prompt_seconds = 0, generate_seconds = 0;
};
std::string describe(const Tally& tally);

}  // namespace attend::cli
