// The running batch: who joins, what each step runs, when an answer ends, what is kept for the next one.
#include "llm/generate/running_batch.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <numeric>
#include <utility>

#include "attend/error.hpp"
#include "attend/threads.hpp"

namespace attend::llm {
namespace {

constexpr std::int64_t kPage = PagedKvCache::kPageTokens;
constexpr std::int64_t kWorthWaiting = 16;  // tokens that another request is about to read
constexpr std::int64_t kRatedAtOnce = 32;   // rows of logits of a prompt

BatchOptions completed(BatchOptions o, const ModelConfig& config) {
  if (o.context <= 0) o.context = config.context;
  if (config.positions == PositionKind::learned) o.context = std::min(o.context, config.context);
  if (o.tokens_per_step < 1 || o.sequences < 1)
    throw InvalidArgument("engine: tokens_per_step and sequences must be at least 1");
  if (o.cache_tokens <= 0) o.cache_tokens = o.stream > 0 ? stream_room(o) : o.context;
  if (o.prompt_piece <= 0) o.prompt_piece = o.tokens_per_step;
  if (o.stream > 0) o.answer_room = 0;
  return o;
}

bool has_windows(const ModelConfig& config) {
  for (std::int64_t n = 0; n < config.layers; ++n)
    if (config.window_of(n) > 0) return true;
  return false;
}

std::int64_t common_prefix(std::span<const Token> a, std::span<const Token> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

// How much of the end of `text` could be the beginning of `stop`.
std::size_t begun(std::string_view text, std::string_view stop) {
  for (std::size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n)
    if (text.substr(text.size() - n) == stop.substr(0, n)) return n;
  return 0;
}

}  // namespace

std::int64_t stream_room(const BatchOptions& o) {
  return (PagedKvCache::pages_for(o.sinks) + PagedKvCache::pages_for(o.stream) +
          PagedKvCache::pages_for(o.tokens_per_step) + 2) *
         kPage;
}

const char* name(Finish finish) {
  switch (finish) {
    case Finish::not_yet:
      return "running";
    case Finish::stop_token:
      return "stop token";
    case Finish::stop_text:
      return "stop text";
    case Finish::length:
      return "length";
    case Finish::context:
      return "context";
    case Finish::cancelled:
      return "cancelled";
    case Finish::complete:
      return "complete";
  }
  return "";
}

RunningBatch::RunningBatch(Transformer& model, const Tokenizer& tokenizer, const BatchOptions& options)
    : model_(model),
      tokenizer_(tokenizer),
      options_(completed(options, model.config())),
      cache_(model.config(),
             {options_.cache_tokens, options_.cache_dtype, options_.cache_int8, options_.stream, options_.sinks}),
      may_draft_(options_.draft > 0 && options_.stream == 0 && !has_windows(model.config())) {}

// Tokens this request will have in the cache at most. The last token is never read again.
std::int64_t RunningBatch::longest(const Running& r) const {
  const std::int64_t prompt = std::ssize(r.request.prompt);
  const std::int64_t most = options_.stream > 0 ? stream_room(options_) : options_.context;
  return prompt >= most ? most : prompt + std::min(r.request.max_tokens, most - prompt);
}

// Tokens that room is kept for.
std::int64_t RunningBatch::room(const Running& r) const {
  const std::int64_t most = longest(r);
  return options_.answer_room > 0 ? std::min(most, std::ssize(r.tokens) + options_.answer_room) : most;
}

std::int64_t RunningBatch::submit(Request request) {
  check_sampling(request.sampling);
  if (request.prompt.empty()) throw InvalidArgument("engine: the prompt is empty; expected at least one token");
  if (request.max_tokens < 1)
    throw InvalidArgument("engine: max_tokens is " + std::to_string(request.max_tokens) + ", expected at least 1");
  for (const Token token : request.prompt)
    if (token < 0 || token >= model_.config().vocabulary)
      throw InvalidArgument("engine: the prompt holds token " + std::to_string(token) + ", expected 0 to " +
                            std::to_string(model_.config().vocabulary - 1));
  if (options_.stream == 0 && std::ssize(request.prompt) >= options_.context)
    throw InvalidArgument("engine: the prompt has " + std::to_string(request.prompt.size()) +
                          " tokens, and the context is " + std::to_string(options_.context) +
                          "; shorten it, or ask for a larger context");
  std::erase(request.stop, "");
  Running r{.number = next_number_, .request = std::move(request), .decoder = StreamDecoder(tokenizer_, true)};
  if (PagedKvCache::pages_for(longest(r)) > PagedKvCache::pages_for(options_.cache_tokens))
    throw InvalidArgument("engine: prompt and answer may reach " + std::to_string(longest(r)) +
                          " tokens, and the cache holds " + std::to_string(options_.cache_tokens) +
                          "; lower max_tokens, or ask for a larger cache");
  r.tokens = r.request.prompt;
  waiting_.push_back(std::move(r));
  return next_number_++;
}

void RunningBatch::cancel(std::int64_t number) {
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it)
    if (it->number == number) {
      early_.push_back({.request = number, .finish = Finish::cancelled});
      waiting_.erase(it);
      return;
    }
  for (auto it = running_.begin(); it != running_.end(); ++it)
    if (it->number == number) {
      early_.push_back({.request = number, .finish = Finish::cancelled});
      retire(*it);
      running_.erase(it);
      return;
    }
}

std::int64_t RunningBatch::kept_tokens() const {
  std::int64_t sum = 0;
  for (const Kept& kept : kept_) sum += std::ssize(kept.tokens);
  return sum;
}

// Pages that running answers may still take.
std::int64_t RunningBatch::promised_pages() const {
  std::int64_t pages = 0;
  for (const Running& r : running_)
    pages += PagedKvCache::pages_for(room(r)) - PagedKvCache::pages_for(std::min(r.cached, room(r))) + 1;
  return pages;
}

// Forgets the oldest kept sequences until so many pages are free beyond what is promised.
bool RunningBatch::make_room(std::int64_t pages) {
  while (cache_.free_pages() - promised_pages() < pages) {
    if (kept_.empty()) return false;
    cache_.remove(kept_.front().sequence);
    kept_.pop_front();
  }
  return true;
}

// A kept sequence, cut to `length`, for a request that there is no room to give a copy; others are forgotten for it.
bool RunningBatch::take_over(std::int64_t sequence, std::int64_t length, std::int64_t pages) {
  const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& k) { return k.sequence == sequence; });
  if (found == kept_.end()) return false;
  std::rotate(found, found + 1, kept_.end());  // the youngest now: the last to be forgotten
  const std::int64_t freed = PagedKvCache::pages_for(std::ssize(kept_.back().tokens)) - PagedKvCache::pages_for(length);
  while (kept_.size() > 1 && cache_.free_pages() + freed - promised_pages() < pages) {
    cache_.remove(kept_.front().sequence);
    kept_.pop_front();
  }
  cache_.truncate(sequence, length);
  if (cache_.free_pages() - promised_pages() < pages) {
    kept_.back().tokens.resize(static_cast<std::size_t>(length));
    return false;
  }
  kept_.pop_back();
  return true;
}

