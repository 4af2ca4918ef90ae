// The thread behind the queue.
#include "apps/server/reply_queue.hpp"

#include <algorithm>
#include <chrono>
#include <new>

#include "attend/error.hpp"

namespace attend::server {
namespace {

constexpr std::chrono::milliseconds kLook{2};  // between two looks at clients that take their answers slowly

}  // namespace

ReplyQueue::~ReplyQueue() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ReplyQueue::submit(const std::shared_ptr<Reply>& reply, Work work) {
  Job job{reply, std::make_shared<std::atomic<bool>>(false), std::move(work)};
  reply->when_gone([gone = job.gone] { *gone = true; });
  {
    const std::lock_guard lock(mutex_);
    if (std::count_if(queue_.begin(), queue_.end(), [](const Job& one) { return !one.begun; }) >= waiting_)
      throw RequestError({503, "too many requests wait already; ask again in a moment", "", "busy"});
    queue_.push_back(std::move(job));
  }
  changed_.notify_one();
}

// The first that can go on: its client takes what it has been sent, or has left.
std::deque<ReplyQueue::Job>::iterator ReplyQueue::next() {
  return std::find_if(queue_.begin(), queue_.end(), [](const Job& job) { return *job.gone || job.reply->ready(); });
}

void ReplyQueue::loop() {
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return ending_ || !queue_.empty(); });
      while (!ending_ && next() == queue_.end()) changed_.wait_for(lock, kLook);
      if (ending_) return;
      const auto first = next();
      job = std::move(*first);
      queue_.erase(first);
    }
    if (*job.gone) continue;
    job.begun = true;
    bool done = true;
    try {
      done = job.work(*job.reply, [&] { return job.gone->load() || ending_.load(); });
    } catch (const RequestError& error) {
      job.reply->send(error_response(error.error));
    } catch (const InvalidArgument& error) {
      job.reply->send(error_response({400, error.what(), "", "bad_argument"}));
    } catch (const std::bad_alloc&) {
      job.reply->send(error_response({503, "out of memory; ask for less", "", "out_of_memory"}));
    } catch (const std::exception& error) {
      job.reply->send(error_response({500, error.what(), "", "internal_error"}));
    }
    if (done) continue;
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(job));
  }
}

}  // namespace attend::server
