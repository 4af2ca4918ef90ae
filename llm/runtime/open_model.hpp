// What lies between a model's files and a running model: its context, its cache, its memory, how it is loaded.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attend/llm/model.hpp"
#include "llm/generate/running_batch.hpp"
#include "llm/model/plan.hpp"
#include "llm/model/transformer.hpp"

namespace attend::llm {

inline constexpr std::int64_t kTokensPerStep = 512;    // of a prompt read at once
inline constexpr std::int64_t kTokensPerEmbed = 2048;  // of texts embedded at once

// Room for `tokens`, or for a stream of the last `stream` if that is less (0: no stream).
CacheOptions cache_options(CacheFormat format, std::int64_t stream, const ModelFiles& files, std::int64_t tokens);
// The format that `automatic` means for these weights.
CacheFormat chosen_format(CacheFormat format, const ModelFiles& files);
BatchOptions batch_options(const CacheOptions& cache, std::int64_t context);

MemoryPlan plan_memory(const ModelFiles& files, const CacheOptions& cache, std::int64_t tokens_per_step,
                       std::int64_t logits);
std::string describe(const MemoryPlan& plan);
// std::runtime_error when the machine has not so much.
void check_memory(const MemoryPlan& plan, const ModelFiles& files);

ModelInfo info_of(const ModelFiles& files);

// Which tensors of the files nothing uses, as a sentence; "" for none.
std::string unused_warning(const ModelFiles& files);
// A context beyond what the model was made for, as a sentence; "" if it is not. `what` is the caller's name for it.
std::string context_warning(const std::string& what, std::int64_t asked, const ModelConfig& config);

// Files that are open, so that a plan can be made and the prompt read before the weights are loaded.
struct OpenModel {
  // Of a name in the store or a path. `asked` is the context, 0 for the model's own.
  OpenModel(const std::string& name_or_path, std::int64_t asked, Compute compute = Compute::file);
  // Checks the memory, if asked to, and loads. The files are closed then.
  Transformer load(const MemoryPlan& plan, bool check, const LoadProgress& progress);

  std::unique_ptr<ModelFiles> files;
  Tokenizer tokenizer;
  std::int64_t context;  // as asked for, or the model's; where positions are learnt, never more than the model's
};

// The template of that name, or the tokenizer's own for "". InvalidArgument says what there is; `option` is the
// caller's name for the choice.
ChatTemplate chat_template_of(const Tokenizer& tokenizer, const std::string& name, const std::string& option);

// FileError if the tokenizer of `model` gives a token that its embedding does not have.
void check_tokens(std::span<const Token> tokens, std::int64_t vocabulary, const std::string& model);

// The tokens that end an answer: the model's own, and the template's if there is one.
std::vector<Token> stop_tokens(const Tokenizer& tokenizer, const ModelConfig& config, const ChatTemplate* chat);

// Texts as an encoder reads them: those beyond its length are cut, and the last token (such as [SEP]) stays.
struct EncodedTexts {
  std::vector<std::vector<Token>> tokens;
  std::int64_t longest = 0, cut = 0;  // tokens a text may have; texts that were cut
};
EncodedTexts encode_texts(const Tokenizer& tokenizer, const ModelConfig& config, std::span<const std::string> texts);
// [texts, hidden]; `progress` is told how many texts are done.
std::vector<float> embed_texts(Transformer& model, const EncodedTexts& texts, const std::string& what,
                               const std::function<void(std::int64_t done)>& progress);

}  // namespace attend::llm