// A prompt that is being read begins as this one does, and further than anything that is there: to wait for it is less
// work than to read the same twice.
bool RunningBatch::waits_for_prefix(const Running& r, std::int64_t shared) const {
  return std::any_of(running_.begin(), running_.end(), [&](const Running& other) {
    const std::int64_t left = std::ssize(other.tokens) - other.cached;
    return left > 1 && common_prefix(other.tokens, r.tokens) >= shared + kWorthWaiting &&
           other.cached < std::ssize(r.tokens) - 1;
  });
}

// Waiting requests join while there is room for what they may need, in the order they came.
void RunningBatch::admit() {
  while (!waiting_.empty() && std::ssize(running_) < options_.sequences) {
    Running& r = waiting_.front();
    // The longest beginning that a kept or running sequence shares with it. One token is always read again: its row
    // gives the first logits. A token is rated by the row before it, so that is read, too.
    const std::int64_t most =
        r.request.rate_prompt ? std::max<std::int64_t>(std::ssize(r.rated) - 1, 0) : std::ssize(r.tokens) - 1;
    std::int64_t shared = 0, from = -1;
    const auto look = [&](std::int64_t sequence, std::span<const Token> cached) {
      const std::int64_t common = std::min(common_prefix(cached, r.tokens), most);
      if (common > shared && cache_.can_cut(sequence, common)) shared = common, from = sequence;
    };
    for (const Running& other : running_)
      look(other.sequence, std::span(other.tokens).first(static_cast<std::size_t>(other.cached)));
    for (const Kept& kept : kept_) look(kept.sequence, kept.tokens);
    if (!r.request.rate_prompt && waits_for_prefix(r, shared)) return;
    const std::int64_t all_pages = PagedKvCache::pages_for(room(r)), new_pages = all_pages - shared / kPage + 1;
    if (from >= 0 && cache_.free_pages() - promised_pages() >= new_pages) {
      r.sequence = cache_.fork(from, shared);
      // A sequence that was continued from its end has served.
      std::erase_if(kept_, [&](const Kept& kept) {
        if (kept.sequence != from || shared < std::ssize(kept.tokens)) return false;
        cache_.remove(from);
        return true;
      });
    } else if (take_over(from, shared, all_pages - PagedKvCache::pages_for(shared) + (running_.empty() ? 0 : 1))) {
      r.sequence = from;
    } else {
      shared = 0;
      // An empty cache holds every request that submit() took.
      if (!make_room(all_pages + (running_.empty() ? 0 : 1))) return;
      r.sequence = cache_.add();
    }
    r.cached = shared;
    if (r.reused < 0) {  // one that gave its room up has counted already
      r.reused = shared;
      stats_.reused_tokens += shared;
    }
    running_.push_back(std::move(r));
    waiting_.pop_front();
  }
}

