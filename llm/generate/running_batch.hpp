// The running batch that requests join and leave; prompts are read in pieces and remembered for the next turn.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "attend/llm/engine.hpp"
#include "attend/llm/tokenizer.hpp"
#include "llm/generate/prompt_lookup.hpp"
#include "llm/generate/sampler.hpp"
#include "llm/model/transformer.hpp"

namespace attend::llm {

struct BatchOptions {
  std::int64_t context = 0;            // longest sequence; 0: the model's own
  std::int64_t cache_tokens = 0;       // room in the cache, for all sequences together; 0: context
  std::int64_t tokens_per_step = 512;  // a prompt is read in pieces of at most so many
  std::int64_t sequences = 64;         // that run at once; others wait
  DType cache_dtype = DType::f32;
  bool cache_int8 = false;
  // Without end: of each sequence only the first `sinks` tokens and the last `stream` are kept. 0: all, up to context.
  std::int64_t stream = 0, sinks = 4;
  // Of prompts, in a step that also writes answers: no answer waits for more. 0: tokens_per_step.
  std::int64_t prompt_piece = 0;
  // Room is kept free for so many more tokens of each answer, and not for all it may have: where that proves too little
  // the youngest answer gives its room up, and is read again later. 0: room for all, and none gives up.
  std::int64_t answer_room = 0;
  // Tokens guessed ahead (prompt look-up) for an answer in one step, while at most draft_answers are written. The
  // tokens are the same as without. 0: none.
  std::int64_t draft = 0, draft_answers = 2;
};

// Tokens of a stream that are in the cache at most: a step is read before the window moves on, in whole pages.
std::int64_t stream_room(const BatchOptions& options);

// Not for several threads at once. The same request gives the same tokens whatever runs beside it.
class RunningBatch {
 public:
  RunningBatch(Transformer& model, const Tokenizer& tokenizer, const BatchOptions& options = {});

  // Its number. InvalidArgument when it could never run: an empty prompt, or one too long for the context or the cache.
  std::int64_t submit(Request request);
  void cancel(std::int64_t request);
  bool idle() const { return running_.empty() && waiting_.empty(); }

  // One pass of the model over what is due: a token for each running answer, and pieces of prompts.
  std::vector<Event> step();

  const EngineStats& stats() const { return stats_; }
  const ModelCache& cache() const { return cache_; }
  std::int64_t context() const { return options_.context; }
  std::int64_t kept_tokens() const;  // of finished sequences, for reuse

 private:
  struct Running {
    std::int64_t number = 0;
    Request request{};
    std::int64_t sequence = -1;
    std::vector<Token> tokens{};  // prompt and answer
    std::int64_t cached = 0;      // of them in the cache
    std::int64_t reused = -1;     // of them in the cache when it began; -1 before
    std::vector<Choice> rated{};  // the prompt's tokens, where they are asked for
    StreamDecoder decoder;
    std::string held{};  // text that may be the beginning of a stop text
    Finish finish = Finish::not_yet;
    DraftLength draft_length{};
  };
  struct Kept {
    std::int64_t sequence;
    std::vector<Token> tokens;  // those in the cache
  };

  // What one running request does in a step: the next `count` of its tokens, then guesses.
  struct Share {
    std::size_t index;
    std::int64_t count;
    std::vector<Token> draft{};
    std::int64_t row = -1;  // of the first logits, if the step gives it some
  };

  void admit();
  bool waits_for_prefix(const Running& r, std::int64_t shared) const;
  std::vector<Share> shares();
  void share_prompts(std::int64_t budget, std::vector<Share>& shares) const;
  std::vector<Token> guess(Running& r);
  bool find_pages(const std::vector<Share>& shares);
  void put_back_youngest();
  std::int64_t read(std::vector<Share>& shares);
  void logits_of(const View& hidden, std::span<const std::int64_t> rows);
  void rate_prompt(Running& r, const View& hidden, std::int64_t row, std::int64_t count);
  void take_tokens(const Share& share, std::vector<Event>& events);
  bool make_room(std::int64_t pages);
  bool take_over(std::int64_t sequence, std::int64_t length, std::int64_t pages);
  std::int64_t promised_pages() const;
  std::int64_t longest(const Running& r) const;
  std::int64_t room(const Running& r) const;
  void take_token(Running& running, std::span<const float> logits, std::vector<Event>& events) const;
  static void release_text(Running& running, Event& event, bool last);
  void retire(Running& running);

  Transformer& model_;
  const Tokenizer& tokenizer_;
  BatchOptions options_;
  ModelCache cache_;
  std::deque<Running> waiting_;
  std::vector<Running> running_;
  std::deque<Kept> kept_;  // oldest first
  std::int64_t next_number_ = 0;
  std::vector<Event> early_;  // ends that happen between steps
  EngineStats stats_;
  bool may_draft_;  // what was guessed wrong can be taken out of the cache again
  std::vector<float> logits_, rows_;
};

}  // namespace attend::llm
