// What the commands that run a language model share: which model, how it is loaded, how tokens are chosen.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "command.hpp"
#include "llm/runtime/open_model.hpp"

namespace attend::cli {

struct ModelArguments {
  std::string model;
  std::int64_t context = 0;  // 0: the model's own
  std::string cache = "auto", compute = "file";
  std::int64_t stream = 0;
  int threads = 0;
  bool quiet = false;
};
extern const char* const kModelHelp;  // where it may be left out
// --compute: file or f32, the names of llm::Compute.
void add_compute_argument(const Subcommand& app, std::string& compute);
enum class ModelNamed { always, or_default };
void add_model_arguments(const Subcommand& app, ModelArguments& arguments, bool with_cache, ModelNamed named);

// Those options of sampling that a model's files may recommend.
struct SamplingOptions {
  Option temperature, top_k, top_p, min_p, repetition_penalty;
};
SamplingOptions add_sampling_arguments(const Subcommand& app, llm::Sampling& sampling);
// The settings whose options are among the arguments.
llm::SamplingSettings given_settings(const SamplingOptions& options, const llm::Sampling& sampling);

// The cache that --cache and --stream ask for, with room for `tokens`, or for a stream if that is less.
llm::CacheOptions cache_options(const ModelArguments& arguments, const llm::ModelFiles& files, std::int64_t tokens);

// Opens the files, with warnings on standard error unless quiet.
llm::OpenModel open_model(const ModelArguments& arguments);
// Says what memory it will take (unless quiet), refuses if there is not so much, and loads, with progress.
llm::Transformer load_model(llm::OpenModel& open, const llm::MemoryPlan& plan, bool quiet);

// Says on standard error which model is meant where none was named.
void say_default_model();
// Says on standard error what to expect of a small model's answers; nothing of a larger one.
void introduce_small_model(const std::string& named, const llm::ModelConfig& config);
// Says on standard error which tensors of the files nothing uses.
void warn_of_unused(const llm::ModelFiles& files);

// Which chat template, and whether its answers begin with thoughts.
struct ChatArguments {
  std::string chat_template, thinking;  // "": the model's own; thinking: on or off
};
void add_chat_arguments(const Subcommand& app, ChatArguments& arguments);
llm::ChatTemplate chat_template_of(const llm::Tokenizer& tokenizer, const ChatArguments& arguments);
// UsageError if an argument, which `what` names, is not UTF-8: it says at which byte.
void check_utf8(const std::string& what, std::string_view text);
// All of it, as io::utf8_text has it.
std::string read_standard_input();

// One argument is the text where it cannot be a name or a path: it has a space or a letter that is not ASCII, or is
// "-".
void find_text(std::string& model, std::string& text);

// Prompt, answer and rate, as one line.
struct Tally {
  std::int64_t prompt = 0, reused = 0, generated = 0;
  double prompt_seconds = 0, generate_seconds = 0;
};
std::string describe(const Tally& tally);

}  // namespace attend::cli