// The prompts' part of a step: half for the one that came first, so that it comes to an end, and the rest for those
// that have the least left, so that a short one does not wait behind a long one.
void RunningBatch::share_prompts(std::int64_t budget, std::vector<Share>& shares) const {
  std::vector<Share> prompts;
  for (std::size_t i = 0; i < running_.size(); ++i)
    if (std::ssize(running_[i].tokens) - running_[i].cached > 1) prompts.push_back({i, 0});
  const auto left = [&](const Share& share) {
    const Running& r = running_[share.index];
    return std::ssize(r.tokens) - r.cached - share.count;
  };
  const auto give = [&](Share& share, std::int64_t most) {
    const std::int64_t count = std::min({left(share), most, budget});
    share.count += count;
    budget -= count;
  };
  if (prompts.size() > 1) give(prompts.front(), (budget + 1) / 2);
  std::sort(prompts.begin(), prompts.end(),
            [&](const Share& a, const Share& b) { return left(a) != left(b) ? left(a) < left(b) : a.index < b.index; });
  for (Share& share : prompts) give(share, budget);
  for (Share& share : prompts)
    if (share.count > 0) shares.push_back(std::move(share));
}

// Tokens that may follow, as far as they would be read within the room that the answer has.
std::vector<Token> RunningBatch::guess(Running& r) {
  const std::int64_t size = std::ssize(r.tokens);
  const std::int64_t most =
      std::min({r.draft_length.next(options_.draft), longest(r) - size - 1, options_.context - size - 1});
  return most > 0 ? look_up(r.tokens, most) : std::vector<Token>();
}

// Answers under way first, then prompts.
std::vector<RunningBatch::Share> RunningBatch::shares() {
  std::vector<Share> all;
  for (std::size_t i = 0; i < running_.size(); ++i)
    if (std::ssize(running_[i].tokens) - running_[i].cached == 1) all.push_back({i, 1});
  const std::int64_t answers = std::ssize(all);
  if (may_draft_ && answers <= options_.draft_answers && answers == std::ssize(running_))
    for (Share& share : all) share.draft = guess(running_[share.index]);
  const std::int64_t budget = std::max(options_.tokens_per_step, std::ssize(running_)) - answers;
  share_prompts(answers > 0 ? std::min(budget, options_.prompt_piece) : budget, all);
  return all;
}

// Room for what the step appends: kept sequences are forgotten for it. False where that is not enough.
bool RunningBatch::find_pages(const std::vector<Share>& shares) {
  std::int64_t needed = 0;
  for (const Share& share : shares)
    needed += cache_.pages_to_append(running_[share.index].sequence, share.count + std::ssize(share.draft));
  while (cache_.free_pages() < needed && !kept_.empty()) {
    cache_.remove(kept_.front().sequence);
    kept_.pop_front();
  }
  return cache_.free_pages() >= needed;
}

void RunningBatch::put_back_youngest() {
  Running& r = running_.back();
  cache_.remove(r.sequence);
  r.sequence = -1;
  r.cached = 0;
  waiting_.push_front(std::move(r));
  running_.pop_back();
}

