// Many requests at once: they join and leave one running batch; prompts are read in pieces and remembered for the next
// turn.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attend/export.h"
#include "attend/llm/sampling.hpp"
#include "attend/state_pointer.hpp"

namespace attend::llm {

class Model;

// How keys and values are kept. automatic: f32 with f32 weights or Compute::f32, else f16.
enum class CacheFormat { automatic, f32, f16, bf16, int8 };

struct EngineOptions {
  std::int64_t context = 0;            // longest sequence; 0: the model's own
  std::int64_t cache_tokens = 0;       // room in the cache, for all sequences together; 0: context
  std::int64_t tokens_per_step = 512;  // a prompt is read in pieces of at most so many
  std::int64_t sequences = 64;         // that run at once; others wait
  CacheFormat cache = CacheFormat::automatic;
  // Without end: of each sequence only the first `sinks` tokens and the last `stream` are kept. 0: all, up to context.
  std::int64_t stream = 0, sinks = 4;
};

struct Request {
  std::vector<Token> prompt{};
  std::int64_t max_tokens = 256;
  Sampling sampling{};
  std::vector<std::string> stop{};   // texts that end the answer; they are not part of it
  std::vector<Token> stop_tokens{};  // besides those of the model; for a chat add Model::stop_tokens(&template)
  bool ignore_eos = false;           // the model's stop tokens do not end the answer; it runs to max_tokens
  std::vector<Token> shown{};        // special tokens that are part of the text all the same
  std::shared_ptr<TokenConstraint> constraint{};  // for this request alone; null: any token may come
  bool rate_prompt = false;                       // log-probabilities of the prompt's tokens too, in its first event
};

// complete: the constraint lets nothing follow.
enum class Finish { not_yet, stop_token, stop_text, length, context, cancelled, complete };
ATTEND_API const char* name(Finish finish);

// One token of one request; the last event of a request says why it ended.
struct Event {
  std::int64_t request = 0;
  Choice choice{};
  std::string text{};  // whole characters; empty while one is incomplete or a stop text may be under way
  bool has_token = false;
  Finish finish = Finish::not_yet;
  std::int64_t reused = 0;       // tokens of its prompt that were not read again: an earlier request began alike
  std::vector<Choice> prompt{};  // with rate_prompt; nothing comes before the first token: its logprob is NaN
};

struct EngineStats {
  std::int64_t prompt_tokens = 0, reused_tokens = 0, generated_tokens = 0, steps = 0;
  std::int64_t drafted_tokens = 0, accepted_tokens = 0;  // guessed by prompt look-up, and of them right
};

// For one thread, and the only user of its model while it runs; it keeps the model's weights alive. The same request
// gives the same tokens whatever else is in the batch.
class ATTEND_API Engine {
 public:
  explicit Engine(Model& model, const EngineOptions& options = {});
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;

  // Its number. InvalidArgument when it could never run: an empty prompt, or one too long for the context or the cache.
  std::int64_t submit(Request request);
  void cancel(std::int64_t request);
  bool idle() const;

  // One pass of the model over what is due: a token for each running answer, and pieces of prompts.
  std::vector<Event> step();

  const EngineStats& stats() const;
  std::int64_t context() const;
  std::int64_t kept_tokens() const;  // of finished sequences, for reuse

 private:
  struct State;
  StatePointer<std::unique_ptr<State>> state_;
};

}  // namespace attend::llm
