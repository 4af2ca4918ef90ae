// The model's thread: takes what came, runs a step, tells who asked.
#include "apps/server/served_model.hpp"

#include <algorithm>
#include <chrono>
#include <ctime>

#include "apps/server/router.hpp"
#include "attend/error.hpp"
#include "io/closest.hpp"
#include "io/json.hpp"
#include "io/readable.hpp"

namespace attend::server {
namespace {

constexpr std::int64_t kCacheTokens = 16384;  // at least, where nothing else is asked for
constexpr std::int64_t kAnswerRoom = 256;     // kept free for each answer before another may begin
constexpr std::size_t kJobs = 16;

// The threads that compute are one team: models take turns, in the order they ask.
class ComputeTurn {
 public:
  ComputeTurn() {
    std::unique_lock lock(mutex());
    const std::uint64_t mine = next()++;
    wake().wait(lock, [&] { return serving() == mine; });
  }
  ~ComputeTurn() {
    {
      const std::lock_guard lock(mutex());
      ++serving();
    }
    wake().notify_all();
  }
  ComputeTurn(const ComputeTurn&) = delete;
  ComputeTurn& operator=(const ComputeTurn&) = delete;

 private:
  static std::mutex& mutex() {
    static std::mutex m;
    return m;
  }
  static std::condition_variable& wake() {
    static std::condition_variable c;
    return c;
  }
  static std::uint64_t& next() {
    static std::uint64_t n = 0;
    return n;
  }
  static std::uint64_t& serving() {
    static std::uint64_t n = 0;
    return n;
  }
};

ServeLimits completed(ServeLimits limits, std::int64_t context) {
  if (limits.cache_tokens <= 0) limits.cache_tokens = std::max(context, kCacheTokens);
  if (limits.cache_tokens < context)
    throw InvalidArgument("cache: room for " + std::to_string(limits.cache_tokens) + " tokens, and the context is " +
                          std::to_string(context) + "; ask for more room, or a shorter context");
  return limits;
}

llm::Transformer load(llm::OpenModel& open, const llm::CacheOptions& cache, const ServeLimits& limits,
                      const llm::LoadProgress& progress) {
  const bool causal = open.files->config().causal;
  const llm::MemoryPlan plan =
      causal ? llm::plan_memory(*open.files, cache, llm::kTokensPerStep, limits.parallel + 2 * limits.draft)
             : llm::plan_memory(*open.files, {}, llm::kTokensPerEmbed, 0);
  return open.load(plan, true, progress);
}

}  // namespace

ServedModel::ServedModel(std::string id, llm::OpenModel open, const ServeLimits& limits,
                         const llm::LoadProgress& progress)
    : id_(std::move(id)),
      created_(static_cast<std::int64_t>(std::time(nullptr))),
      compute_(open.files->compute()),
      context_(open.context),
      tokenizer_(std::move(open.tokenizer)),
      limits_(open.files->config().causal ? completed(limits, context_) : limits),
      cache_(open.files->config().causal ? llm::cache_options(limits_.cache, 0, *open.files, limits_.cache_tokens)
                                         : llm::CacheOptions{}),
      transformer_(load(open, cache_, limits_, progress)) {
  if (!config().causal) {
    context_ = config().longest_text > 0 ? config().longest_text : config().context;
    no_template_ = "it embeds texts and generates none";
  } else {
    try {
      chat_template_ = llm::chat_template_of(tokenizer_, "", "the model's files");
    } catch (const std::exception& error) {
      no_template_ = error.what();
    }
    make_batch();
  }
  thread_ = std::thread([this] { loop(); });
}

ServedModel::~ServedModel() {
  stop(stop_reason_);
  thread_.join();
}

void ServedModel::make_batch() {
  llm::BatchOptions options = llm::batch_options(cache_, context_);
  options.sequences = limits_.parallel;
  options.prompt_piece = limits_.prompt_piece;
  options.answer_room = kAnswerRoom;
  options.draft = limits_.draft;
  batch_.reset();  // the old cache goes before the new one comes
  batch_ = std::make_unique<llm::RunningBatch>(transformer_, tokenizer_, options);
}

const llm::ChatTemplate& ServedModel::chat_template() const {
  if (!chat_template_)
    throw RequestError({.status = 400,
                        .message = "the model " + io::json_quoted(id_) + " cannot chat: " + no_template_ +
                                   "; /v1/completions continues a text",
                        .param = "model",
                        .code = "model_cannot_chat"});
  return *chat_template_;
}

std::vector<llm::Token> ServedModel::stop_tokens(bool chat) const {
  return llm::stop_tokens(tokenizer_, config(), chat && chat_template_ ? &*chat_template_ : nullptr);
}

std::shared_ptr<const llm::TokenTrie> ServedModel::trie() {
  std::call_once(trie_made_, [this] { trie_ = std::make_shared<const llm::TokenTrie>(tokenizer_); });
  return trie_;
}

std::vector<std::int64_t> ServedModel::submit(std::vector<std::pair<llm::Request, OnEvent>> requests) {
  for (const auto& [request, unused] : requests) {
    llm::check_sampling(request.sampling);
    if (request.prompt.empty()) throw InvalidArgument("the prompt is empty; expected at least one token");
    if (std::ssize(request.prompt) >= context_)
      throw InvalidArgument("the prompt has " + std::to_string(request.prompt.size()) + " tokens, and the context is " +
                            std::to_string(context_));
    for (const llm::Token token : request.prompt)
      if (token < 0 || token >= config().vocabulary)
        throw InvalidArgument("the prompt holds token " + std::to_string(token) + ", expected 0 to " +
                              std::to_string(config().vocabulary - 1));
  }
  std::vector<std::int64_t> numbers;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return {};
    if (numbers_.open + std::ssize(requests) > limits_.parallel + limits_.queue) {
      numbers_.refused += std::ssize(requests);
      return {};
    }
    numbers_.open += std::ssize(requests);
    for (auto& [request, on_event] : requests) {
      numbers.push_back(next_number_);
      arrivals_.push_back({next_number_++, std::move(request), std::move(on_event)});
    }
  }
  wake_.notify_one();
  return numbers;
}