// Runs the model over the shares; the number of rows of logits that came of it.
std::int64_t RunningBatch::read(std::vector<Share>& shares) {
  std::vector<Token> tokens;
  std::vector<Continuation> parts;
  std::vector<std::int64_t> wanted;  // rows that give logits
  for (Share& share : shares) {
    Running& r = running_[share.index];
    parts.push_back({r.sequence, share.count + std::ssize(share.draft)});
    tokens.insert(tokens.end(), r.tokens.begin() + r.cached, r.tokens.begin() + r.cached + share.count);
    r.cached += share.count;
    if (r.cached <= std::ssize(r.request.prompt)) stats_.prompt_tokens += share.count;
    if (r.cached < std::ssize(r.tokens)) continue;
    share.row = std::ssize(wanted);
    wanted.push_back(std::ssize(tokens) - 1);
    for (const Token token : share.draft) {
      wanted.push_back(std::ssize(tokens));
      tokens.push_back(token);
    }
    stats_.drafted_tokens += std::ssize(share.draft);
  }
  const View hidden = model_.forward(tokens, parts, cache_);
  ++stats_.steps;
  std::int64_t row = 0;
  for (const Share& share : shares) {
    if (running_[share.index].request.rate_prompt) rate_prompt(running_[share.index], hidden, row, share.count);
    row += share.count + std::ssize(share.draft);
  }
  logits_of(hidden, wanted);
  return std::ssize(wanted);
}

void RunningBatch::logits_of(const View& hidden, std::span<const std::int64_t> rows) {
  const std::int64_t H = model_.config().hidden, V = model_.config().vocabulary, count = std::ssize(rows);
  rows_.resize(static_cast<std::size_t>(count * H));
  logits_.resize(static_cast<std::size_t>(count * V));
  for (std::int64_t i = 0; i < count; ++i)
    std::copy_n(static_cast<const float*>(hidden.data) + rows[static_cast<std::size_t>(i)] * H, H,
                rows_.data() + i * H);
  if (count > 0)
    model_.logits(view_of(static_cast<const float*>(rows_.data()), {1, 1, count, H}),
                  view_of(logits_.data(), {1, 1, count, V}));
}

// Rates those tokens of the prompt that follow the last `count` it has read, whose first is `row` of the step.
void RunningBatch::rate_prompt(Running& r, const View& hidden, std::int64_t row, std::int64_t count) {
  if (r.rated.empty()) r.rated.push_back({.token = r.tokens.front(), .logprob = std::nan("")});
  const std::int64_t before = r.cached - count;  // the token that `row` has read
  std::int64_t first = std::ssize(r.rated);
  const std::int64_t end = std::min(r.cached + 1, std::ssize(r.request.prompt)), V = model_.config().vocabulary;
  for (; first < end; first = std::ssize(r.rated)) {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(std::min(kRatedAtOnce, end - first)));
    std::iota(rows.begin(), rows.end(), row + first - 1 - before);
    logits_of(hidden, rows);
    for (std::size_t i = 0; i < rows.size(); ++i)
      r.rated.push_back(rate(std::span(logits_).subspan(i * static_cast<std::size_t>(V), static_cast<std::size_t>(V)),
                             r.tokens[static_cast<std::size_t>(first) + i], r.request.sampling.logprobs));
  }
}

// The next token, and more as long as they are those that were guessed. Guesses that were wrong leave the cache.
void RunningBatch::take_tokens(const Share& share, std::vector<Event>& events) {
  Running& r = running_[share.index];
  const std::int64_t V = model_.config().vocabulary, guessed = std::ssize(share.draft);
  std::int64_t right = 0;
  for (std::int64_t i = 0; i <= guessed && r.finish == Finish::not_yet; ++i) {
    const std::int64_t size = std::ssize(r.tokens);
    take_token(r,
               std::span(logits_).subspan(static_cast<std::size_t>((share.row + i) * V), static_cast<std::size_t>(V)),
               events);
    if (i == guessed || std::ssize(r.tokens) == size || r.tokens.back() != share.draft[static_cast<std::size_t>(i)])
      break;
    ++right;
  }
  r.cached += right;
  r.draft_length.learn(guessed, right);
}

