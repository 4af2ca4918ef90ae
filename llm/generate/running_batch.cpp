// The running batch: who joins, what each step runs, when an answer ends, what is kept for the next one.
#include "llm/generate/running_batch.hpp"

#include <algorithm>

#include "attend/error.hpp"

namespace attend::llm {
namespace {

constexpr std::int64_t kPage = PagedKvCache::kPageTokens;

BatchOptions completed(BatchOptions o, const ModelConfig& config) {
  if (o.context <= 0) o.context = config.context;
  if (config.positions == PositionKind::learned) o.context = std::min(o.context, config.context);
  if (o.tokens_per_step < 1 || o.sequences < 1)
    throw InvalidArgument("engine: tokens_per_step and sequences must be at least 1");
  if (o.cache_tokens <= 0) o.cache_tokens = o.stream > 0 ? stream_room(o) : o.context;
  return o;
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
  }
  return "";
}

RunningBatch::RunningBatch(Transformer& model, const Tokenizer& tokenizer, const BatchOptions& options)
    : model_(model),
      tokenizer_(tokenizer),
      options_(completed(options, model.config())),
      cache_(model.config(),
             {options_.cache_tokens, options_.cache_dtype, options_.cache_int8, options_.stream, options_.sinks}) {}

// Tokens this request will have in the cache at most. The last token is never read again.
std::int64_t RunningBatch::longest(const Running& r) const {
  const std::int64_t prompt = std::ssize(r.request.prompt);
  const std::int64_t most = options_.stream > 0 ? stream_room(options_) : options_.context;
  return prompt >= most ? most : prompt + std::min(r.request.max_tokens, most - prompt);
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
    pages += PagedKvCache::pages_for(longest(r)) - PagedKvCache::pages_for(std::min(r.cached, longest(r))) + 1;
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

// Waiting requests join while there is room for all they may need, so that none has to be put back later.
void RunningBatch::admit() {
  while (!waiting_.empty() && std::ssize(running_) < options_.sequences) {
    Running& r = waiting_.front();
    // The longest beginning that a kept or running sequence shares with it. One token is always read again: its row
    // gives the first logits.
    const std::int64_t most = std::ssize(r.tokens) - 1;
    std::int64_t shared = 0, from = -1;
    const auto look = [&](std::int64_t sequence, std::span<const Token> cached) {
      const std::int64_t common = std::min(common_prefix(cached, r.tokens), most);
      if (common > shared && cache_.can_cut(sequence, common)) shared = common, from = sequence;
    };
    for (const Running& other : running_)
      look(other.sequence, std::span(other.tokens).first(static_cast<std::size_t>(other.cached)));
    for (const Kept& kept : kept_) look(kept.sequence, kept.tokens);
    const std::int64_t new_pages = PagedKvCache::pages_for(longest(r)) - shared / kPage + 1;
    if (from >= 0 && cache_.free_pages() - promised_pages() >= new_pages) {
      r.sequence = cache_.fork(from, shared);
      // A sequence that was continued from its end has served.
      std::erase_if(kept_, [&](const Kept& kept) {
        if (kept.sequence != from || shared < std::ssize(kept.tokens)) return false;
        cache_.remove(from);
        return true;
      });
    } else if (take_over(from, shared,
                         PagedKvCache::pages_for(longest(r)) - PagedKvCache::pages_for(shared) +
                             (running_.empty() ? 0 : 1))) {
      r.sequence = from;
    } else {
      shared = 0;
      // An empty cache holds every request that submit() took.
      if (!make_room(PagedKvCache::pages_for(longest(r)) + (running_.empty() ? 0 : 1))) return;
      r.sequence = cache_.add();
    }
    r.cached = shared;
    stats_.reused_tokens += shared;
    running_.push_back(std::move(r));
    waiting_.pop_front();
  }
}

std::vector<Event> RunningBatch::step() {
  std::vector<Event> events = std::move(early_);
  early_.clear();
  admit();
  // Answers under way first, then prompts in the order they came.
  std::vector<Token> tokens;
  std::vector<Continuation> parts;
  std::vector<std::pair<std::size_t, std::int64_t>> wanted;  // who gets a token, from which row
  std::int64_t budget = std::max(options_.tokens_per_step, std::ssize(running_));
  for (const bool prompts : {false, true})
    for (std::size_t i = 0; i < running_.size() && budget > 0; ++i) {
      Running& r = running_[i];
      const std::int64_t left = std::ssize(r.tokens) - r.cached;
      if ((left > 1) != prompts) continue;
      const std::int64_t count = std::min(left, budget);
      budget -= count;
      parts.push_back({r.sequence, count});
      tokens.insert(tokens.end(), r.tokens.begin() + r.cached, r.tokens.begin() + r.cached + count);
      r.cached += count;
      if (count == left) wanted.emplace_back(i, std::ssize(tokens) - 1);
      if (r.cached <= std::ssize(r.request.prompt)) stats_.prompt_tokens += count;
    }
  if (tokens.empty()) return events;
  const View hidden = model_.forward(tokens, parts, cache_);
  ++stats_.steps;
  const std::int64_t H = model_.config().hidden, V = model_.config().vocabulary;
  const std::int64_t rows = std::ssize(wanted);
  rows_.resize(static_cast<std::size_t>(rows * H));
  logits_.resize(static_cast<std::size_t>(rows * V));
  for (std::int64_t i = 0; i < rows; ++i)
    std::copy_n(static_cast<const float*>(hidden.data) + wanted[static_cast<std::size_t>(i)].second * H, H,
                rows_.data() + i * H);
  if (rows > 0)
    model_.logits(view_of(static_cast<const float*>(rows_.data()), {1, 1, rows, H}),
                  view_of(logits_.data(), {1, 1, rows, V}));
  for (std::int64_t i = 0; i < rows; ++i)
    take_token(running_[wanted[static_cast<std::size_t>(i)].first],
               std::span(logits_).subspan(static_cast<std::size_t>(i * V), static_cast<std::size_t>(V)), events);
  std::erase_if(running_, [&](Running& r) {
    if (r.finish == Finish::not_yet) return false;
    retire(r);
    return true;
  });
  return events;
}

void RunningBatch::take_token(Running& r, std::span<const float> logits, std::vector<Event>& events) {
  const std::int64_t prompt = std::ssize(r.request.prompt), made = std::ssize(r.tokens) - prompt;
  Event event{.request = r.number};
  event.choice =
      sample(logits, r.request.sampling, r.tokens, std::span(r.tokens).subspan(static_cast<std::size_t>(prompt)),
             static_cast<std::uint64_t>(made));
  event.has_token = true;
  ++stats_.generated_tokens;
  const Token token = event.choice.token;
  const auto& stops = r.request.stop_tokens;
  if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
    r.finish = Finish::stop_token;
  } else {
    r.tokens.push_back(token);
    r.held += r.decoder.push(token);
    if (made + 1 >= r.request.max_tokens)
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
