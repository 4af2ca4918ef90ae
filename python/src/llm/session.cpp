// Shares a model: a lock for each step, and the answers of a step given to whoever asked.
#include "session.hpp"

#include <iterator>
#include <optional>
#include <stdexcept>
#include <utility>

namespace attend::python {

void Batch::drop(std::int64_t first, std::int64_t count) {
  const std::lock_guard guard(mutex_);
  for (std::int64_t n = 0; n < count; ++n) dropped_.push_back(first + n);
}

void Batch::cancel_dropped() {
  std::vector<std::int64_t> dropped;
  {
    const std::lock_guard guard(mutex_);
    dropped.swap(dropped_);
  }
  for (const std::int64_t number : dropped)
    if (unread.erase(number) > 0) engine.cancel(number);
}

Session::Session(const std::string& name_or_path, const llm::ModelOptions& options)
    : model_(llm::Model::open(name_or_path, options)), options_{.stream = options.stream} {}

Session::Lock::Lock(Session& session) : session_(session) {
  if (session.user_.load() == std::this_thread::get_id())
    throw std::runtime_error(
        "model: a signal handler asked the model in the middle of a call on it; ask after the call");
  session.mutex_.lock();
  session.user_ = std::this_thread::get_id();
}

Session::Lock::~Lock() {
  session_.user_ = std::thread::id();
  session_.mutex_.unlock();
}

void Session::step(Batch& batch) {
  try {
    for (llm::Event& event : batch.engine.step())
      if (const auto found = batch.unread.find(event.request); found != batch.unread.end())
        found->second.push_back(std::move(event));
  } catch (...) {  // its cache may be half written
    batch_.reset();
    throw;
  }
}

Answers::Answers(std::shared_ptr<Session> session, std::vector<llm::Request> requests) : session_(std::move(session)) {
  const GilRelease release;
  const Session::Lock lock(*session_);
  std::shared_ptr<Batch>& batch = session_->batch_;
  if (batch == nullptr) batch = std::make_shared<Batch>(session_->model_, session_->options_);
  const std::int64_t many = std::ssize(requests);
  for (llm::Request& request : requests) {
    try {
      const std::int64_t number = batch->engine.submit(std::move(request));
      if (count_ == 0) first_ = number;
      batch->unread[number];
      ++count_;
    } catch (const InvalidArgument& refused) {
      batch->drop(first_, count_);
      if (many == 1) throw;
      throw InvalidArgument("prompt " + std::to_string(count_) + ": " + refused.what());
    }
  }
  open_ = count_;
  batch_ = batch;
}

Answers::~Answers() {
  cancel();
}

void Answers::cancel() {
  if (cancelled_.exchange(true)) return;
  if (const std::shared_ptr<Batch> batch = batch_.lock(); batch != nullptr && open_ > 0) batch->drop(first_, count_);
}

std::vector<llm::Event> Answers::step() {
  const GilRelease release;
  const Session::Lock lock(*session_);
  if (open() == 0) return {};
  const std::shared_ptr<Batch> batch = batch_.lock();
  if (batch == nullptr)
    throw std::runtime_error(
        "model: this answer ended when another call on the model was stopped or failed; ask again");
  batch->cancel_dropped();
  if (std::vector<llm::Event> events = take(*batch); !events.empty()) return events;
  // To be stopped inside a step costs every answer of the batch: where others wait for theirs, Ctrl-C waits for its
  // end.
  std::optional<InterruptScope> interrupts;
  if (std::ssize(batch->unread) == open_) interrupts.emplace(check_signals);
  session_->step(*batch);
  return take(*batch);
}

std::vector<llm::Event> Answers::take(Batch& batch) {
  std::vector<llm::Event> events;
  for (auto it = batch.unread.lower_bound(first_); it != batch.unread.end() && it->first < first_ + count_;) {
    const bool ended = !it->second.empty() && it->second.back().finish != llm::Finish::not_yet;
    for (llm::Event& event : it->second) {
      event.request -= first_;
      events.push_back(std::move(event));
    }
    it->second.clear();
    open_ -= ended ? 1 : 0;
    it = ended ? batch.unread.erase(it) : std::next(it);
  }
  return events;
}

}  // namespace attend::python