std::vector<Event> RunningBatch::step() {
  std::vector<Event> events = std::move(early_);
  early_.clear();
  admit();
  std::vector<Share> now = shares();
  while (!find_pages(now) && running_.size() > 1) {
    put_back_youngest();
    now = shares();
  }
  if (now.empty()) return events;
  if (read(now) == 0) return events;
  // Each answer's token is its own matter: they are chosen side by side.
  std::vector<std::vector<Event>> chosen(now.size());
  std::vector<std::exception_ptr> failed(now.size());
  parallel_for(std::ssize(now), [&](std::int64_t item, int) {
    const auto i = static_cast<std::size_t>(item);
    if (now[i].row < 0) return;
    try {
      take_tokens(now[i], chosen[i]);
    } catch (...) {
      failed[i] = std::current_exception();
    }
  });
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (failed[i]) std::rethrow_exception(failed[i]);
    Running& r = running_[now[i].index];
    if (!now[i].draft.empty()) {
      stats_.accepted_tokens += r.cached - (cache_.length(r.sequence) - std::ssize(now[i].draft));
      if (r.cached < cache_.length(r.sequence)) cache_.truncate(r.sequence, r.cached);
    }
    stats_.generated_tokens += std::ssize(chosen[i]);
    std::move(chosen[i].begin(), chosen[i].end(), std::back_inserter(events));
  }
  std::erase_if(running_, [&](Running& r) {
    if (r.finish == Finish::not_yet) return false;
    retire(r);
    return true;
  });
  return events;
}

void RunningBatch::take_token(Running& r, std::span<const float> logits, std::vector<Event>& events) const {
  const std::int64_t prompt = std::ssize(r.request.prompt), made = std::ssize(r.tokens) - prompt;
  Event event{.request = r.number, .reused = r.reused, .prompt = std::exchange(r.rated, {})};
  r.request.rate_prompt = false;  // that is done
  const auto& stops = r.request.stop_tokens;
  std::vector<std::uint8_t> allowed;
  if (TokenConstraint* constraint = r.request.constraint.get()) {
    const auto mask = constraint->allowed();
    allowed.assign(logits.size(), 0);
    std::copy_n(mask.begin(), std::min(mask.size(), allowed.size()), allowed.begin());
    for (const Token token : stops)
      if (token >= 0 && token < std::ssize(allowed))
        allowed[static_cast<std::size_t>(token)] = constraint->may_end() ? 1 : 0;
    if (std::find(allowed.begin(), allowed.end(), 1) == allowed.end()) {  // the vocabulary has no way on
      r.finish = event.finish = constraint->may_end() ? Finish::complete : Finish::length;
      r.held += r.decoder.finish();
      release_text(r, event, true);
      events.push_back(std::move(event));
      return;
    }
  }
  event.choice =
      sample(logits, r.request.sampling, r.tokens, std::span(r.tokens).subspan(static_cast<std::size_t>(prompt)),
             static_cast<std::uint64_t>(made), allowed);
  event.has_token = true;
  const Token token = event.choice.token;
  if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
    r.finish = Finish::stop_token;
  } else {
    r.tokens.push_back(token);
    const auto& shown = r.request.shown;
    r.held += std::find(shown.begin(), shown.end(), token) != shown.end() ? std::string(tokenizer_.piece(token))
                                                                          : r.decoder.push(token);
    if (r.request.constraint) r.request.constraint->take(token);
    if (r.request.constraint && r.request.constraint->must_end())
      r.finish = Finish::complete;
    else if (made + 1 >= r.request.max_tokens)
      r.finish = Finish::length;
    else if (options_.stream == 0 && std::ssize(r.tokens) >= options_.context)
      r.finish = Finish::context;
  }
  if (r.finish != Finish::not_yet) r.held += r.decoder.finish();
  release_text(r, event, r.finish != Finish::not_yet);
  event.finish = r.finish;
  events.push_back(std::move(event));
}

// Moves the text that no stop text can claim any more into the event.
void RunningBatch::release_text(Running& r, Event& event, bool last) {
  std::size_t end = std::string::npos, open = 0;
  for (const std::string& stop : r.request.stop) {
    end = std::min(end, r.held.find(stop));
    open = std::max(open, begun(r.held, stop));
  }
  if (end != std::string::npos) {
    r.held.resize(end);
    r.finish = Finish::stop_text;
    last = true;
  }
  const std::size_t keep = last ? 0 : open;
  event.text = r.held.substr(0, r.held.size() - keep);
  r.held.erase(0, r.held.size() - keep);
}

// Its keys and values stay for a later request that begins alike.
void RunningBatch::retire(Running& r) {
  r.tokens.resize(static_cast<std::size_t>(r.cached));
  kept_.push_back({r.sequence, std::move(r.tokens)});
}

}  // namespace attend::llm