void ServedModel::cancel(std::int64_t request) {
  {
    const std::lock_guard lock(mutex_);
    cancelled_.push_back(request);
  }
  wake_.notify_one();
}

bool ServedModel::run(std::function<void(ModelParts& parts)> job) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || jobs_.size() >= kJobs) return false;
    jobs_.push_back(std::move(job));
  }
  wake_.notify_one();
  return true;
}

void ServedModel::stop(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    stop_reason_ = reason;
  }
  wake_.notify_one();
}

ModelNumbers ServedModel::numbers() const {
  const std::lock_guard lock(mutex_);
  return numbers_;
}

// False at the end.
bool ServedModel::wait_for_work(Work& work) {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [&] {
    return stopping_ || !arrivals_.empty() || !cancelled_.empty() || !jobs_.empty() || (batch_ && !batch_->idle());
  });
  work.arrivals = std::move(arrivals_);
  work.cancelled = std::move(cancelled_);
  arrivals_.clear();
  cancelled_.clear();
  if (!jobs_.empty() && !stopping_) {
    work.job = std::move(jobs_.front());
    jobs_.pop_front();
  }
  work.stopping = stopping_;
  return !stopping_;
}

void ServedModel::loop() {
  for (bool more = true; more;) {
    Work work;
    more = wait_for_work(work);
    begin(work);
    if (work.stopping) fail_all(stop_reason_);
    if (!more) break;
    const ComputeTurn turn;
    if (work.job) {
      ModelParts parts{transformer_, tokenizer_, cache_};
      try {
        work.job(parts);
      } catch (...) {  // a job answers for itself
      }
      work.job = nullptr;
    }
    if (batch_) step();
  }
  const std::lock_guard lock(mutex_);
  jobs_.clear();  // their replies say that nobody answered
}

void ServedModel::begin(Work& work) {
  for (Arrival& arrival : work.arrivals) {
    try {
      if (!batch_) throw std::runtime_error(stop_reason_);
      const std::int64_t number = batch_->submit(std::move(arrival.request));
      active_.emplace(number, Active{arrival.number, std::move(arrival.on_event)});
    } catch (const std::exception& error) {
      active_.emplace(-1, Active{arrival.number, std::move(arrival.on_event)});
      tell(-1, {.finish = llm::Finish::cancelled}, error.what());
    }
  }
  for (const std::int64_t number : work.cancelled)
    for (const auto& [key, active] : active_)
      if (active.number == number) {
        batch_->cancel(key);
        break;
      }
}

void ServedModel::step() {
  const auto start = std::chrono::steady_clock::now();
  std::vector<llm::Event> events;
  try {
    events = batch_->step();
  } catch (
      const std::exception& error) {  // weights that give no number, memory that is gone: the next ones begin afresh
    fail_all(error.what());
    try {
      make_batch();
    } catch (const std::exception& no_memory) {
      stop(no_memory.what());
    }
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    numbers_.engine = batch_->stats();
    numbers_.kept_tokens = batch_->kept_tokens();
    numbers_.longest_step = std::max(numbers_.longest_step,
                                     std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  for (const llm::Event& event : events) tell(event.request, event, "");
}

void ServedModel::tell(std::int64_t batch_number, const llm::Event& event, const std::string& error) {
  const auto found = active_.find(batch_number);
  if (found == active_.end()) return;
  OnEvent on_event = found->second.on_event;
  if (event.finish != llm::Finish::not_yet) {
    active_.erase(found);
    const std::lock_guard lock(mutex_);
    --numbers_.open;
    if (event.finish == llm::Finish::cancelled) ++numbers_.cancelled;
  }
  try {
    on_event(event, error);
  } catch (...) {  // no memory for an answer: its client sees it end
  }
}

void ServedModel::fail_all(const std::string& why) {
  std::vector<std::int64_t> keys;
  for (const auto& [key, unused] : active_) keys.push_back(key);
  std::sort(keys.begin(), keys.end());
  for (const std::int64_t key : keys) tell(key, {.request = key, .finish = llm::Finish::cancelled}, why);
}

ServedModel& Models::find(const std::string& id) const {
  std::vector<std::string> ids;
  for (const auto& model : models_) {
    if (model->id() == id || (id.empty() && !models_.empty())) return *model;
    ids.push_back(model->id());
  }
  throw RequestError({.status = 404,
                      .message = "there is no model " + io::json_quoted(id.substr(0, 200)) + " here, expected one of " +
                                 io::joined(ids, ", ") + " (a request without a model means the first)" +
                                 io::did_you_mean(id.substr(0, 200), ids),
                      .param = "model",
                      .code = "model_not_found"});
}

void Models::stop(const std::string& reason) const {
  for (const auto& model : models_) model->stop(reason);
}

}  // namespace attend::server
