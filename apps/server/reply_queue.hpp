// Requests that take their time, answered on one thread of their own, one after the other.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "apps/server/router.hpp"

namespace attend::server {

class ReplyQueue {
 public:
  using Stopped = std::function<bool()>;  // the client closed the request, or the server ends
  // True: it is answered. False: it goes on after the others, once its reply is ready for more. What it throws becomes
  // an error response.
  using Work = std::function<bool(Reply& reply, const Stopped& stopped)>;

  explicit ReplyQueue(std::ptrdiff_t waiting) : waiting_(waiting), thread_([this] { loop(); }) {}
  ~ReplyQueue();  // what runs is told to stop, what waits is not answered
  ReplyQueue(const ReplyQueue&) = delete;
  ReplyQueue& operator=(const ReplyQueue&) = delete;

  // RequestError 503 when too many wait that have not begun. Those that have are bounded by their connections.
  void submit(const std::shared_ptr<Reply>& reply, Work work);

 private:
  struct Job {
    std::shared_ptr<Reply> reply;
    std::shared_ptr<std::atomic<bool>> gone;
    Work work;
    bool begun = false;
  };
  void loop();
  std::deque<Job>::iterator next();

  const std::ptrdiff_t waiting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> queue_;
  std::atomic<bool> ending_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace attend::server
