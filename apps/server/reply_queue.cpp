// The thread behind the queue.
#include "apps/server/reply_queue.hpp"

#include <new>

#include "attend/error.hpp"

namespace attend::server {

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
    if (std::ssize(queue_) >= waiting_)
      throw RequestError({503, "too many requests wait already; ask again in a moment", "", "busy"});
    queue_.push_back(std::move(job));
  }
  changed_.notify_one();
}

void ReplyQueue::loop() {
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return ending_ || !queue_.empty(); });
      if (ending_) return;
      job = std::move(queue_.front());
      queue_.pop_front();
    }
    if (*job.gone) continue;
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
