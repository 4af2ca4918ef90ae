// A language model: opened by its name or its path, then asked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attend/export.h"
#include "attend/llm/chat_template.hpp"
#include "attend/llm/compute.hpp"
#include "attend/llm/engine.hpp"
#include "attend/llm/sampling.hpp"
#include "attend/llm/tokenizer.hpp"
#include "attend/state_pointer.hpp"

namespace attend::llm {

// What a model is, from the headers of its files.
struct ModelInfo {
  std::filesystem::path path;
  std::string family;     // as the file names it: "llama", "qwen3", "bert", ...
  bool generates = true;  // else it embeds texts
  std::int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, vocabulary = 0;
  std::int64_t context = 0;  // tokens it was made for
  std::int64_t parameters = 0;
  std::int64_t file_bytes = 0;  // of all tensors
  bool quantised = false;       // some weights of the file are
  Compute compute = Compute::file;
  // Products read rows that are rounded to int8: attention weights and logits differ from those of an f32 pass.
  bool rounds_rows() const { return quantised && compute == Compute::file; }
};

// Bytes by what they are for, known before anything is loaded.
struct MemoryPlan {
  std::int64_t weights = 0, cache = 0, working = 0;
  std::int64_t total() const { return weights + cache + working; }
};

struct ModelOptions {
  std::int64_t context = 0;  // longest sequence; 0: what the model was made for
  CacheFormat cache = CacheFormat::automatic;
  Compute compute = Compute::file;
  std::int64_t stream = 0;   // text without end: keep the first tokens and the last so many; 0: the context is the end
  bool check_memory = true;  // refuse before loading when there is not enough
  std::function<void(std::int64_t done, std::int64_t all)> progress{};  // of loading, in bytes; may throw to stop it
  std::function<void(const std::string& text)>
      warning{};  // what looks wrong and does not stop: a context too long, ...
};

// Both read the headers alone. FileError says what cannot be used, InvalidArgument that there is no such model.
ATTEND_API ModelInfo model_info(const std::string& name_or_path);
ATTEND_API MemoryPlan plan_memory(const std::string& name_or_path, const ModelOptions& options = {});
// What the machine, and the container this may run in, still have to give, in bytes; -1 where the system does not tell.
ATTEND_API std::int64_t free_memory();

struct GenerateOptions {
  std::int64_t max_tokens = 256;
  Sampling sampling{};
  std::vector<std::string> stop{};   // texts that end the answer; they are not part of it
  std::vector<Token> stop_tokens{};  // besides those of the model and its chat template
};

struct Answer {
  std::string text;
  std::vector<Token> tokens;
  std::vector<Choice> choices;  // of each token, where sampling.logprobs asks for them
  Finish finish = Finish::not_yet;
  std::int64_t prompt_tokens = 0, reused_tokens = 0;  // of the prompt, from an earlier answer's cache
};

// Shown the text as it grows, in whole characters; false ends the answer there.
using OnText = std::function<bool(std::string_view text)>;
using OnProgress = std::function<void(std::int64_t done, std::int64_t all)>;

struct Perplexity {
  double loss = 0;        // mean of -log p(token), in nats
  double perplexity = 0;  // exp(loss)
  double error = 0;       // of the perplexity: its standard error over tokens
  std::int64_t predicted = 0;
};

// For one thread at a time. Two models, and tokenizers, are independent.
class ATTEND_API Model {
 public:
  // A pulled model's name, the embedded model's ("storyteller"), a .gguf or .pth file, or a Hugging Face folder; "" for
  // default_model(). FileError for what is wrong with its files;
  // InvalidArgument when there is no such model; std::runtime_error when there is not enough memory.
  static Model open(const std::string& name_or_path, const ModelOptions& options = {});
  ~Model();
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;

  const ModelInfo& info() const;
  const MemoryPlan& memory() const;
  std::int64_t context() const;  // longest sequence, as it was opened
  const Tokenizer& tokenizer() const;

  // The model's own, or the one of this name (ChatTemplate::names). InvalidArgument when it brings none.
  ChatTemplate chat_template(const std::string& name = "") const;
  // The tokens that end an answer: the model's own, and the template's if there is one.
  std::vector<Token> stop_tokens(const ChatTemplate* chat = nullptr) const;

  // Continues a text. What earlier calls left in the cache is reused where the prompt begins alike.
  Answer generate(std::string_view prompt, const GenerateOptions& options = {}, const OnText& on_text = {});
  Answer generate(std::span<const Token> prompt, const GenerateOptions& options = {}, const OnText& on_text = {});
  // Answers the last of the messages, by the model's own chat template.
  Answer chat(std::span<const Message> messages, const GenerateOptions& options = {}, const OnText& on_text = {});

  // Of every token, [tokens, vocabulary], or of the last one alone. For models that generate.
  std::vector<float> logits(std::span<const Token> tokens, bool last_alone = false);
  // Vectors of length 1, [texts, hidden]. For models that embed. A text beyond the model's length is cut.
  std::vector<float> embed(std::span<const std::string> texts, const OnProgress& progress = {});
  // How well it predicts a text, in windows of so many tokens that begin afresh.
  Perplexity perplexity(std::span<const Token> tokens, std::int64_t window = 512, const OnProgress& progress = {});

 private:
  friend class Engine;
  friend struct LookAccess;
  struct State;
  explicit Model(std::shared_ptr<State> state);
  StatePointer<std::shared_ptr<State>> state_;  // engines, sessions and looks of the model share it
};

}  // namespace attend::llm
